"""Fresh databases for tests, by kind: `sqlite`, `postgresql`, `mariadb`."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import pytest

from tests.services import registry
from tests.services.mariadb import MariaDB
from tests.services.postgresql import PostgreSQL
from tests.services.service import DatabaseService, Service, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVERS: dict[str, type[DatabaseService]] = {"postgresql": PostgreSQL, "mariadb": MariaDB}
KINDS = ("sqlite", *SERVERS)

S = TypeVar("S", bound=Service)


def need(kind: type[S], own: S | None = None) -> S:
    """Return the run's server of this kind, or the caller's own, started.

    If it is not available, the test is skipped, or fails under CI, unless the server is one that CI can do without.
    """
    try:
        if own is not None:
            own.start()
            return own
        return registry.get(kind)
    except Unavailable as reason:
        message = f"NOT TESTED: {kind.title}: {reason}"
    if not kind.is_optional and os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@contextmanager
def fresh_database(kind: str) -> Iterator[str]:
    """Give the URL of an empty database that is gone afterwards, whoever is still connected to it."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="postroom-") as directory:
            yield f"sqlite:///{Path(directory) / 'test.db'}"
        return
    server = need(SERVERS[kind])
    name = f"test_{uuid4().hex}"
    server.create_database(name)
    try:
        yield server.url(name)
    finally:
        server.drop_database(name)
