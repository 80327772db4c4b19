from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from postroom.errors import InvalidSetting, PostroomError
from postroom.runtime.runnable import Runnable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Ticking:
    """A run that waits until it is stopped."""

    def __init__(self) -> None:
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()


class Clock(Runnable[Ticking]):
    def __init__(self, problem: Exception | None = None) -> None:
        super().__init__()
        self._problem = problem
        self.open = 0

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Ticking]:
        if self._problem is not None:
            raise self._problem
        self.open += 1
        yield Ticking()
        self.open -= 1

    async def run(self) -> None:
        async with self._new_run() as run:
            await run.run()

    async def fail(self) -> None:
        async with self._new_run():
            raise ExceptionGroup("several", [PostroomError("the reason")])


async def test_a_block_starts_it_and_stops_it_again() -> None:
    clock = Clock()
    async with clock:
        assert clock.open == 1
        assert not clock.stopping
    assert clock.open == 0
    async with clock:
        assert clock.open == 1, "it can run again"


async def test_stop_ends_all_runs_and_is_over_then() -> None:
    clock = Clock()
    runs = [asyncio.create_task(clock.run()) for _ in range(2)]
    while clock.open < 2:  # noqa: ASYNC110 - it sets no event
        await asyncio.sleep(0)
    elsewhere = Thread(target=clock.stop)
    elsewhere.start()
    elsewhere.join()
    assert clock.stopping
    await asyncio.wait_for(asyncio.gather(*runs), 10)
    assert (clock.open, clock.stopping) == (0, False)


async def test_one_that_is_stopped_before_it_runs_ends_at_once() -> None:
    clock = Clock()
    clock.stop()
    await asyncio.wait_for(clock.run(), 10)
    assert not clock.stopping


async def test_a_block_raises_why_it_could_not_start() -> None:
    with pytest.raises(InvalidSetting, match="no clock"):
        async with Clock(InvalidSetting("no clock")):
            pass


async def test_one_reason_is_raised_of_several() -> None:
    with pytest.raises(PostroomError, match="the reason"):
        await Clock().fail()


def test_a_loop_that_was_closed_meanwhile_is_no_problem() -> None:
    clock = Clock()
    loop = asyncio.new_event_loop()
    clock._active[Ticking()] = loop
    loop.close()
    clock.stop()
    assert clock.stopping
