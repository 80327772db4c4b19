"""Open and close connections with the drivers themselves. SQLAlchemy only translates the options of unusual URLs."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.errors import UnsupportedDatabase
from postroom.store.connections.limits import break_off
from postroom.store.connections.urls import MODULES, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from postroom.store.connections.urls import DatabaseUrl

ORDERLY = 2.0
"""Seconds for an orderly end, in which a server hears that a statement is no longer wanted."""
CLOSING = 3.0
"""Seconds that a cancelled task waits for its connection to close: a server that hangs would keep it for ever."""
_DATABASE = {"psycopg": "dbname", "psycopg2": "dbname", "asyncmy": "db", "aiomysql": "db"}
"""Drivers' own words for the database's name."""
_AUTOCOMMIT: Mapping[str, Mapping[str, Any]] = {
    **{driver: {"autocommit": True} for driver in ("psycopg", "pymysql", "asyncmy", "aiomysql")},
    **{driver: {"isolation_level": None} for driver in ("pysqlite", "aiosqlite")},
}
_FOUND_ROWS = 2
"""MySQL's flag to count the rows that an UPDATE found, rather than those that it changed."""
_TRANSLATED = {"host", "port", "prepared_statement_cache_size"}
"""Options of PostgreSQL's URLs that are not passed on to the driver as they are."""
_OF_SQLALCHEMY = "prepared_statement_"
"""What the names of options begin with that are for SQLAlchemy, and not for asyncpg."""


class Options(NamedTuple):
    """The arguments of a driver's `connect`."""

    positional: Sequence[Any]
    named: Mapping[str, Any]

    def __repr__(self) -> str:
        """Without values, as it may come into a traceback, and one is the password."""
        return f"Options({', '.join(self.named)})"


def options_of(url: DatabaseUrl) -> Options:
    """The URL as its driver's arguments. Raises `UnsupportedDatabase`."""
    positional, named = _plain(url) or _translated(url)
    return Options(positional, for_driver(named))


def for_driver(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that only SQLAlchemy knows."""
    return {name: value for name, value in options.items() if not name.startswith(_OF_SQLALCHEMY)}


def connect(driver: str, options: Options) -> Any:
    """A connection of a blocking driver, on which a statement outside of a transaction commits by itself.

    Raises whatever the driver does.
    """
    module = import_module(MODULES.get(driver, driver))
    connection = module.connect(*options.positional, **{**options.named, **_AUTOCOMMIT.get(driver, {})})
    if driver == "psycopg2":
        connection.autocommit = True
        import_module("psycopg2.extras").register_uuid(None, connection)
    return connection


async def aconnect(driver: str, options: Options) -> Any:
    """`connect` with an async driver."""
    module = import_module(driver)
    connecting = module.AsyncConnection if driver == "psycopg" else module
    connection = connecting.connect(*options.positional, **{**options.named, **_AUTOCOMMIT.get(driver, {})})
    if driver == "aiosqlite":  # its thread must not keep the process
        getattr(connection, "_thread", connection).daemon = True
    return await connection


def close(connection: Any) -> None:
    """Close a connection of a blocking driver, whatever state it is in."""
    with suppress(Exception):
        connection.close()


async def aclose(connection: Any) -> None:
    """Close a connection of an async driver, whatever state it is in. If cancelled, it goes on for a while."""
    await to_the_end(_close(connection))


async def to_the_end(closing: Awaitable[None]) -> None:
    """Wait for something that closes a connection. It goes on if this task is cancelled meanwhile."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=CLOSING)
        raise


async def _close(connection: Any) -> None:
    with suppress(Exception):
        async with asyncio.timeout(ORDERLY):
            await (connection.ensure_closed() if hasattr(connection, "ensure_closed") else connection.close())
    break_off(connection)


def _plain(url: DatabaseUrl) -> Options | None:
    """The arguments where nothing has to be translated: most URLs have no options."""
    named: dict[str, Any] = {
        "user": url.username,
        "password": url.password,
        "host": url.host,
        "port": url.port,
        _DATABASE.get(url.driver, "database"): url.database,
    }
    named = {name: value for name, value in named.items() if value}
    match url.dialect:
        case "postgresql" if named and not _TRANSLATED & url.query.keys() and _is_simple(url.query):
            return Options((), {**named, **url.query})
        case "mysql" if not url.query:
            return Options((), {**named, "client_flag": _FOUND_ROWS})
        case "sqlite" if not url.query and named.keys() == {"database"} and url.database not in {None, ":memory:"}:
            file = os.path.abspath(url.database or "")  # noqa: PTH100 - a/../b is b, as it is for SQLAlchemy
            return Options((file,), {"check_same_thread": False})
        case _:
            return None


def _is_simple(query: Mapping[str, str | tuple[str, ...]]) -> bool:
    return all(isinstance(value, str) for value in query.values())


def _translated(url: DatabaseUrl) -> Options:
    """The arguments as SQLAlchemy's dialects make them: several hosts, options that are numbers, files of keys.

    Raises `UnsupportedDatabase`.
    """
    from sqlalchemy import create_engine  # which takes long to load
    from sqlalchemy.exc import ArgumentError

    given = url.for_sqlalchemy()
    try:
        return Options(*create_engine(given).dialect.create_connect_args(given))
    except (ArgumentError, TypeError, ValueError) as error:
        raise UnsupportedDatabase(
            f"the options of the database URL {shown(url)} are not valid: {' '.join(str(error).split())}"
        ) from error
