"""The relay's connections: one for each part of the work, opened again by themselves after an outage."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from postroom.errors import PostroomError, SchemaError
from postroom.store.db_errors import reason
from postroom.store.steps import Query
from postroom.telemetry import DATABASE, Reachability

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.steps import Steps
    from postroom.store.stores import Lines, Run
    from postroom.telemetry import Hook

T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Outage(PostroomError):
    """The database did not do what it was asked; the connection was closed."""


class Database:
    """A store that may go away. Says once that it did, and once that it is back."""

    def __init__(self, store: Lines, hook: Hook) -> None:
        self.store = store
        self.lines: list[Line] = []
        """All that were made."""
        self.reachable = True
        self.outages = 0
        """How often it went away: a connection that was opened before the last time says nothing of it now."""
        self._hook = hook

    def line(self) -> Line:
        """A connection of its own for one part of the work."""
        line = Line(self)
        self.lines.append(line)
        return line

    def report(self, down: str | None) -> None:
        """Tell the hook when it goes away, for a reason, or comes back (None)."""
        if self.reachable != (down is None):
            self.reachable = down is None
            self.outages += down is not None
            self._hook(Reachability(DATABASE, self.reachable, down or ""))


@dataclass(frozen=True, slots=True)
class ShiftLines:
    """The lines of one shift. Some may be the same: a line does one thing at a time."""

    settlements: Line
    beats: Line
    claims: tuple[Line, Line]
    reads: tuple[Line, Line]

    @classmethod
    def all_its_own(cls, database: Database) -> ShiftLines:
        """As fast as it can be: for a relay with one shift."""
        settlements, beats, *others = (database.line() for _ in range(6))
        return cls(settlements, beats, (others[0], others[1]), (others[2], others[3]))

    @classmethod
    def sparing(cls, database: Database, beats: Line) -> ShiftLines:
        """Three of its own: for a relay with many shifts, whose hearts share one."""
        claims, reads = database.line(), database.line()
        return cls(database.line(), beats, (claims, claims), (reads, reads))


class Line:
    """One connection, kept open between operations."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stack = AsyncExitStack()
        self._run: Run | None = None
        self._outages = 0
        self._one_at_a_time = asyncio.Lock()

    async def attempt(self, steps: Steps[T]) -> T:
        """Run an operation once. Raises `Outage`, after which its outcome may be unknown."""
        async with self._one_at_a_time:
            return await self._attempt(steps)

    async def _attempt(self, steps: Steps[T]) -> T:
        database = self._database
        if self._outages < database.outages:
            await self.close(Outage("the connection is as old as an outage"))
            self._outages = database.outages
        try:
            if self._run is None:
                self._run = await self._stack.enter_async_context(database.store.line())
            result = await self._run(steps)
        except SchemaError:
            raise
        except Exception as error:
            await self.close(error)
            if self._outages == database.outages:
                database.report(reason(error))
            raise Outage(str(error)) from error
        except BaseException as error:
            await self.close(error)  # cancelled in the middle: a statement may still be under way
            raise
        if self._outages == database.outages:
            database.report(None)
        return result

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
            await self.attempt(_nothing())
            return True
        return False

    async def close(self, error: BaseException | None = None) -> None:
        """Give the connection back, or, after an error, close it for good."""
        self._run = None
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.__aexit__(type(error) if error else None, error, None)
        except Exception as again:  # noqa: BLE001 - it is the error we came with, or the connection is gone anyway
            del again


def _nothing() -> Steps[None]:
    yield Query("SELECT 1")
