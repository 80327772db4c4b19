"""Limits: work that takes too long is ended, and where it cannot be ended it is left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")

GRACE = 1.0
"""Seconds for what was cancelled to end in order: a driver asks its server to end the statement, and waits for that."""

_left_behind: set[asyncio.Task[Any]] = set()


async def within(seconds: float | None, work: Coroutine[Any, Any, T]) -> T:
    """Do the work; raises what it raises, and `TimeoutError` when the time is over.

    Then, and when the caller is cancelled, the work is cancelled too, and may still be ending after `GRACE`: whatever
    it needs must be its own.
    """
    task = asyncio.create_task(work)
    task.add_done_callback(_look_at)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise TimeoutError(f"no answer within {seconds:g} s")
    finally:
        if not task.done():
            await _end(task)


async def _end(task: asyncio.Task[Any]) -> None:
    _left_behind.add(task)  # the event loop itself would forget it
    task.add_done_callback(_left_behind.discard)
    task.cancel()
    await asyncio.wait({task}, timeout=GRACE)


def _look_at(task: asyncio.Task[Any]) -> None:
    """An error that nobody looks at is complained of, and who would have looked may be gone."""
    if not task.cancelled():
        task.exception()
