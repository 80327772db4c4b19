"""Run the example: ``python -m examples.orders [--database URL]``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from examples.ending import in_order

if TYPE_CHECKING:
    from pathlib import Path


def main() -> int:
    """Returns 0 if every order came to the end that it should, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    databases = "an empty one, as postgresql://… or mysql://…; else SQLite in a file"
    parser.add_argument("--database", metavar="URL", help=databases)
    given = parser.parse_args()

    def story(directory: Path) -> int:
        from examples.orders.run import play  # it takes a second, in which Ctrl-C is heard already

        return play(directory, given.database or f"sqlite:///{directory}/orders.db")

    return in_order(story, prefix="orders-")


if __name__ == "__main__":
    sys.exit(main())
