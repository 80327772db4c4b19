"""Recognise the caller's connection by the names of its classes, without importing any driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from postroom.errors import NotInTransaction, UnsupportedConnection, WrongMethod
from postroom.store.connections import async_kinds as asynchronous
from postroom.store.connections import sync_kinds as synchronous

if TYPE_CHECKING:
    from postroom.store.connections.async_kinds import AsyncKind
    from postroom.store.connections.sync_kinds import Kind, SyncKind

MOST_CLASSES = 64
"""Classes of connections whose kind is remembered."""
K = TypeVar("K")
_known_sync: dict[type, type[SyncKind]] = {}
_known_async: dict[type, type[AsyncKind]] = {}

SYNC_KINDS: dict[str, type[SyncKind]] = {
    "sqlite3.Connection": synchronous.Sqlite3,
    "psycopg.Connection": synchronous.Psycopg,
    "psycopg2.extensions.connection": synchronous.Psycopg2,
    "pymysql.connections.Connection": synchronous.PyMySQL,
    "django.db.backends.base.base.BaseDatabaseWrapper": synchronous.Django,
    "django.utils.connection.ConnectionProxy": synchronous.Django,
    "sqlalchemy.engine.base.Connection": synchronous.SQLAlchemyConnection,
    "sqlalchemy.orm.session.Session": synchronous.SQLAlchemySession,
    "sqlalchemy.orm.scoping.scoped_session": synchronous.SQLAlchemySession,
}
ASYNC_KINDS: dict[str, type[AsyncKind]] = {
    "asyncpg.connection.Connection": asynchronous.Asyncpg,
    "asyncpg.pool.PoolConnectionProxy": asynchronous.Asyncpg,
    "psycopg.AsyncConnection": asynchronous.PsycopgAsync,
    "aiosqlite.core.Connection": asynchronous.Aiosqlite,
    "asyncmy.connection.Connection": asynchronous.Asyncmy,
    "aiomysql.connection.Connection": asynchronous.Aiomysql,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": asynchronous.SQLAlchemyAsyncConnection,
    "sqlalchemy.ext.asyncio.session.AsyncSession": asynchronous.SQLAlchemyAsyncSession,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": asynchronous.SQLAlchemyAsyncSession,
}


def sync_kind(connection: object, method: str) -> SyncKind:
    """The adapter for the caller's connection, ready to run statements in its open transaction.

    Raises a subclass of `UnusableConnection` that names the remedy. `method` is the method that was called.
    """
    kind = _known_sync.get(type(connection)) or _sync_kind_of(connection)
    if kind is None:
        if _async_kind_of(connection):
            raise WrongMethod(f"{_name(connection)} is an async connection: use `await {_twin(method)}(…)`")
        raise UnsupportedConnection(_unsupported(connection))
    found = kind(connection)
    if found.autocommits():
        raise NotInTransaction(_autocommits(found))
    return found


async def async_kind(connection: object, method: str) -> AsyncKind:
    """`sync_kind` for an async connection."""
    kind = _known_async.get(type(connection)) or _async_kind_of(connection)
    if kind is None:
        if _sync_kind_of(connection):
            raise WrongMethod(f"{_name(connection)} is a sync connection: use `{_twin(method)}(…)` without await")
        raise UnsupportedConnection(_unsupported(connection))
    found = kind(connection)
    if await found.autocommits():
        raise NotInTransaction(_autocommits(found))
    return found


def driver_kind(connection: Any) -> Any:
    """The adapter for one of our own connections, sync or async."""
    kind = _sync_kind_of(connection) or _async_kind_of(connection)
    if kind is None:
        raise UnsupportedConnection(_unsupported(connection))
    return kind(connection)


def _sync_kind_of(connection: object) -> type[SyncKind] | None:
    return _kind_of(type(connection), SYNC_KINDS, _known_sync)


def _async_kind_of(connection: object) -> type[AsyncKind] | None:
    return _kind_of(type(connection), ASYNC_KINDS, _known_async)


def _kind_of(cls: type, kinds: dict[str, K], known: dict[type, K]) -> K | None:
    kind = known.get(cls)
    if kind is None:
        names = (f"{one.__module__}.{one.__qualname__}" for one in cls.__mro__)
        kind = next((kinds[name] for name in names if name in kinds), None)
        if kind is not None and len(known) < MOST_CLASSES:
            known[cls] = kind
    return kind


def _name(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


_ASYNC_METHODS = {
    *("aadd", "aadd_many", "afirst_time", "afirst_times", "ais_marked", "aonce", "abarrier"),
    *("astart", "asignal", "aabort", "areply"),
    *("abegin", "afinish", "afail", "arenew", "ahand_over", "alook"),
}


def _twin(method: str) -> str:
    """Add ↔ aadd, first_time ↔ afirst_time, begin ↔ abegin."""
    owner, _, name = method.rpartition(".")
    return f"{owner}.{name[1:] if name in _ASYNC_METHODS else 'a' + name}"


def _autocommits(kind: Kind) -> str:
    return (
        f"the connection {_name(kind.connection)} is in autocommit with no open transaction, where what Postroom "
        f"writes would commit without the business rows: {kind.remedy}"
    )


_HINTS = {
    "sessionmaker": "makes sessions: call it, and pass the session",
    "engine": "is an engine, not a connection: use `engine.begin()` in a `with` and pass its connection",
    "fairy": "is SQLAlchemy's proxy of a driver's connection: pass its `.driver_connection`",
    "pool": "is a pool, not a connection: take a connection from it and pass that",
    "cursor": "is a cursor, not a connection: pass the connection that it belongs to",
}
"""Hints for things passed by mistake, by a word in their class name."""


_NO_TRANSACTION = "; `saga.connection` is None in a saga's call, which has no transaction: use a step"


def _unsupported(connection: object) -> str:
    name = _name(connection)
    for word, hint in _HINTS.items():
        if word in type(connection).__qualname__.lower():
            return f"{name} {hint}"
    return (
        f"{name} is not a connection that Postroom knows: pass an SQLAlchemy Session or Connection (or their async "
        "forms), or a connection of psycopg, psycopg2, asyncpg, sqlite3, aiosqlite, PyMySQL, asyncmy, aiomysql or "
        f"Django{_NO_TRANSACTION if connection is None else ''}"
    )
