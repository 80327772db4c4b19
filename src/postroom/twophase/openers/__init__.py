"""Openers: every way to give a participant's database, recognised by the names of its classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting
from postroom.twophase.openers.django import DjangoConnection
from postroom.twophase.openers.drivers import from_async_pool, from_function, from_psycopg_pool
from postroom.twophase.openers.sqlalchemy import AsyncEngines, AsyncSessions, Engines, Sessions
from postroom.twophase.openers.urls import Url

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.twophase.lines import Opener

_OPENERS: dict[str, Callable[..., Opener]] = {
    "builtins.str": Url,
    "sqlalchemy.engine.base.Engine": Engines,
    "sqlalchemy.ext.asyncio.engine.AsyncEngine": AsyncEngines,
    "sqlalchemy.orm.session.sessionmaker": Sessions,
    "sqlalchemy.ext.asyncio.session.async_sessionmaker": AsyncSessions,
    "psycopg_pool.pool.ConnectionPool": from_psycopg_pool,
    "psycopg_pool.pool_async.AsyncConnectionPool": from_psycopg_pool,
    "asyncpg.pool.Pool": from_async_pool,
    "asyncmy.pool.Pool": from_async_pool,
    "aiomysql.pool.Pool": from_async_pool,
    "django.db.backends.base.base.BaseDatabaseWrapper": DjangoConnection,
    "django.utils.connection.ConnectionProxy": DjangoConnection,
}


def opener_of(given: object, name: str) -> Opener:
    """Open what a participant was given as. Raises `InvalidSetting`, `UnsupportedDatabase` or `DriverMissing`."""
    found = _lookup(given)
    if found is None and callable(given):
        return from_function(given, name)
    if found is None:
        raise InvalidSetting(
            f"{name!r} is given as {type(given).__module__}.{type(given).__qualname__}: give the URL of a database, an "
            "SQLAlchemy engine or sessionmaker, a pool, a Django connection, or a function that returns a driver's "
            "connection; a participant may also be an object with prepare(id), commit(id) and abort(id)"
        )
    return found(given, name)


def _lookup(given: object) -> Callable[..., Opener] | None:
    names = (f"{cls.__module__}.{cls.__qualname__}" for cls in type(given).__mro__)
    return next((_OPENERS[name] for name in names if name in _OPENERS), None)
