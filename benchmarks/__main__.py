"""Run all benchmarks, or those that are named: ``python -m benchmarks [NAME …]``."""

from __future__ import annotations

import sys
from importlib import import_module

BENCHMARKS = ("import_time", "producer", "notify", "claim_settle", "idle", "consumer")
"""Modules of this package; each has a `main` that measures and prints."""


def main(names: list[str]) -> int:
    """Run the benchmarks of these names, all of them where none is given; returns the exit code."""
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
