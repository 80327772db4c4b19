"""The matrix: every kind of connection that outbox and inbox take, and how an application opens it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import aiomysql
import aiosqlite
import asyncmy
import asyncpg
import django
import django.conf
import django.db
import psycopg
import psycopg2
import psycopg_pool
import pymysql
import sqlmodel
import sqlmodel.ext.asyncio.session
from sqlalchemy import URL, NullPool, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tests.contract.connection_callers import (
    AsyncpgCaller,
    Caller,
    DjangoCaller,
    DriverCaller,
    SessionCaller,
    SQLAlchemyCaller,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

pymysql.install_as_MySQLdb()  # Django's way to MySQL without a compiler

SYNC_DRIVERS = {"pysqlite": "sqlite", "psycopg": "postgresql", "psycopg2": "postgresql", "pymysql": "mariadb"}
ASYNC_DRIVERS = {
    "aiosqlite": "sqlite",
    "asyncpg": "postgresql",
    "psycopg": "postgresql",
    "asyncmy": "mariadb",
    "aiomysql": "mariadb",
}
"""SQLAlchemy's names of drivers → the kind of database."""


@dataclass(frozen=True)
class Kind:
    """A row of the matrix."""

    name: str
    database: str
    registered: str
    """The class, by the name under which `postroom.store.connections.kinds` knows it."""
    open: Callable[[URL], AbstractContextManager[Caller]]


