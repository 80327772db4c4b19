"""Threads for users' sync functions: a call that does not end keeps its thread, and nobody else waits for it."""

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
    """All threads are taken: the function was not called."""


class _Call:
    """One call, the loop that waits for its end, and whether somebody there still does."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.function = function
        self.args = args
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()
        self.left = False

    def run(self) -> tuple[Any, BaseException | None]:
        """Result and error as a pair: some errors, as StopIteration, cannot travel through a future."""
        try:
            return self.function(*self.args), None
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            return None, error


class Threads:
    """So many threads at the most, made when they are needed. They do not keep a process from ending.

    Used from one event loop at a time.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self._name = name
        self._started = 0
        self._taken = 0
        self.left = 0
        """Calls that nobody waits for any more, because they took too long, and that have not ended yet."""
        self._work: SimpleQueue[tuple[_Call, Callable[[], object]] | None] = SimpleQueue()

    async def call(self, function: Callable[..., Any], *args: Any, ended: Callable[[], object] = lambda: None) -> Any:
        """Call a function in a thread; returns or raises what it does. Raises `NoFreeThread` at once if there is none.

        If this is cancelled, as by a time limit, the call goes on and its thread is not free before it ends. Then, and
        not before, `ended` is called.
        """
        if self._taken >= self.number:
            raise NoFreeThread(f"all {self.number} threads are taken")
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
                call.left = True
                self.left += 1
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the threads that are idle, and the others when their calls have ended."""
        for _ in range(self._started):
            self._work.put(None)

    def _run(self) -> None:
        while work := self._work.get():
            call, ended = work
            result = call.run()
            with suppress(RuntimeError):  # the loop may have ended meanwhile
                call.loop.call_soon_threadsafe(self._ended, call, result, ended)
            del work, call, ended, result  # or they would live until the next call

    def _ended(self, call: _Call, result: tuple[Any, BaseException | None], ended: Callable[[], object]) -> None:
        self._taken -= 1
        self.left -= call.left
        if not call.result.done():
            call.result.set_result(result)
        ended()
