"""Threads for users' sync functions: a call that hangs keeps its own thread and blocks nobody else."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from postroom.errors import PostroomError

if TYPE_CHECKING:
    from collections.abc import Callable


class NoFreeThread(PostroomError):
    """All threads are busy: the function was not called."""


class _Call:
    """One call, and the event loop that waits for its result."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()
        self.abandoned = False

    def run(self) -> tuple[Any, BaseException | None]:
        """Return result and error as a pair: some errors, such as StopIteration, cannot travel through a future."""
        try:
            return self.function(*self.args), None
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            return None, error


class Threads:
    """Up to `number` threads, started when they are needed. They never keep the process alive.

    Used from one event loop at a time.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self._name = name
        self._started = 0
        self._taken = 0
        self.abandoned = 0
        """Calls that are still running although their caller has given up on them."""
        self._work: SimpleQueue[tuple[_Call, Callable[[], object]] | None] = SimpleQueue()

    async def call(self, function: Callable[..., Any], *args: Any, ended: Callable[[], object] = lambda: None) -> Any:
        """Call a function in a thread, and return or raise what it does. Raises `NoFreeThread` at once if none is free.

        If the caller is cancelled, for example by a time limit, the function keeps running and keeps its thread. Once
        it has ended, and only then, `ended` is called.
        """
        if self._taken >= self.number:
            raise NoFreeThread(f"all {self.number} threads are busy")
        self._taken += 1
        if self._started < self._taken:
            self._started += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
        call = _Call(function, args)
        self._work.put((call, ended))
        try:
            result, error = await call.result
        except BaseException:
            if not call.result.done() or call.result.cancelled():
                call.abandoned = True
                self.abandoned += 1
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End idle threads now, and busy ones when their calls end."""
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while work := self._work.get():
            call, ended = work
            result = call.run()
            with suppress(RuntimeError):  # the loop may have been closed
                call.loop.call_soon_threadsafe(self._ended, call, result, ended)
            del work, call, ended, result  # else they would stay alive until the next call

    def _ended(self, call: _Call, result: tuple[Any, BaseException | None], ended: Callable[[], object]) -> None:
        self._taken -= 1
        self.abandoned -= call.abandoned
        if not call.result.done():
            call.result.set_result(result)
        ended()
