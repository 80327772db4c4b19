"""Errands: one operation on a line that is opened for it and released after it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from postroom.errors import WrongMethod
from postroom.store.sql.db_errors import explained
from postroom.store.sql.steps import Steps, arun, run
from postroom.twophase.rounds import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.twophase.lines import Line, Opener

T = TypeVar("T")


class Errand(Generic[T]):
    """One operation on a database. A line on which it fails is not used again."""

    def __init__(self, opener: Opener, operation: Callable[[Line], Steps[T]]) -> None:
        self._opener = opener
        self._operation = operation
        self._line: Line | None = None
        self._given_up = False

    def run(self) -> T:
        """Open a line, do it, and release the line."""
        line = self._line = self._opener.open()
        try:
            self._require_waiting()
            return run(explained(self._operation(line)), line.execute)
        except BaseException:
            line.break_off()
            raise
        finally:
            with suppress(Exception):  # what the operation said counts, not what becomes of the line
                line.release()

    async def arun(self) -> T:
        """`run` for async code; in a thread if there are only sync lines."""
        try:
            line = self._line = await self._opener.aopen()
        except WrongMethod:
            return await in_thread(self.run)
        try:
            return await arun(explained(self._operation(line)), line.execute)
        except BaseException:
            line.break_off()
            raise
        finally:
            with suppress(Exception):
                await line.release()

    def _require_waiting(self) -> None:
        if self._given_up:  # it waited for a pool or a server, and nobody waits for it any more
            raise ConnectionAbortedError("the connection came too late")

    def give_up(self) -> None:
        """End it, from any thread."""
        self._given_up = True
        if self._line is not None:
            self._line.break_off()
