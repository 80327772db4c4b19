"""Transactions for users' functions, sync or async, on the service's own database."""

from __future__ import annotations

import inspect
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine

from postroom.errors import DatabaseUnreachable, DriverMissing, InvalidSetting, PostroomError
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.connections.urls import dialect_of_url, resolve
from postroom.store.sql.db_errors import is_of_database, reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator

WHAT = (
    "give an SQLAlchemy engine or sessionmaker (or their async forms), or a function that returns a context manager, "
    "whose end commits"
)
BUSY_SECONDS = 30
DRIVER = "driver"
"""Given instead of an engine: functions get a connection of PostgreSQL's driver, which is psycopg's or asyncpg's."""


class Transactions:
    """Opens transactions, which commit at the end of their block, or roll back if it raises."""

    def __init__(self, given: object, database: str | None, function: str = "handler", kept: int = 5) -> None:
        """`given` is an engine, a sessionmaker, a function or `DRIVER`; None for engines made from the database's URL.

        `function` is what errors call the functions that run in them. So many connections are `kept` open between them.
        """
        self._of_driver = isinstance(given, str) and given == DRIVER
        if self._of_driver and database is not None and dialect_of_url(database) != "postgresql":
            raise InvalidSetting(f"transactions = {DRIVER!r} is for PostgreSQL only: leave it out, or {WHAT}")
        if given is not None and not self._of_driver and not hasattr(given, "begin") and not callable(given):
            raise InvalidSetting(f"transactions = {given!r} opens none: {WHAT}")
        self._given = None if self._of_driver else given
        self._database = database
        self._function = function
        self._kept = kept
        self._engines: list[Any] = []
        self._sync_engine: Any = None
        self._kept_async_engine: Any = None
        self._sync: Callable[[], Any] | None = None
        self._async: Callable[[], Any] | None = None

    def blocking(self) -> AbstractContextManager[Any]:
        """A transaction for a sync function. Raises `InvalidSetting` if there are only async ones."""
        if self._sync is None:
            self._sync = self._opener() or partial(self._begin, self._engine())
        manager = self._sync()
        if not hasattr(manager, "__enter__"):
            if inspect.iscoroutine(manager):
                manager.close()
            raise InvalidSetting(
                f"a sync {self._function} needs a sync transaction, and `transactions` gives {_kind(manager)}: make "
                f"the {self._function} async, or give an Engine, a sessionmaker or a sync context manager"
            )
        found: AbstractContextManager[Any] = manager
        return found

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[Any]:
        """A transaction for an async function. Raises `InvalidSetting` if there are only sync ones."""
        if self._async is None:
            self._async = self._opener() or (
                self._abegin_driver if self._of_driver else partial(self._abegin, self._async_engine())
            )
        manager: Any = self._async()
        if inspect.isawaitable(manager) and not hasattr(manager, "__aenter__"):
            manager = await manager
        if not hasattr(manager, "__aenter__"):
            raise InvalidSetting(
                f"an async {self._function} needs an async transaction, and `transactions` gives {_kind(manager)}: "
                f"make the {self._function} sync, or give an AsyncEngine, an async_sessionmaker or an async context "
                "manager"
            )
        found: AbstractAsyncContextManager[Any] = manager
        async with found as connection:
            yield connection

    def can_keep(self, *, asynchronous: bool) -> bool:
        """Whether `kept` or `akept` can be used: the connections are ours, and of psycopg or asyncpg."""
        if self._given is not None or self._database is None or (asynchronous and not self._of_driver):
            return False
        wanted = "postgresql+asyncpg" if asynchronous else "postgresql+psycopg"
        return _driver(self._database, asynchronous=asynchronous) == wanted

    @contextmanager
    def kept(self) -> Iterator[tuple[Any, Any]]:
        """A connection of SQLAlchemy for one transaction after another, and what sync functions get of it."""
        engine = self._engine()
        with self._closed_if_late(engine), engine.connect() as connection:
            try:
                yield connection, _driver_of(connection) if self._of_driver else connection
            except BaseException:
                if not connection.closed and _driver_of(connection).closed:
                    connection.invalidate()
                raise

    @asynccontextmanager
    async def akept(self) -> AsyncIterator[Any]:
        """A connection of asyncpg for one transaction after another. One that is left in a transaction is closed."""
        if self._kept_async_engine is None:
            self._kept_async_engine = self._async_engine(isolation_level="AUTOCOMMIT")
        async with self._kept_async_engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            try:
                yield driver
            finally:
                if driver.is_closed() or driver.is_in_transaction():
                    await connection.invalidate()

    async def check(
        self, are_async: Collection[bool], in_thread: Callable[[Callable[[], None]], Awaitable[None]]
    ) -> None:
        """Open a transaction for sync functions, for async ones, or one for each, and leave it.

        Raises `InvalidSetting`, `UnusableConnection` or `DatabaseUnreachable`.
        """
        try:
            if True in are_async:
                async with self.waiting() as connection:
                    await async_kind(connection, "inbox.afirst_time")
            if False in are_async:
                await in_thread(self._check_blocking)
        except PostroomError:
            raise
        except Exception as error:
            problem = f"no transaction can be opened for {self._function}s: "
            if is_of_database(error):
                raise DatabaseUnreachable(f"{problem}{reason(error)}") from error
            raise InvalidSetting(f"{problem}`transactions` raises {type(error).__name__}: {error}; {WHAT}") from error

    def _check_blocking(self) -> None:
        with self.blocking() as connection:
            sync_kind(connection, "inbox.first_time")

    async def close(self) -> None:
        """Close the engines that were made here."""
        engines, self._engines = self._engines, []
        for engine in engines:
            closing = engine.dispose()
            if inspect.isawaitable(closing):
                await closing
        self._sync = self._async = self._sync_engine = self._kept_async_engine = None

    def close_blocking(self) -> None:
        """`close` for sync code, if no async function has had a transaction."""
        engines, self._engines = self._engines, []
        for engine in engines:
            engine.dispose()
        self._sync = self._sync_engine = None

    @contextmanager
    def _begin(self, engine: Any) -> Iterator[Any]:
        with self._closed_if_late(engine), engine.begin() as connection:
            yield _driver_of(connection) if self._of_driver else connection

    @contextmanager
    def _closed_if_late(self, engine: Any) -> Iterator[None]:
        """A connection that comes back after `close`, from a function that took too long, is closed by nobody else."""
        pool = engine.pool
        try:
            yield
        finally:
            if engine not in self._engines:
                pool.dispose()

    @asynccontextmanager
    async def _abegin_driver(self) -> AsyncIterator[Any]:
        async with self.akept() as driver, driver.transaction():
            yield driver

    @asynccontextmanager
    async def _abegin(self, engine: Any) -> AsyncIterator[Any]:
        async with engine.begin() as connection:
            try:
                yield connection
            except BaseException:
                if engine not in self._engines:
                    await connection.invalidate()
                raise

    def _opener(self) -> Callable[[], Any] | None:
        given: Any = self._given
        opener: Callable[[], Any] | None = getattr(given, "begin", given)
        return opener

    def _engine(self) -> Any:
        """The only one for sync functions: two pools would keep twice as many connections open."""
        engine = self._sync_engine
        if engine is None:
            url = self._url()
            engine = create_engine(resolve(url), connect_args=_lock_timeout(url), **_pool(url, self._kept))
            self._engines.append(engine)
            self._sync_engine = engine
        return engine

    def _async_engine(self, **options: Any) -> Any:
        url = self._url()
        try:
            from sqlalchemy.ext.asyncio import create_async_engine
        except ImportError:
            raise DriverMissing(f"async {self._function}s need greenlet: pip install 'postroom[asyncio]'") from None
        engine = create_async_engine(
            resolve(url, asynchronous=True), connect_args=_lock_timeout(url), **_pool(url, self._kept), **options
        )
        self._engines.append(engine)
        return engine

    def _url(self) -> str:
        if self._database is None:
            raise InvalidSetting("no database is given: use database=… or --database URL, or set POSTROOM_DATABASE")
        return self._database


@lru_cache(maxsize=16)
def _driver(url: str, *, asynchronous: bool) -> str:
    return resolve(url, asynchronous=asynchronous).drivername


def _driver_of(connection: Any) -> Any:
    return connection.connection.driver_connection


def _lock_timeout(url: str) -> dict[str, Any]:
    """Wait for a while on SQLite, which has one writer at a time: others may be writing."""
    return {"timeout": BUSY_SECONDS} if dialect_of_url(url) == "sqlite" else {}


def _pool(url: str, kept: int) -> dict[str, Any]:
    """Allow a connection for every call: a call that hangs keeps its own, and others must not wait for it."""
    return {} if dialect_of_url(url) == "sqlite" else {"pool_size": kept, "max_overflow": -1}


def _kind(manager: object) -> str:
    return f"{type(manager).__module__}.{type(manager).__qualname__}"
