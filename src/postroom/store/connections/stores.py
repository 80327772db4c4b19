"""Stores: Postroom's own connections to a database, sync and async, and running operations on them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from postroom.errors import DatabaseUnreachable, DriverMissing
from postroom.store.connections.async_engine import AsyncEngine, waiting_for
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.limits import Limits, break_off
from postroom.store.connections.pooled import UNPREPARED, PooledSession, is_direct, settings
from postroom.store.connections.urls import dialect_of_url, resolve, shown
from postroom.store.sql.db_errors import explained, reason
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, Result, Steps, arun, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

T = TypeVar("T")

_SESSION = {
    # Under REPEATABLE READ a claim would not see what others have settled.
    "postgresql": ("SET default_transaction_isolation = 'read committed'", settings(local=False)),
    "mysql": (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    ),  # otherwise gap locks of claims block producers
    "sqlite": ("PRAGMA busy_timeout = 30000", "PRAGMA synchronous = FULL"),
}


class RunSteps(Protocol):
    """Runs an operation to its end."""

    async def __call__(self, steps: Steps[T]) -> T: ...


class BlockingStore(Protocol):
    """The store that commands and sync code use."""

    names: Names

    def run(self, steps: Steps[T]) -> T: ...
    def call(self, function: Callable[[Connection], T]) -> T: ...
    def break_off(self) -> None: ...
    def close(self) -> None: ...


class Store:
    """A store for sync code. Operations make their own transactions; a statement outside of one commits by itself."""

    def __init__(
        self, url: str, schema: str | None = None, table_prefix: str | None = None, limits: Limits | None = None
    ) -> None:
        self.names = Names.of(dialect_of_url(url), schema, table_prefix)
        self._engine = create_engine(resolve(url), isolation_level="AUTOCOMMIT", pool_pre_ping=True)
        self._sessions = _Sessions(self._engine, self._engine.url, self.names.dialect, limits)

    @contextmanager
    def session(self) -> Iterator[Callable[[Query], Result]]:
        """One connection for several operations: `run(steps, execute)`."""
        with _reachable(self._engine.url), self._engine.connect() as connection:
            execute = driver_kind(connection.connection.driver_connection).execute
            session = PooledSession(self._sessions.limits)
            try:
                yield (lambda query: run(session.steps(query), execute)) if self._sessions.pooled else execute
            except BaseException:
                connection.invalidate()  # a transaction may have been left open on it
                raise

    def run(self, steps: Steps[T]) -> T:
        """Run one operation to its end."""
        with self.session() as execute:
            return run(explained(steps), execute)

    def call(self, function: Callable[[Connection], T]) -> T:
        """Call a function with an SQLAlchemy connection that does not autocommit."""
        engine = self._engine.execution_options(isolation_level=_transactional(self.names.dialect))
        with _reachable(engine.url), engine.connect() as connection:
            return function(connection)

    def break_off(self) -> None:
        """Close all connections, from any thread: operations that wait for the server fail, and none can start."""
        self._sessions.break_off()

    def close(self) -> None:
        self._engine.dispose()


class AsyncStore:
    """A store for async code, on the driver's own connections: SQLAlchemy only opens and pools them."""

    def __init__(
        self, url: str, schema: str | None = None, table_prefix: str | None = None, limits: Limits | None = None
    ) -> None:
        self.names = Names.of(dialect_of_url(url), schema, table_prefix)
        self._engine = AsyncEngine(resolve(url, asynchronous=True))
        self._sessions = _Sessions(self._engine.sync, self._engine.url, self.names.dialect, limits)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Callable[[Query], Awaitable[Result]]]:
        """One connection for several operations: `await arun(steps, execute)`."""
        with _reachable(self._engine.url):
            async with self._engine.connect() as connection:
                execute = driver_kind(connection.connection.driver_connection).execute
                session = PooledSession(self._sessions.limits)
                try:
                    yield (lambda query: arun(session.steps(query), execute)) if self._sessions.pooled else execute
                except BaseException:
                    await waiting_for(connection.invalidate)  # a transaction may have been left open on it
                    raise

    async def run(self, steps: Steps[T]) -> T:
        """Run one operation to its end."""
        async with self.session() as execute:
            return await arun(explained(steps), execute)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[RunSteps]:
        """A connection for one operation after another."""
        async with self.session() as execute:

            async def run_steps(steps: Steps[T]) -> T:
                return await arun(explained(steps), execute)

            yield run_steps

    async def call(self, function: Callable[[Connection], T]) -> T:
        """Call a function with an SQLAlchemy connection that does not autocommit."""
        level = _transactional(self.names.dialect)
        with _reachable(self._engine.url):
            async with self._engine.connect(isolation_level=level) as connection:
                return await waiting_for(function, connection)

    async def close(self) -> None:
        await self._engine.dispose()


