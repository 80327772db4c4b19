"""Time limits: cancel work that takes too long, and leave it behind if it does not react."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

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
