from __future__ import annotations

import asyncio

from postroom.runtime.waiting import wait_for


async def test_waiting_ends_when_the_event_is_set() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(wait_for(event, 60))
    await asyncio.sleep(0)
    event.set()
    assert await waiting


async def test_waiting_ends_when_the_time_is_up() -> None:
    assert not await wait_for(asyncio.Event(), 0.001)


async def test_an_event_that_is_set_needs_no_time() -> None:
    event = asyncio.Event()
    event.set()
    assert await wait_for(event, 0)