class ConnectionFactory(Protocol):
    """The store that relays and consumers use: connections that each run one operation after another."""

    names: Names

    def connection(self) -> AbstractAsyncContextManager[RunSteps]: ...
    async def call(self, function: Callable[[Connection], T]) -> T: ...
    async def close(self) -> None: ...


class ThreadStore:
    """A store for async code on top of a sync one, whose operations run in one thread, one after another.

    For SQLite, which has one writer at a time anyway: a transaction never waits for the event loop, and the relay's
    parts never wait for each other's locks.
    """

    def __init__(self, store: BlockingStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, "postroom-store")
        self.names = store.names

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[RunSteps]:
        yield self._run

    async def call(self, function: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._store.call, function)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        self._thread.shutdown(wait=False)

    async def _run(self, steps: Steps[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._store.run, steps)


class BridgedStore:
    """A store for sync code if only an async driver is installed."""

    def __init__(
        self, url: str, schema: str | None = None, table_prefix: str | None = None, limits: Limits | None = None
    ) -> None:
        self._store = AsyncStore(url, schema, table_prefix, limits)
        self._runner = asyncio.Runner()
        self._seconds = None if limits is None else limits.answer
        self.names = self._store.names

    def run(self, steps: Steps[T]) -> T:
        return self._runner.run(asyncio.wait_for(self._store.run(steps), self._seconds))

    def call(self, function: Callable[[Connection], T]) -> T:
        return self._runner.run(asyncio.wait_for(self._store.call(function), self._seconds))

    def break_off(self) -> None:
        """Do nothing: an operation stops waiting by itself."""

    def close(self) -> None:
        self._runner.run(self._store.close())
        self._runner.close()


def open_store(
    url: str, schema: str | None = None, table_prefix: str | None = None, limits: Limits | None = None
) -> BlockingStore:
    """A store for sync code, with whichever driver is installed. Raises `DriverMissing` if none is."""
    try:
        return Store(url, schema, table_prefix, limits)
    except DriverMissing as missing:
        try:
            return BridgedStore(url, schema, table_prefix, limits)
        except DriverMissing:
            raise missing from None


class _Sessions:
    """Opens an engine's connections, and detects whether they go through a pooler."""

    def __init__(self, engine: Engine, url: URL, dialect: str, limits: Limits | None) -> None:
        self.pooled = False
        self.limits = limits
        self._url = url
        self._driver = engine.dialect.driver
        self._settings = (*_SESSION[dialect], *([limits.session(dialect)] if limits else ()))
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._noting = threading.Lock()
        self._broken_off = False
        self._may_be_pooled = dialect == "postgresql"
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", self._prepare)

    def _connect(self, driver: Any, _record: object, arguments: Any, options: Any) -> Any:
        try:
            connection = self._connected(driver, arguments, options)
            if self._may_be_pooled and not self.pooled and not self._is_direct(connection):
                connection.close()
                self.pooled = True
                connection = self._connected(driver, arguments, options)
        except Exception as error:  # drivers raise anything, such as a TypeError for an unknown option in the URL
            raise DatabaseUnreachable(_unreachable(self._url, error)) from error
        return connection

    def break_off(self) -> None:
        with self._noting:
            self._broken_off, connections = True, list(self._open)
        for connection in connections:
            break_off(connection)

    def _connected(self, driver: Any, arguments: Any, options: Any) -> Any:
        connection = driver.connect(*arguments, **self._options(options))
        with self._noting:
            if not self._broken_off:
                if self.limits and hasattr(connection, "fileno"):
                    self._open.add(connection)
                return connection
        connection.close()
        raise ConnectionAbortedError("it did not answer in time")

    def _is_direct(self, connection: Any) -> bool:
        try:
            return is_direct(connection)
        except BaseException:  # also if cancelled: nobody else has it yet
            break_off(connection)
            connection.close()
            raise

    def _options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        limited = {**self.limits.options(self._driver), **given} if self.limits else given
        return {**limited, **UNPREPARED[self._driver]} if self.pooled else limited

    def _prepare(self, connection: Any, _record: object) -> None:
        if self.pooled:
            return
        cursor = connection.cursor()
        for statement in self._settings:
            cursor.execute(statement)
        cursor.close()


def _transactional(dialect: str) -> str:
    return "SERIALIZABLE" if dialect == "sqlite" else "READ COMMITTED"


@contextmanager
def _reachable(url: URL) -> Iterator[None]:
    """Raise connection errors as `DatabaseUnreachable`, without the URL's secrets."""
    try:
        yield
    except (DBAPIError, OSError) as error:
        if not isinstance(error, OSError) and not _is_connection_error(error):
            raise
        raise DatabaseUnreachable(_unreachable(url, error)) from error


def _unreachable(url: URL, error: Exception) -> str:
    return f"the database {shown(url)} cannot be reached: {reason(error)}"


def _is_connection_error(error: DBAPIError) -> bool:
    return error.statement is None or error.connection_invalidated
