"""Runnable: start, stop and run in the background, for relays and consumers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Generic, Protocol, Self, TypeVar

from postroom.runtime.error_groups import first_error_only

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType


class ActiveRun(Protocol):
    """One run, on one event loop."""

    async def run(self) -> None:
        """Work until `stop`."""
        ...

    def stop(self) -> None:
        """Ask the run to end soon."""
        ...


R = TypeVar("R", bound=ActiveRun)


class Runnable(ABC, Generic[R]):
    """Runs until it is stopped: with `run`, or in a task of its own for the duration of an ``async with`` block.

    Several runs may be active at a time, on any event loops.
    """

    def __init__(self) -> None:
        self._stop_asked = False
        self._active: dict[R, asyncio.AbstractEventLoop] = {}
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    def _open(self) -> AbstractAsyncContextManager[R]:
        """Everything that a run needs, opened and closed again. Raises if it cannot start."""

    def stop(self) -> None:
        """Ask all runs to end soon. Safe to call from any thread."""
        self._stop_asked = True
        self._signal(lambda run: run.stop())

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop and has not ended yet."""
        return self._stop_asked

    def _signal(self, action: Callable[[R], None]) -> None:
        """Do something to each active run, on its own event loop."""
        for run, loop in tuple(self._active.items()):
            with suppress(RuntimeError):  # the loop may have been closed
                loop.call_soon_threadsafe(action, run)

    @asynccontextmanager
    async def _new_run(self) -> AsyncIterator[R]:
        """A run that `stop` reaches, also if it was called before."""
        async with self._open() as run:
            self._active[run] = asyncio.get_running_loop()
            try:
                if self._stop_asked:
                    run.stop()
                with first_error_only():
                    yield run
            finally:
                del self._active[run]
                if not self._active:
                    self._stop_asked = False

    async def _run_in_background(self, started: asyncio.Event) -> None:
        async with self._new_run() as run:
            started.set()
            await run.run()

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
