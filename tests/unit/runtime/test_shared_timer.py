from __future__ import annotations

import asyncio
import time

import pytest

from postroom.runtime.shared_timer import SharedTimer

LONG = 30.0
SHORT = 0.02


def waiter() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def test_a_wait_ends_with_what_it_waits_for() -> None:
    timer, ended = SharedTimer(), waiter()
    waiting = asyncio.create_task(timer.wait(ended, LONG))
    await asyncio.sleep(0)
    assert not waiting.done()
    ended.set_result(None)
    await waiting


async def test_each_wait_ends_when_its_own_time_is_up() -> None:
    timer, order = SharedTimer(), list[float]()
    started = time.monotonic()

    async def wait(seconds: float) -> None:
        await timer.wait(waiter(), seconds)
        assert time.monotonic() - started >= seconds - time.get_clock_info("monotonic").resolution
        order.append(seconds)

    async with asyncio.timeout(LONG / 2):
        longest = asyncio.create_task(timer.wait(waiter(), LONG))
        await asyncio.gather(*(wait(seconds) for seconds in (2 * SHORT, 0.0, 3 * SHORT, SHORT, SHORT)))
        longest.cancel()
    assert sorted(order) == [0.0, SHORT, SHORT, 2 * SHORT, 3 * SHORT]


async def test_a_time_that_is_up_after_others_have_ended_is_noticed() -> None:
    timer, first, cancelled = SharedTimer(), waiter(), waiter()
    waits = [asyncio.create_task(timer.wait(one, SHORT)) for one in (first, cancelled)]
    late = asyncio.create_task(timer.wait(waiter(), 2 * SHORT))
    await asyncio.sleep(0)
    first.set_result(None)
    waits[1].cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits[1]
    async with asyncio.timeout(LONG / 2):
        await asyncio.gather(waits[0], late)
    assert cancelled.cancelled()


def test_it_serves_one_event_loop_after_another() -> None:
    timer = SharedTimer()

    async def cancelled() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await timer.wait(waiter(), LONG)

    async def in_time() -> None:
        async with asyncio.timeout(LONG / 2):
            await timer.wait(waiter(), SHORT)

    asyncio.run(cancelled())
    asyncio.run(in_time())
