"""What a drain costs, beside the same drain by another version of the code: rate, and processor time for a message.

``python -m benchmarks relay [--against DIRECTORY] [--messages N] [--rounds N] [VARIANT …]``. DIRECTORY is a checkout of
the version to compare with (``git worktree add``). All variants take turns in every round, each in a process of its
own: rates differ from minute to minute, processor times less.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[1]
VARIANTS = ("lean", "full", "rows", "keys")
"""Two floors, messages without a key, and 10,000 keys. Others: hot, hot-ordered, rows+snapshot, keys+writer, …"""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks relay")
    parser.add_argument("variants", nargs="*", default=VARIANTS)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    versions = {"now": ROOT} if options.against is None else {"before": options.against.resolve(), "now": ROOT}
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    with closing(PostgreSQL(durable=True)) as server:
        server.start()
        server.create_database("shop")
        for _ in range(options.rounds):
            for variant in options.variants:
                for version, checkout in versions.items():
                    measured = drain(checkout, server, variant, options.messages)
                    found.setdefault((variant, version), []).append(measured)
    print(f"{'':<24}{'messages/s':>12}{'Python µs':>12}{'server µs':>12}")
    for (variant, version), each in found.items():
        rate, python, spent = (median(one[what] for one in each) for what in ("rate", "python", "server"))
        print(f"{variant:<17}{version:<7}{rate:>12,.0f}{python:>12.2f}{spent:>12.2f}")


def drain(checkout: Path, server: PostgreSQL, variant: str, messages: int) -> dict[str, float]:
    """Drain once, with the code of this checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.relay_drain", server.url("shop"), str(server.pid), variant, str(messages)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{checkout / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        check=True,
    )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


if __name__ == "__main__":
    main(sys.argv[1:])
