from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest

from postroom.runtime.call import Call
from postroom.runtime.calls import CallFailed, Calls, CannotCall, StillRunning, Words

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LONG = 30.0
SHORT = 0.02


class Lost(Exception):
    """A connection was lost."""


class Step(Call):
    """A call of a function, which may be told not to repeat itself."""

    def __init__(self, subject: str, *, is_async: bool, timeout: float = LONG, repeats: bool = True) -> None:
        super().__init__(is_async=is_async, timeout=timeout, subjects=frozenset({subject}))
        self.subject = subject
        self.repeats = repeats

    def again(self) -> Self:
        return type(self)(self.subject, is_async=self.is_async, timeout=self.timeout, repeats=self.repeats)

    @property
    def may_be_repeated(self) -> bool:
        return super().may_be_repeated and (self.repeats or not self.has_returned)


class Account:
    """Calls, with a database that answers or not, and what was reported."""

    def __init__(self) -> None:
        self.answers = True
        self.reports: list[str | None] = []
        self.calls = Calls(
            Words("steps", "saga"),
            2,
            database_answers=self._answers,
            is_lost_connection=lambda error: isinstance(error, Lost),
            report=self.reports.append,
        )

    async def _answers(self) -> bool:
        return self.answers

    async def run(
        self,
        blocking: Callable[[Step], Any] | None = None,
        waiting: Callable[[Step], Awaitable[Any]] | None = None,
        *,
        subject: str = "a",
        timeout: float = LONG,  # noqa: ASYNC109 - the call's
        repeats: bool = True,
        alone: asyncio.Lock | None = None,
    ) -> Any:
        step = Step(subject, is_async=waiting is not None, timeout=timeout, repeats=repeats)
        return await self.calls.run(step, blocking or _never, waiting or _anever, alone)


def _never(step: Step) -> None:
    raise AssertionError(step)


async def _anever(step: Step) -> None:
    raise AssertionError(step)


@pytest.fixture
async def account() -> AsyncIterator[Account]:
    account = Account()
    yield account
    account.calls.close()


async def test_a_call_returns_or_raises_what_its_function_does(account: Account) -> None:
    async def broken(step: Step) -> None:
        raise ValueError(step.subject)

    assert await account.run(lambda step: (step.subject, threading.current_thread().name.startswith("postroom"))) == (
        "a",
        True,
    )
    with pytest.raises(ValueError, match="a"):
        await account.run(waiting=broken)
    assert account.reports == []


async def test_a_thread_that_takes_too_long_cannot_commit_and_no_other_begins_with_its_subject(
    account: Account,
) -> None:
    goes_on, committed = threading.Event(), []

    def slow(step: Step) -> None:
        goes_on.wait(LONG)
        step.check_time()
        committed.append(step)

    with pytest.raises(TimeoutError):
        await account.run(slow, timeout=SHORT)
    with pytest.raises(StillRunning):
        await account.run(lambda _: "again")
    assert await account.run(lambda _: "other", subject="b") == "other"
    goes_on.set()
    await _until(lambda: not account.calls._late)
    assert await account.run(lambda _: "again") == "again"
    assert not committed


async def test_when_all_threads_hang_nothing_is_called_until_one_ends(account: Account) -> None:
    goes_on = threading.Event()
    for subject in "ab":
        with pytest.raises(TimeoutError):
            await account.run(lambda _: goes_on.wait(LONG), subject=subject, timeout=SHORT)
    assert not account.calls.hung.is_set()
    with pytest.raises(CannotCall, match=r"2 calls of sync steps .* no saga is tried"):
        await account.run(lambda _: None, subject="c")
    assert account.calls.hung.is_set()
    assert account.calls.all_hung
    assert account.reports == [account.calls.stuck]
    goes_on.set()
    await _until(lambda: not account.calls._late)
    await account.run(lambda _: None, subject="c")
    assert account.calls.stuck is None
    assert account.reports[1:] == [None]


