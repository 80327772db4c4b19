"""Run the example: ``python -m examples.orders [--database URL]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from examples.orders.run import play


def main() -> int:
    """Returns 0 if every order came to the end that it should, 1 if not."""
    parser = argparse.ArgumentParser(prog="python -m examples.orders", description=__doc__)
    parser.add_argument("--database", metavar="URL", help="an empty one, as postgresql://… or mysql://…; else SQLite in a file")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orders-") as directory:
        return play(Path(directory), given.database or f"sqlite:///{directory}/orders.db")


if __name__ == "__main__":
    sys.exit(main())
