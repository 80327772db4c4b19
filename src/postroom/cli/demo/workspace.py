"""The demo's temporary directory, in which the user's settings have no effect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from postroom.settings import ENVIRONMENT

SHOP = "shop.db"


@contextmanager
def workspace() -> Iterator[Path]:
    """Work in a temporary directory. The user's settings, in files and the environment, have no effect there."""
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
