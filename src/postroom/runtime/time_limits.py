"""Time limits: cancel work that takes too long, and leave it behind if it does not react."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine
    from types import TracebackType

T = TypeVar("T")

GRACE = 1.0
"""Seconds that cancelled work gets to finish: a driver asks its server to cancel the statement, and waits for that."""

_left_behind: set[asyncio.Task[Any]] = set()


async def within(seconds: float | None, work: Coroutine[Any, Any, T], *, grace: float | None = None) -> T:
    """Run the work. Raises what it raises, or `TimeoutError` when the time is up.

    In that case, and when the caller is cancelled, the work is cancelled too. It may still be running after ``grace``
    seconds, by default `GRACE`: whatever it uses must be its own.
    """
    task = begin(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise TimeoutError(f"no answer within {seconds:g} s")
    finally:
        if not task.done():
            await end([task], GRACE if grace is None else grace)


class TimeLimits:
    """Time limits as `asyncio.timeout` sets them, with one timer for all: most blocks end long before their time is up.

    Used from one event loop at a time. The timer is not cancelled when a block ends: it rings, and finds nothing to do.
    """

    def __init__(self) -> None:
        self.running: dict[_Limit, float] = {}
        """When each block has to end, by the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """On which the timer runs."""

    def limit(self, seconds: float) -> _Limit:
        """A context manager: cancels what is awaited in its block when the time is up, and raises `TimeoutError`."""
        return _Limit(self, seconds)

    def ring_at(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """See to it that the timer rings by then."""
        if self._timer is not None and self._loop is loop:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._loop = loop
        self._timer = loop.call_at(due, self._ring, loop, due)

    def _ring(self, loop: asyncio.AbstractEventLoop, set_for: float) -> None:
        self._timer = None
        now = max(set_for, loop.time())  # the event loop may be a little early
        for limit, due in self.running.items():
            if due <= now:
                limit.expire()
        later = [due for due in self.running.values() if due > now]
        if later:
            self.ring_at(loop, min(later))


class _Limit:
    """One block."""

    __slots__ = ("_cancels", "_expired", "_limits", "_seconds", "_task")

    def __init__(self, limits: TimeLimits, seconds: float) -> None:
        self._limits = limits
        self._seconds = seconds
        self._expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a task")
        self._task = task
        self._cancels = task.cancelling()
        loop = task.get_loop()
        due = loop.time() + self._seconds
        self._limits.running[self] = due
        self._limits.ring_at(loop, due)

    def expire(self) -> None:
        """The time is up."""
        if not self._expired:
            self._expired = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        del self._limits.running[self]
        if self._expired and self._task.uncancel() <= self._cancels and kind is asyncio.CancelledError:
            raise TimeoutError from error  # nobody else wants the task to end


def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin the work, in a task."""
    task = asyncio.create_task(work)
    task.add_done_callback(_look_at)
    return task


async def end(tasks: Collection[asyncio.Task[Any]], grace: float = GRACE) -> None:
    """Cancel them, and leave those behind that do not react."""
    for task in tasks:
        _left_behind.add(task)  # the event loop holds only a weak reference
        task.add_done_callback(_left_behind.discard)
        task.cancel()
    await asyncio.wait(tasks, timeout=grace)


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve the error: asyncio logs one that nobody retrieves, and the caller may be gone."""
    if not task.cancelled():
        task.exception()
