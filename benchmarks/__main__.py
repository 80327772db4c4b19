"""Run all benchmarks, or the named ones: ``python -m benchmarks [NAME …]``.

A benchmark with options takes what follows its name: ``python -m benchmarks brokers --messages 20000 nats``.
"""

from __future__ import annotations

import sys
from importlib import import_module

BENCHMARKS = (
    *("import_time", "producer", "notify", "claim_settle", "idle", "brokers", "consumer", "middleware", "sagas"),
    *("twophase", "retention", "tuning", "dashboard", "cdc", "drain", "scale", "other_databases"),
)
"""Modules of this package; each has a `main` that measures and prints."""
WITH_OPTIONS = (
    *("brokers", "consumer", "sagas", "twophase", "retention", "tuning", "dashboard", "cdc", "drain", "scale"),
    *("other_databases", "compare", "soak", "peers"),
)
"""Their `main` takes the arguments after the name. `compare` runs another one twice; `soak` takes an hour."""


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; returns the exit code."""
    if names and names[0] in WITH_OPTIONS:
        import_module(f"benchmarks.{names[0]}").main(names[1:])
        return 0
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
