"""The relay's connections: one for each part of the work, opened again by themselves after an outage."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from postroom.errors import PostroomError, PrivilegeMissing, SchemaError
from postroom.runtime.time_limits import within
from postroom.store.sql.db_errors import is_of_database, reason
from postroom.store.sql.steps import Query
from postroom.telemetry.events import DATABASE, Denied, Reachability

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.connections.stores import ConnectionFactory, Run
    from postroom.store.sql.steps import Steps
    from postroom.telemetry.events import Hook

T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0
PATIENCE = 30.0
"""Seconds for an operation, with opening its connection: a server that hangs does not answer, and does not refuse."""
QUICK = 5.0
"""The same for what must not take long, as the heart's beats: by them it is found out."""
A_MOMENT = 2.0
"""Seconds for a server that did not answer to answer at all: else it is away."""
CLOSING = 3.0
"""Seconds for a connection to end: drivers wait for their server first, those that wait at all for two."""


class Outage(PostroomError):
    """The database did not do what it was asked; the connection was closed."""


class ConnectionReplaced(Outage):
    """The operation was for a connection that there is no more, and was not begun: the database may be there."""


class Database:
    """A store that may go away. Says once that it did, and once that it is back."""

    def __init__(self, store: ConnectionFactory, hook: Hook) -> None:
        self.store = store
        self.lines: list[ReconnectingConnection] = []
        """All that were made."""
        self.reachable = True
        self.outages = 0
        """How often it went away: a connection that was opened before the last time says nothing of it now."""
        self._hook = hook
        self._flaws: set[str] = set()
        self._denials: set[str] = set()

    def line(self, patience: float = PATIENCE) -> ReconnectingConnection:
        """A connection of its own for one part of the work, of which none takes longer."""
        line = ReconnectingConnection(self, patience)
        self.lines.append(line)
        return line

    def report(self, down: str | None) -> None:
        """Tell the hook when it goes away, for a reason, or comes back (None)."""
        if self.reachable != (down is None):
            self.reachable = down is None
            self.outages += down is not None
            self._hook(Reachability(DATABASE, self.reachable, down or ""))

    def note_denial(self, error: PrivilegeMissing) -> None:
        """Tell the hook what the database's user may not do: once, as it comes again with every try."""
        if str(error) not in self._denials:
            self._denials.add(str(error))
            self._hook(Denied(str(error)))

    def note_flaw(self, error: Exception) -> None:
        """Log an error of our own code, or of what it was given: each kind once, as it comes again with every try."""
        name = type(error).__name__
        if name not in self._flaws:
            self._flaws.add(name)
            logging.getLogger("postroom").error("an operation on the database has failed with %s", name)


@dataclass(frozen=True, slots=True)
class ShiftLines:
    """The lines of one shift. Some may be the same: a line does one thing at a time."""

    settlements: ReconnectingConnection
    beats: ReconnectingConnection
    claims: tuple[ReconnectingConnection, ReconnectingConnection]
    reads: tuple[ReconnectingConnection, ReconnectingConnection]

    @classmethod
    def all_its_own(cls, database: Database) -> ShiftLines:
        """As fast as it can be: for a relay with one shift."""
        settlements, *others = (database.line() for _ in range(5))
        return cls(settlements, database.line(QUICK), (others[0], others[1]), (others[2], others[3]))

    @classmethod
    def sparing(cls, database: Database, beats: ReconnectingConnection) -> ShiftLines:
        """Three of its own: for a relay with many shifts, whose hearts share one."""
        claims, reads = database.line(), database.line()
        return cls(database.line(), beats, (claims, claims), (reads, reads))


class OpenConnection:
    """One connection: opened when it is first needed, and closed for good by itself when an operation fails."""

    def __init__(self, store: ConnectionFactory) -> None:
        self._store = store
        self._stack = AsyncExitStack()
        self._run: Run | None = None
        self.is_free = True
        """Not at work; and not closed, nor about to be because it failed."""

    async def work(self, steps: Steps[T]) -> T:
        """Run an operation."""
        self.is_free = False
        try:
            if self._run is None:
                self._run = await self._stack.enter_async_context(self._store.line())
            result = await self._run(steps)
        except BaseException as error:  # if cancelled in the middle, a statement may still be under way
            await self.close(error)
            raise
        self.is_free = True
        return result

    async def close(self, error: BaseException) -> None:
        """Close it for good, for this reason: a pool that gets it back may wait for the server when it is closed."""
        try:
            await self._stack.__aexit__(type(error), error, None)
        except Exception as again:  # noqa: BLE001 - it is the error we came with, or the connection is gone anyway
            del again


class ReconnectingConnection:
    """One connection, kept open between operations. One that failed is left to itself, and another takes its place."""

    def __init__(self, database: Database, patience: float) -> None:
        self._database = database
        self._patience = patience
        self._connection = OpenConnection(database.store)
        self.connections = 1
        """How many there were: a number for the one that is open, or the next to be opened."""
        self._outages = 0
        self._one_at_a_time = asyncio.Lock()

    async def attempt(self, steps: Steps[T], on: int | None = None) -> T:
        """Run an operation once, `on` this connection if it is given. Raises `Outage`: its outcome may be unknown."""
        async with self._one_at_a_time:
            return await self._attempt(steps, self._patience, on)

    async def _attempt(self, steps: Steps[T], patience: float, on: int | None = None) -> T:
        database = self._database
        if self._outages < database.outages:
            await self.close()  # as old as an outage
            self._outages = database.outages
        if on not in {None, self.connections}:
            raise ConnectionReplaced("the connection that it was for is gone")
        try:
            result = await self._work(steps, patience)
        except SchemaError:
            raise
        except Exception as error:
            await self._report(error)
            raise Outage(str(error)) from error
        self._answered()
        return result

    async def _work(self, steps: Steps[T], patience: float) -> T:
        store = self._database.store
        # SQLite has limits of its own, and what runs in a thread cannot be ended: it would only be disowned.
        limit = None if store.names.dialect == "sqlite" else patience
        try:
            return await within(limit, self._connection.work(steps))
        except BaseException:
            self._replace()
            raise

    async def _report(self, error: Exception) -> None:
        """Say that the database is away, where this error means that."""
        database = self._database
        if isinstance(error, PrivilegeMissing):
            database.note_denial(error)
        elif not is_of_database(error):
            database.note_flaw(error)
        elif isinstance(error, TimeoutError) and await self._answers_quickly():
            pass  # it was the statement: it may have waited for a lock
        elif self._outages == database.outages:
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
        if self._outages == self._database.outages:
            self._database.report(None)

    async def run(self, operation: Callable[[], Steps[T]]) -> T:
        """Run an operation, again and again until the database has done it."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await self.attempt(operation())
            except Outage:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

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
                await within(CLOSING, connection.close(Outage("the line is closed")))

    def _replace(self) -> OpenConnection:
        connection, self._connection = self._connection, OpenConnection(self._database.store)
        self.connections += 1
        return connection


def _nothing() -> Steps[None]:
    yield Query("SELECT 1")