async def test_a_task_that_ignores_its_cancellation_is_left_behind(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.runtime.calls.GRACE", SHORT)
    goes_on = asyncio.Event()

    async def stubborn(step: Step) -> None:
        while not goes_on.is_set():
            try:
                await goes_on.wait()
            except asyncio.CancelledError:
                del step

    for subject in "ab":
        with pytest.raises(TimeoutError):
            await account.run(waiting=stubborn, subject=subject, timeout=SHORT)
    with pytest.raises(CannotCall, match="2 calls of async steps"):
        await account.run(waiting=stubborn, subject="c")
    goes_on.set()
    await _until(lambda: not account.calls._late)
    await account.run(waiting=stubborn, subject="c")


async def test_calls_that_go_alone_take_turns_and_waiting_uses_up_no_time(account: Account) -> None:
    alone, at_work, most = asyncio.Lock(), 0, 0

    async def counted(step: Step) -> str:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(SHORT)
        at_work -= 1
        return step.subject

    calls = [account.run(waiting=counted, subject=str(n), timeout=5 * SHORT, alone=alone) for n in range(20)]
    assert await asyncio.gather(*calls) == [str(n) for n in range(20)]
    assert most == 1


async def test_a_call_that_goes_alone_and_hangs_is_reported_and_lets_others_go_on_when_it_ends(
    account: Account,
) -> None:
    alone, goes_on = asyncio.Lock(), threading.Event()
    with pytest.raises(TimeoutError):
        await account.run(lambda _: goes_on.wait(LONG), timeout=SHORT, alone=alone)
    assert "one writer at a time" in str(account.reports[-1])
    waits = asyncio.create_task(account.run(lambda _: "other", subject="b", alone=alone))
    assert await account.run(lambda _: "without", subject="c") == "without"
    assert not waits.done()
    goes_on.set()
    assert await waits == "other"
    assert account.reports[-1] is None
    assert not alone.locked()


async def test_a_call_that_cannot_be_made_lets_others_go_on(account: Account) -> None:
    alone, goes_on = asyncio.Lock(), threading.Event()
    for subject in "ab":
        with pytest.raises(TimeoutError):
            # Long enough for a thread to begin.
            await account.run(lambda _: goes_on.wait(LONG), subject=subject, timeout=25 * SHORT)
    with pytest.raises(CannotCall):
        await account.run(lambda _: None, subject="c", alone=alone)
    assert not alone.locked()
    goes_on.set()


async def test_what_a_function_sets_in_its_context_stays_there(account: Account) -> None:
    variable = contextvars.ContextVar("variable", default="before")

    async def setting(step: Step) -> str:
        seen = variable.get()
        variable.set(step.subject)
        await asyncio.sleep(0)
        return seen + variable.get()

    assert await account.run(waiting=setting) == "beforea"
    assert await account.run(waiting=setting, subject="b") == "beforeb"
    assert variable.get() == "before"


async def test_who_is_cancelled_cancels_the_call_and_its_subject_is_free_when_that_has_ended(account: Account) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(step: Step) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert step.timeout == LONG
            ended.set()

    running = asyncio.create_task(account.run(waiting=slow))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()
    assert await account.run(lambda _: "again") == "again"


async def test_a_function_that_returns_without_waiting_is_in_time_however_short_that_is(account: Account) -> None:
    async def quick(step: Step) -> str:
        return step.subject

    async def slow(step: Step) -> None:
        del step
        await asyncio.Event().wait()

    assert await account.run(waiting=quick, timeout=0.0) == "a"
    with pytest.raises(TimeoutError):
        await account.run(waiting=slow, timeout=0.0)
    assert await account.run(waiting=quick) == "a"


async def test_an_exit_or_a_cancellation_of_a_function_ends_only_its_call(account: Account) -> None:
    async def leaving(step: Step) -> None:
        del step
        sys.exit("enough")

    async def cancelled(step: Step) -> None:
        del step
        raise asyncio.CancelledError

    with pytest.raises(CallFailed, match="SystemExit: enough"):
        await account.run(waiting=leaving)
    with pytest.raises(CallFailed, match="CancelledError"):
        await account.run(waiting=cancelled)
    with pytest.raises(CallFailed, match="SystemExit: enough"):
        await account.run(lambda _: sys.exit("enough"))


async def test_stale_connections_are_passed_over_and_one_that_the_function_lost_is_not(account: Account) -> None:
    tries = 0

    def stale(step: Step) -> str:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise Lost
        with step.in_function():
            return "done"

    def loses(step: Step) -> None:
        nonlocal tries
        tries += 1
        with step.in_function():
            raise Lost

    assert await account.run(stale) == "done"
    assert tries == 4
    with pytest.raises(Lost):
        await account.run(loses)
    assert tries == 5
    account.answers = False
    with pytest.raises(CannotCall, match="the database of the steps cannot be reached"):
        await account.run(loses)


async def test_a_function_is_not_at_fault_if_no_connection_can_be_opened_though_the_database_answers(
    account: Account,
) -> None:
    def refused(step: Step) -> None:
        raise Lost(f"too many connections for {step.subject}")

    with pytest.raises(CannotCall, match="no connection can be opened for the steps: too many connections for a"):
        await account.run(refused)


async def test_a_call_that_may_have_committed_is_repeated_only_if_it_says_so(account: Account) -> None:
    tries = 0

    def unanswered(step: Step) -> str:
        nonlocal tries
        tries += 1
        with step.in_function():
            pass
        if tries == 1:
            raise Lost
        return "done"

    with pytest.raises(Lost):
        await account.run(unanswered, repeats=False)
    tries = 0
    assert await account.run(unanswered) == "done"


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG):
        while not condition():  # noqa: ASYNC110 - it sets no event of ours
            await asyncio.sleep(0.001)
