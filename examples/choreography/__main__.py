"""Run the example: ``python -m examples.choreography [--memory] [--orders N]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from examples.choreography.run import in_memory, on_nats


def main() -> int:
    """Returns 0 if the books are right in the end, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m examples.choreography", description=__doc__)
    parser.add_argument("--memory", action="store_true", help="all in one process, without a server")
    parser.add_argument("--orders", type=int, default=30, metavar="N", help="how many (30)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="choreography-") as directory:
        run = in_memory if given.memory else on_nats
        return run(Path(directory), given.orders)


if __name__ == "__main__":
    sys.exit(main())
