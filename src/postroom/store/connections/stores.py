"""Stores: Postroom's own connections to a database, sync and async, and running operations on them."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from postroom.errors import DriverMissing
from postroom.store.connections import opening
from postroom.store.connections.connector import Connector
from postroom.store.connections.kept import AsyncKeptConnections, KeptConnections
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.pooled import PooledSession
from postroom.store.connections.urls import dialect_of_url, with_driver
from postroom.store.sql.db_errors import explained
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, Result, Steps, arun, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from sqlalchemy import Connection

    from postroom.store.connections.limits import Limits

T = TypeVar("T")


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
        self.connector = Connector(with_driver(url), limits)
        self._kept = KeptConnections(self.connector)

    @contextmanager
    def session(self) -> Iterator[Callable[[Query], Result]]:
        """One connection for several operations: `run(steps, execute)`."""
        with self.connector.reachable():
            connection = self._kept.take()
            try:
                yield self._execute(connection)
            except BaseException:
                opening.close(connection)  # a transaction may have been left open on it
                raise
            self._kept.give_back(connection)

    def run(self, steps: Steps[T]) -> T:
        """Run one operation to its end."""
        with self.session() as execute:
            return run(explained(steps), execute)

    def call(self, function: Callable[[Connection], T]) -> T:
        """Call a function with an SQLAlchemy connection that does not autocommit."""
        from postroom.store.connections.sqlalchemy_calls import call  # which loads SQLAlchemy

        return call(self.connector, function)

    def break_off(self) -> None:
        """Close all connections, from any thread: operations that wait for the server fail, and none can start."""
        self.connector.break_off()

    def close(self) -> None:
        self._kept.close()

    def _execute(self, connection: Any) -> Callable[[Query], Result]:
        execute: Callable[[Query], Result] = driver_kind(connection).execute
        if not self.connector.pooled:
            return execute
        session = PooledSession(self.connector.limits)
        return lambda query: run(session.steps(query), execute)


class AsyncStore:
    """A store for async code."""

    def __init__(
        self, url: str, schema: str | None = None, table_prefix: str | None = None, limits: Limits | None = None
    ) -> None:
        self.names = Names.of(dialect_of_url(url), schema, table_prefix)
        self.connector = Connector(with_driver(url, asynchronous=True), limits)
        self._kept = AsyncKeptConnections(self.connector)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Callable[[Query], Awaitable[Result]]]:
        """One connection for several operations: `await arun(steps, execute)`."""
        with self.connector.reachable():
            connection = await self._kept.take()
            try:
                yield self._execute(connection)
            except BaseException:
                await opening.aclose(connection)  # a transaction may have been left open on it
                raise
            await self._kept.give_back(connection)

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
        from postroom.store.connections.sqlalchemy_calls import acall  # which loads SQLAlchemy

        return await acall(self.connector, function)

    async def close(self) -> None:
        await self._kept.close()

    def _execute(self, connection: Any) -> Callable[[Query], Awaitable[Result]]:
        execute: Callable[[Query], Awaitable[Result]] = driver_kind(connection).execute
        if not self.connector.pooled:
            return execute
        session = PooledSession(self.connector.limits)
        return lambda query: arun(session.steps(query), execute)


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
