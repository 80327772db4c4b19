"""Connections that reconnect: one for each part of the work, opened again by themselves after an outage."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

from postroom.errors import CdcUnavailable, PostroomError, PrivilegeMissing, SchemaError
from postroom.runtime.backoff import Backoff
from postroom.runtime.time_limits import within
from postroom.store.connections.writes import Writes
from postroom.store.sql.db_errors import is_of_database, is_unable_to_write, reason
from postroom.store.sql.steps import Query
from postroom.telemetry.events import DATABASE, Denied, Reachability

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroom.store.connections.stores import ConnectionFactory, RunSteps
    from postroom.store.sql.steps import Steps
    from postroom.telemetry.events import Hook

T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
TIME_LIMIT = 30.0
"""Seconds for an operation, including opening its connection: a server that hangs neither answers nor refuses."""
QUICK = 5.0
"""The same for what must not take long, such as heartbeats: they find out that a server hangs."""
A_MOMENT = 2.0
"""Seconds for a server that did not answer to answer at all: otherwise it is away. Also for beats of many queues."""
CLOSING = 3.0
"""Seconds for a connection to close: drivers that wait for their server at all wait for two."""


class Outage(PostroomError):
    """The database did not do what it was asked; the connection was closed."""


class StatementTimedOut(Outage):
    """The database answers, but this operation took too long: it may have waited for a lock."""


class CannotWrite(Outage):
    """The database answers but stores nothing: its disk is full, or it is read-only."""


class ConnectionReplaced(Outage):
    """The operation was for a connection that no longer exists, and was not begun: the database may be there."""


class Database:
    """A store that may go away. Reports once that it did, and once that it is back."""

    def __init__(self, store: ConnectionFactory, hook: Hook) -> None:
        self.store = store
        self.reachable = True
        self.writes = True
        """False from when it refused to store anything until it has stored something."""
        self.outages = 0
        """How often it went away: a connection that was opened before the last time says nothing of it now."""
        self._connections: list[ReconnectingConnection] = []
        self._hook = hook
        self._flaws: set[str] = set()
        self._denials: set[str] = set()

    def connect(self, time_limit: float = TIME_LIMIT) -> ReconnectingConnection:
        """A connection for one part of the work, opened when it is first used. No operation may take longer."""
        connection = ReconnectingConnection(self, time_limit)
        self._connections.append(connection)
        return connection

    async def open_all(self) -> None:
        """Open all connections, if the database answers."""
        await asyncio.gather(*(connection.answers() for connection in self._connections))

    async def close(self) -> None:
        """Close all connections. Does not wait for long if the server hangs."""
        await asyncio.gather(*(connection.close() for connection in self._connections))

    def report(self, down: str | None) -> None:
        """Tell the hook when it goes away, for a reason, or comes back (None)."""
        if self.reachable != (down is None):
            self.reachable = down is None
            self.outages += down is not None
            self._hook(Reachability(DATABASE, self.reachable, down or ""))

    def note_denial(self, error: PrivilegeMissing) -> None:
        """Tell the hook what the database's user may not do: once, because it fails again with every try."""
        if str(error) not in self._denials:
            self._denials.add(str(error))
            self._hook(Denied(str(error)))

    def note_flaw(self, error: Exception) -> None:
        """Log an error of our own code, or of its input: each kind once, because it fails again with every try."""
        name = type(error).__name__
        if name not in self._flaws:
            self._flaws.add(name)
            logging.getLogger("postroom").error("an operation on the database has failed with %s", name)


class OpenConnection:
    """One connection: opened when it is first needed, and closed for good when an operation fails."""

    def __init__(self, store: ConnectionFactory) -> None:
        self._store = store
        self._stack = AsyncExitStack()
        self._run: RunSteps | None = None
        self.is_free = True
        """Idle: not at work, not closed, and not about to be closed because it failed."""

    async def work(self, steps: Steps[T]) -> T:
        """Run an operation."""
        self.is_free = False
        try:
            if self._run is None:
                self._run = await self._stack.enter_async_context(self._store.connection())
            result = await self._run(steps)
        except BaseException as error:  # if cancelled in the middle, a statement may still be under way
            await self.close(error)
            raise
        self.is_free = True
        return result

    async def close(self, error: BaseException) -> None:
        """Close it for good, for this reason, so that a pool does not wait for the server to get it back."""
        try:
            await self._stack.__aexit__(type(error), error, None)
        except Exception as again:  # noqa: BLE001 - it is the same error, or the connection is gone anyway
            del again