def libpq(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def mysql_options(url: URL, database: str = "database") -> dict[str, Any]:
    return {"host": url.host, "port": url.port, "user": url.username, database: url.database}


CONNECT: dict[str, Callable[..., Any]] = {
    "sqlite3": lambda url, **options: sqlite3.connect(url.database, **options),
    "psycopg": lambda url, **options: psycopg.connect(libpq(url), **options),
    "psycopg2": lambda url, **options: psycopg2.connect(libpq(url), **options),
    "PyMySQL": lambda url, **options: pymysql.connect(**mysql_options(url), **options),
}
ACONNECT: dict[str, Callable[..., Any]] = {
    "aiosqlite": lambda url, **options: aiosqlite.connect(url.database, **options),
    "asyncpg": lambda url, **options: asyncpg.connect(libpq(url), **options),
    "psycopg async": lambda url, **options: psycopg.AsyncConnection.connect(libpq(url), **options),
    "asyncmy": lambda url, **options: asyncmy.connect(**mysql_options(url), **options),
    "aiomysql": lambda url, **options: aiomysql.connect(**mysql_options(url, "db"), **options),
}
"""Raw connections: driver → connect(URL, **the driver's own options)."""


@contextmanager
def raw(driver: str, url: URL, **options: Any) -> Iterator[Caller]:
    connection = CONNECT[driver](url, **options)
    try:
        yield DriverCaller(connection)
    finally:
        connection.close()


@contextmanager
def raw_async(driver: str, url: URL, **options: Any) -> Iterator[Caller]:
    caller = AsyncpgCaller if driver == "asyncpg" else DriverCaller
    with asyncio.Runner() as runner:
        connection = runner.run(_connected(ACONNECT[driver](url, **options)))
        try:
            yield caller(connection, runner)
        finally:
            runner.run(_closed(connection))


async def _connected(connecting: Any) -> Any:
    return await connecting


async def _closed(connection: Any) -> None:
    closing = connection.close()
    if closing is not None:  # aiomysql's closes at once
        await closing


@contextmanager
def psycopg_pool_connection(url: URL) -> Iterator[Caller]:
    with psycopg_pool.ConnectionPool(libpq(url), min_size=1) as pool, pool.connection() as connection:
        yield DriverCaller(connection)


@contextmanager
def pooled_async(
    pool: Callable[[URL], AbstractAsyncContextManager[Any]], caller: type[Caller], url: URL
) -> Iterator[Caller]:
    """A connection from an async pool; `pool(url)` gives the connection."""
    with asyncio.Runner() as runner:
        connections = pool(url)
        connection = runner.run(connections.__aenter__())
        try:
            yield caller(connection, runner)
        finally:
            runner.run(connections.__aexit__(None, None, None))


@asynccontextmanager
async def asyncpg_pool(url: URL) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(libpq(url), min_size=1) as pool, pool.acquire() as connection:
        yield connection


@asynccontextmanager
async def psycopg_async_pool(url: URL) -> AsyncIterator[Any]:
    async with psycopg_pool.AsyncConnectionPool(libpq(url), min_size=1) as pool, pool.connection() as connection:
        yield connection


@asynccontextmanager
async def asyncmy_pool(url: URL) -> AsyncIterator[Any]:
    async with asyncmy.create_pool(**mysql_options(url)) as pool, pool.acquire() as connection:
        yield connection


@asynccontextmanager
async def aiomysql_pool(url: URL) -> AsyncIterator[Any]:
    async with aiomysql.create_pool(**mysql_options(url, "db")) as pool, pool.acquire() as connection:
        yield connection


DJANGO_ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql"}


@contextmanager
def django_connection(alias: str, url: URL) -> Iterator[Caller]:
    """`django.db.connection`, a proxy, for the alias `default`; for any other the wrapper from `connections`."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(USE_TZ=True)
        django.setup()
    connections = django.db.connections
    described = {
        "ENGINE": f"django.db.backends.{DJANGO_ENGINES[url.get_backend_name()]}",
        "NAME": url.database,
        "HOST": url.host or "",
        "PORT": url.port or "",
        "USER": url.username or "",
    }
    connections.settings |= {alias: connections.configure_settings({"default": described})["default"]}
    try:
        yield DjangoCaller(django.db.connection if alias == "default" else connections[alias])
    finally:
        connections[alias].close()
        del connections[alias]


@contextmanager
def sqlalchemy_connection(driver: str, url: URL, **options: Any) -> Iterator[Caller]:
    engine = create_engine(with_driver(url, driver), poolclass=NullPool, **options)
    with engine.connect() as connection:
        yield SQLAlchemyCaller(connection)


@contextmanager
def sqlalchemy_session(make: Callable[[Any], Any], driver: str, url: URL, **options: Any) -> Iterator[Caller]:
    engine = create_engine(with_driver(url, driver), poolclass=NullPool, **options)
    session = make(engine)
    try:
        yield SessionCaller(session)
    finally:
        session.close()


@contextmanager
def sqlalchemy_async_connection(driver: str, url: URL, **options: Any) -> Iterator[Caller]:
    with asyncio.Runner() as runner:
        engine = create_async_engine(with_driver(url, driver), poolclass=NullPool, **options)
        connection = runner.run(_connected(engine.connect()))
        try:
            yield SQLAlchemyCaller(connection, runner)
        finally:
            runner.run(connection.close())


@contextmanager
def sqlalchemy_async_session(make: Callable[[Any], Any], driver: str, url: URL, **options: Any) -> Iterator[Caller]:
    with asyncio.Runner() as runner:
        session = make(create_async_engine(with_driver(url, driver), poolclass=NullPool, **options))
        try:
            yield SessionCaller(session, runner)
        finally:
            runner.run(session.close())


def with_driver(url: URL, driver: str) -> URL:
    return url.set(drivername=f"{url.get_backend_name()}+{driver}")


SESSIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Session": ("sqlalchemy.orm.session.Session", Session),
    "scoped_session": (
        "sqlalchemy.orm.scoping.scoped_session",
        lambda engine: scoped_session(sessionmaker(engine)),
    ),
    "SQLModel Session": ("sqlalchemy.orm.session.Session", sqlmodel.Session),
}
ASYNC_SESSIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "AsyncSession": ("sqlalchemy.ext.asyncio.session.AsyncSession", AsyncSession),
    "async_scoped_session": (
        "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
        lambda engine: async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: "this test"),
    ),
    "SQLModel AsyncSession": (
        "sqlalchemy.ext.asyncio.session.AsyncSession",
        sqlmodel.ext.asyncio.session.AsyncSession,
    ),
}

KINDS: list[Kind] = [
    Kind("sqlite3", "sqlite", "sqlite3.Connection", partial(raw, "sqlite3")),
    Kind("psycopg", "postgresql", "psycopg.Connection", partial(raw, "psycopg")),
    Kind("psycopg pool", "postgresql", "psycopg.Connection", psycopg_pool_connection),
    Kind("psycopg2", "postgresql", "psycopg2.extensions.connection", partial(raw, "psycopg2")),
    Kind("PyMySQL", "mariadb", "pymysql.connections.Connection", partial(raw, "PyMySQL")),
    *(
        Kind(f"Django {form}, {database}", database, registered, partial(django_connection, alias))
        for form, alias, registered in (
            ("proxy", "default", "django.utils.connection.ConnectionProxy"),
            ("wrapper", "other", "django.db.backends.base.base.BaseDatabaseWrapper"),
        )
        for database in ("sqlite", "postgresql", "mariadb")
    ),
    *(
        Kind(
            f"Connection, {driver}",
            database,
            "sqlalchemy.engine.base.Connection",
            partial(sqlalchemy_connection, driver),
        )
        for driver, database in SYNC_DRIVERS.items()
    ),
    *(
        Kind(f"{name}, {driver}", database, registered, partial(sqlalchemy_session, make, driver))
        for name, (registered, make) in SESSIONS.items()
        for driver, database in SYNC_DRIVERS.items()
    ),
    Kind("asyncpg", "postgresql", "asyncpg.connection.Connection", partial(raw_async, "asyncpg")),
    Kind(
        "asyncpg pool",
        "postgresql",
        "asyncpg.pool.PoolConnectionProxy",
        partial(pooled_async, asyncpg_pool, AsyncpgCaller),
    ),
    Kind("psycopg async", "postgresql", "psycopg.AsyncConnection", partial(raw_async, "psycopg async")),
    Kind(
        "psycopg async pool",
        "postgresql",
        "psycopg.AsyncConnection",
        partial(pooled_async, psycopg_async_pool, DriverCaller),
    ),
    Kind("aiosqlite", "sqlite", "aiosqlite.core.Connection", partial(raw_async, "aiosqlite")),
    Kind("asyncmy", "mariadb", "asyncmy.connection.Connection", partial(raw_async, "asyncmy")),
    Kind("asyncmy pool", "mariadb", "asyncmy.connection.Connection", partial(pooled_async, asyncmy_pool, DriverCaller)),
    Kind("aiomysql", "mariadb", "aiomysql.connection.Connection", partial(raw_async, "aiomysql")),
    Kind(
        "aiomysql pool",
        "mariadb",
        "aiomysql.connection.Connection",
        partial(pooled_async, aiomysql_pool, DriverCaller),
    ),
    *(
        Kind(
            f"AsyncConnection, {driver}",
            database,
            "sqlalchemy.ext.asyncio.engine.AsyncConnection",
            partial(sqlalchemy_async_connection, driver),
        )
        for driver, database in ASYNC_DRIVERS.items()
    ),
    *(
        Kind(f"{name}, {driver}", database, registered, partial(sqlalchemy_async_session, make, driver))
        for name, (registered, make) in ASYNC_SESSIONS.items()
        for driver, database in ASYNC_DRIVERS.items()
    ),
]
