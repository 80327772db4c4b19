"""Background work: ``async with`` starts it and stops it again."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


class Background(ABC):
    """Something that runs in a task of its own for the duration of an ``async with`` block."""

    _task: asyncio.Task[None] | None = None

    @abstractmethod
    def stop(self) -> None:
        """Ask the run to end soon."""

    @abstractmethod
    async def _run_in_background(self, started: asyncio.Event) -> None:
        """Run until `stop`, and set `started` once it is running. Raises if it cannot start."""

    async def __aenter__(self) -> Self:
        started = asyncio.Event()
        name = f"postroom-{type(self).__name__.lower()}"
        self._task = asyncio.create_task(self._run_in_background(started), name=name)
        starting = asyncio.create_task(started.wait())
        await asyncio.wait({self._task, starting}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if self._task.done():
            self._task.result()  # raises why it could not start
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            if not self._task.done():  # else the request to stop would end the next run
                self.stop()
            await self._task
