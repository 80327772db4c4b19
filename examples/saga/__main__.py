"""Run the example: ``python -m examples.saga [--database URL] [--orders N]``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from examples.shutdown import run_until_signal

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    """Return 0 if the books are right in the end, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m examples.saga", description=__doc__)
    databases = "an empty one for all three services, such as postgresql://…; default: a SQLite file for each"
    parser.add_argument("--database", metavar="URL", help=databases)
    parser.add_argument("--orders", type=int, default=30, metavar="N", help="how many (30)")
    given = parser.parse_args()

    def run(directory: Path) -> int:
        from examples.saga.run import play  # slow to import: Ctrl-C already works meanwhile

        return play(directory, given.database, given.orders)

    return run_until_signal(run, prefix="saga-")


if __name__ == "__main__":
    sys.exit(main())
