"""Acts that take turns with other programs: each look says what it still waits for, until there is nothing."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.steps import Steps

T = TypeVar("T")
PAUSE = 0.2
"""Seconds between two looks at what is waited for."""


class Waiting:
    """Tells what is waited for, each time that changes, and for how long at most."""

    def __init__(self, timeout: float | None, progress: Callable[[str], None] | None) -> None:
        self._ends = None if timeout is None else time.monotonic() + timeout
        self._progress = progress
        self._told = ""

    def tell(self, waits: str) -> None:
        """Raises `TimeoutError` with it if the time is up."""
        if waits != self._told and self._progress is not None:
            self._progress(waits)
        self._told = waits
        if self._ends is not None and time.monotonic() >= self._ends:
            raise TimeoutError(waits)


class Patient:
    """The part of `Admin` that waits."""

    @abstractmethod
    def _run(self, steps: Steps[T]) -> T: ...

    def _until(self, advance: Callable[[], Steps[str]], waiting: Waiting) -> None:
        while waits := self._run(advance()):
            waiting.tell(waits)
            time.sleep(PAUSE)


class AsyncPatient:
    """`Patient` for async code."""

    @abstractmethod
    async def _run(self, steps: Steps[T]) -> T: ...

    async def _until(self, advance: Callable[[], Steps[str]], waiting: Waiting) -> None:
        while waits := await self._run(advance()):
            waiting.tell(waits)
            await asyncio.sleep(PAUSE)
