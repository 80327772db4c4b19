"""Databases that have Postroom's tables: made once by `init`, and copied from there, which takes far less time."""

from __future__ import annotations

import tempfile
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from postroom.store.connections.stores import Store
from postroom.store.schema.ddl import completing_statements
from postroom.store.schema.migrations import upgrade
from tests.services.databases import fresh_database, need
from tests.services.mariadb import MariaDB
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextmanager
def ready_database(kind: str) -> Iterator[str]:
    """Give the same as `fresh_database`, with the newest tables in their default place."""
    if kind == "postgresql":
        with _copied_on_postgresql(need(PostgreSQL)) as url:
            yield url
        return
    with fresh_database(kind) as url:
        if kind == "sqlite":
            Path(url.removeprefix("sqlite:///")).write_bytes(_sqlite_file())
        else:
            need(MariaDB).run_statements(url.rpartition("/")[2], _mariadb_statements())
        yield url


def _init(url: str) -> None:
    with closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))


@cache
def _sqlite_file() -> bytes:
    with tempfile.TemporaryDirectory(prefix="postroom-") as directory:
        file = Path(directory) / "template.db"
        _init(f"sqlite:///{file}")
        return file.read_bytes()


@contextmanager
def _copied_on_postgresql(server: PostgreSQL) -> Iterator[str]:
    name = f"test_{uuid4().hex}"
    server.create_database(name, template=_postgresql_template(server))
    try:
        yield server.url(name)
    finally:
        server.drop_database(name)


@cache
def _postgresql_template(server: PostgreSQL) -> str:
    name = f"template_{uuid4().hex}"
    server.create_database(name)
    _init(server.url(name))
    return name


@cache
def _mariadb_statements() -> Sequence[str]:
    """There is no template here; but a table's indexes are made with it instead of one after the other."""
    with fresh_database("mariadb") as url, closing(Store(url)) as store:
        _init(url)
        server, database = need(MariaDB), url.rpartition("/")[2]
        tables = server.run_statements(
            database,
            ["SELECT table_name FROM information_schema.tables WHERE table_schema = database() AND engine IS NOT NULL"],
        )
        created = [server.run_statements(database, [f"SHOW CREATE TABLE `{table}`"])[0][1] for [table] in tables]
        return [*map(str, created), *completing_statements(store.names)]
