"""Run the example: ``python -m examples.choreography [--memory] [--orders N]``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from examples.shutdown import run_until_signal

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    """Return 0 if the books are right in the end, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m examples.choreography", description=__doc__)
    parser.add_argument("--memory", action="store_true", help="all in one process, without a server")
    parser.add_argument("--orders", type=int, default=30, metavar="N", help="how many (30)")
    given = parser.parse_args()

    def run(directory: Path) -> int:
        from examples.choreography.run import in_memory, on_nats  # slow to import: Ctrl-C already works meanwhile

        return (in_memory if given.memory else on_nats)(directory, given.orders)

    return run_until_signal(run, prefix="choreography-")


if __name__ == "__main__":
    sys.exit(main())
