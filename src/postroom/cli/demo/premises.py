"""Where the demo takes place: a temporary directory, out of reach of your settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from postroom.settings import ENVIRONMENT

SHOP = "shop.db"


@contextmanager
def premises() -> Iterator[Path]:
    """A temporary directory to work in. Settings of yours, in files and the environment, do not count there."""
    variables = [name for names in ENVIRONMENT.values() for each in names for name in (each, f"{each}_FILE")]
    yours = {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        with TemporaryDirectory(prefix="postroom-demo-") as directory, chdir(directory):
            yield Path(directory)
    finally:
        os.environ.update(yours)


def database_url(directory: Path) -> str:
    """The shop's database."""
    return f"sqlite:///{directory / SHOP}"
