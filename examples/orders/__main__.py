"""Run the example: ``python -m examples.orders [--database URL]``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from examples.shutdown import run_until_signal

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    """Return 0 if every order ended as it should, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    databases = "an empty one, such as postgresql://… or mysql://…; default: SQLite in a file"
    parser.add_argument("--database", metavar="URL", help=databases)
    given = parser.parse_args()

    def run(directory: Path) -> int:
        from examples.orders.run import play  # slow to import: Ctrl-C already works meanwhile

        return play(directory, given.database or f"sqlite:///{directory}/orders.db")

    return run_until_signal(run, prefix="orders-")


if __name__ == "__main__":
    sys.exit(main())
