"""What the journal of a relay makes of calls that could not be made."""

from __future__ import annotations

from typing import Any, cast

import pytest

from postroom.runtime.calls import CannotCall
from postroom.saga.running.journal import NotBegun
from postroom.saga.running.stored_journal import AT_ONCE, LONGEST_PAUSE, StoredJournal
from postroom.store.saga.values import Logged


class Unreachable:
    """As `Calls` while the database is away."""

    async def run(self, _call: object, *_: object) -> Any:
        raise CannotCall("the database is away")


class Undoing:
    """As `Calls` while the database undoes what is called so many times."""

    def __init__(self, times: int, error: Exception, seconds: float = 0.0) -> None:
        self.left = times
        self.error = error
        self.seconds = seconds
        self.clock = 0.0
        self.pauses: list[float] = []

    async def run(self, _call: object, *_: object) -> Any:
        self.clock += self.seconds
        self.left -= 1
        if self.left >= 0:
            raise self.error
        return Logged.WRITTEN

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock += seconds

    def journal(self) -> StoredJournal:
        nothing = cast("Any", None)
        journal = StoredJournal(nothing, nothing, nothing, cast("Any", self), nothing, self.sleep)
        journal.monotonic = lambda: self.clock  # type: ignore[method-assign]  # the clock of the test
        return journal


def refusal(code: str | int) -> Exception:
    error = Exception(code, "refused")
    error.sqlstate = code if isinstance(code, str) else None  # type: ignore[attr-defined]  # as drivers have it
    return error


CONTENDED = [refusal("40001"), refusal("40P01"), refusal(1213), refusal(1205), Exception("database is locked")]


@pytest.mark.parametrize("error", CONTENDED, ids=str)
async def test_S_1_contention_is_one_attempt_with_pauses(error: Exception) -> None:
    calls = Undoing(20, error)
    call = cast("Any", Begun(is_in_function=False))
    assert await calls.journal().run_step(call, cast("Any", None)) is Logged.WRITTEN
    assert calls.pauses[: AT_ONCE - 1] == [0.0] * (AT_ONCE - 1)
    assert all(0 < pause <= 1.5 * LONGEST_PAUSE for pause in calls.pauses[AT_ONCE - 1 :])
    assert len(calls.pauses) == 20


@pytest.mark.parametrize("seconds", [0.0, 7.0])
async def test_S_1_contention_lasts_no_longer_than_a_call_may(seconds: float) -> None:
    calls = Undoing(10_000, CONTENDED[0], seconds)
    call = cast("Any", Begun(is_in_function=False))
    with pytest.raises(Exception, match="refused"):
        await calls.journal().run_step(call, cast("Any", None))
    assert calls.clock <= call.timeout + seconds
    assert 9_900 < calls.left < 9_998


async def test_S_1_another_error_of_the_database_is_an_attempt_at_once() -> None:
    calls = Undoing(1, refusal("23505"))
    with pytest.raises(Exception, match="refused"):
        await calls.journal().run_step(cast("Any", Begun(is_in_function=False)), cast("Any", None))


class Begun:
    """As much of a `StepCall` as matters."""

    step, timeout, has_returned, may_be_committed = "charge", 30.0, False, False

    def __init__(self, *, is_in_function: bool) -> None:
        self.is_in_function = is_in_function

    def again(self) -> Begun:
        return self


@pytest.mark.parametrize(("begun", "raised"), [(True, ConnectionError), (False, NotBegun)])
async def test_S_4_a_call_that_was_begun_counts_as_tried(begun: bool, raised: type[Exception]) -> None:  # noqa: FBT001 - a parameter of the test
    """Otherwise the next attempt would be taken for the first, and if refused the call would not be undone."""
    nothing = cast("Any", None)
    journal = StoredJournal(nothing, nothing, nothing, cast("Any", Unreachable()), nothing)
    with pytest.raises(raised, match="the database is away"):
        await journal.run_call(cast("Any", Begun(is_in_function=begun)))
