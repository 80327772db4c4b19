"""Work that takes too long is cancelled, and left behind if it does not react."""

from __future__ import annotations

import asyncio

import pytest

from postroom.runtime.time_limits import TimeLimits, within

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


async def forever(limits: TimeLimits, seconds: float) -> None:
    with limits.limit(seconds):
        await asyncio.Event().wait()


async def test_limits_that_share_a_timer_end_each_in_its_time() -> None:
    limits = TimeLimits()
    ended: list[str] = []

    async def wait(name: str, seconds: float) -> None:
        with pytest.raises(TimeoutError):
            await forever(limits, seconds)
        ended.append(name)

    with limits.limit(LONG):  # one that is over sets the timer, too
        pass
    await asyncio.gather(wait("second", 0.03), wait("first", 0.01), wait("third", 0.05))
    assert ended == ["first", "second", "third"]
    assert not limits.running


async def test_a_limit_leaves_other_errors_and_cancellations_alone() -> None:
    limits = TimeLimits()
    with pytest.raises(KeyError), limits.limit(LONG):
        raise KeyError
    waiting = asyncio.create_task(forever(limits, LONG))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_of_two_limits_only_the_one_whose_time_is_up_raises() -> None:
    limits = TimeLimits()
    with limits.limit(LONG):
        with pytest.raises(TimeoutError):
            await forever(limits, 0.01)
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), limits.limit(0.01):
        await forever(limits, LONG)


def test_limits_outlive_an_event_loop() -> None:
    limits = TimeLimits()

    async def work() -> None:
        with limits.limit(0.01):
            pass

    asyncio.run(work())
    with pytest.raises(TimeoutError):
        asyncio.run(forever(limits, 0.02))


def test_a_limit_needs_a_task_to_cancel() -> None:
    async def nothing() -> None:
        """Give the loop something to run."""

    with asyncio.Runner() as runner:
        runner.run(nothing())
        loop = runner.get_loop()
        problems: list[BaseException] = []

        def enter() -> None:
            try:
                with TimeLimits().limit(LONG):
                    pass
            except RuntimeError as error:
                problems.append(error)

        loop.call_soon(enter)
        runner.run(nothing())
    assert [str(one) for one in problems] == ["a time limit needs a task"]