class ReconnectingConnection:
    """One connection, kept open between operations. One that failed is abandoned, and another takes its place."""

    def __init__(self, database: Database, time_limit: float) -> None:
        self._database = database
        self._time_limit = time_limit
        self._connection = OpenConnection(database.store)
        self.connections = 1
        """How many there were: the number of the one that is open, or the next to be opened."""
        self._outages = 0
        self._one_at_a_time = asyncio.Lock()

    async def attempt(self, steps: Steps[T], on: int | None = None) -> T:
        """Run an operation once, only `on` this connection if one is given.

        Raises `Outage`: it may have been done. What only an operator can mend is raised as it is.
        """
        async with self._one_at_a_time:
            return await self._attempt(steps, self._time_limit, on)

    async def _attempt(self, steps: Steps[T], time_limit: float, on: int | None = None) -> T:
        database = self._database
        if self._outages < database.outages:
            await self.close()  # it dates from before the outage
            self._outages = database.outages
        if on not in {None, self.connections}:
            raise ConnectionReplaced("its connection is gone")
        was_reachable = database.reachable
        writes = Writes()
        try:
            result = await self._work(steps if database.writes else writes.noted(steps), time_limit)
        except (SchemaError, CdcUnavailable):
            raise
        except Exception as error:
            await self._report(error, was_reachable=was_reachable)
            raise (CannotWrite if is_unable_to_write(error) else Outage)(str(error)) from error
        database.writes = database.writes or writes.any
        self._answered()
        return result

    async def _work(self, steps: Steps[T], time_limit: float) -> T:
        store = self._database.store
        # SQLite has limits of its own, and what runs in a thread cannot be cancelled.
        limit = None if store.names.dialect == "sqlite" else time_limit
        try:
            return await within(limit, self._connection.work(steps))
        except BaseException:
            self._replace()
            raise

    async def _report(self, error: Exception, *, was_reachable: bool) -> None:
        """Report that the database is away, if that is what the error means. Raises `StatementTimedOut`."""
        database = self._database
        if isinstance(error, PrivilegeMissing):
            database.note_denial(error)
        elif not is_of_database(error):
            database.note_flaw(error)
        elif isinstance(error, TimeoutError) and await self._answers_quickly():
            raise StatementTimedOut(str(error)) from error
        elif database.reachable and not was_reachable:
            pass  # it is about the outage that has just ended: another connection was answered first
        elif self._outages == database.outages:
            database.writes = database.writes and not is_unable_to_write(error)
            database.report(reason(error))

    async def _answers_quickly(self) -> bool:
        try:
            await self._work(_nothing(), A_MOMENT)
        except Exception as error:  # noqa: BLE001 - whatever it is, that is no answer
            del error
            return False
        self._answered()
        return True

    def _answered(self) -> None:
        database = self._database
        if self._outages == database.outages and database.writes:
            database.report(None)

    async def run(self, operation: Callable[[], Steps[T]]) -> T:
        """Run an operation until the database has done it."""
        return await until_done(self.attempt, operation)

    async def answers(self) -> bool:
        """Whether the database answers at all."""
        with suppress(Outage):
            async with self._one_at_a_time:
                await self._attempt(_nothing(), QUICK)
            return True
        return False

    async def close(self) -> None:
        """Close the connection for good. Does not wait for long if the server hangs."""
        connection = self._replace()
        if connection.is_free:
            with suppress(TimeoutError):
                await within(CLOSING, connection.close(Outage("the connection is closed")))

    def _replace(self) -> OpenConnection:
        connection, self._connection = self._connection, OpenConnection(self._database.store)
        self.connections += 1
        return connection


async def until_done(attempt: Callable[[Steps[T]], Awaitable[T]], operation: Callable[[], Steps[T]]) -> T:
    """Attempt an operation until the database has done it."""
    backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        try:
            return await attempt(operation())
        except Outage:
            await asyncio.sleep(backoff.next())


def _nothing() -> Steps[None]:
    yield Query("SELECT 1")
