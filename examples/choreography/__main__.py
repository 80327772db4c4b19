"""Run the example: ``python -m examples.choreography [--memory] [--orders N]``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from examples.ending import in_order

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    """Returns 0 if the books are right in the end, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m examples.choreography", description=__doc__)
    parser.add_argument("--memory", action="store_true", help="all in one process, without a server")
    parser.add_argument("--orders", type=int, default=30, metavar="N", help="how many (30)")
    given = parser.parse_args()

    def story(directory: Path) -> int:
        from examples.choreography.run import in_memory, on_nats  # it takes a second, in which Ctrl-C is heard already

        run = in_memory if given.memory else on_nats
        return run(directory, given.orders)

    return in_order(story, prefix="choreography-")


if __name__ == "__main__":
    sys.exit(main())
