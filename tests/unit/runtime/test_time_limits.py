"""Work that takes too long is cancelled, and left behind if it does not react."""

from __future__ import annotations

import asyncio

import pytest

from postroom.runtime.time_limits import within

LONG = 30.0


class Stubborn:
    """Goes on after it was cancelled, until it may end."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.has_ended = asyncio.Event()

    async def work(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
            self.has_ended.set()


async def test_without_grace_nobody_waits_for_work_that_does_not_react() -> None:
    stubborn = Stubborn()
    async with asyncio.timeout(LONG):
        with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
            await within(0.01, stubborn.work(), grace=0)
        assert not stubborn.has_ended.is_set()
        stubborn.may_end.set()
        await stubborn.has_ended.wait()


async def test_with_grace_it_has_time_to_end() -> None:
    stubborn = Stubborn()
    stubborn.may_end.set()
    with pytest.raises(TimeoutError):
        await within(0.01, stubborn.work(), grace=LONG)
    assert stubborn.has_ended.is_set()
