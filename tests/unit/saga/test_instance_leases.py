"""Leases lost, answers lost, work done before, code missing: nothing is done twice, and nothing goes on blindly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from postroom import Saga
from postroom.errors import Refused
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Direction, StepOutcome
from postroom.saga.running.journal import NotBegun, Turning
from postroom.saga.running.left import LEASE_GONE, WRITTEN, NotTried, RetryLater
from postroom.saga.running.memory_journal import MemoryJournal
from postroom.store.saga.values import StepRow
from postroom.telemetry.saga_events import SagaStranded
from tests.unit.saga.runs import Runs

if TYPE_CHECKING:
    from postroom.saga.context import SagaContext
    from postroom.saga.running.step_calls import StepCall
    from postroom.store.outbox.leases import Claimed

DONE = StepRow(StepOutcome.DONE, result=b'"before"')


def two(calls: list[str], *, refuses: bool = False) -> Saga[Any]:
    saga: Saga[Any] = Saga("two")

    @saga.step
    def first(saga: SagaContext[Any]) -> str:
        calls.append("first")
        return "first"

    @first.compensation
    def undo_first(saga: SagaContext[Any], result: Any) -> None:
        calls.append(f"undo {result}")

    @saga.step
    def second(saga: SagaContext[Any]) -> None:
        calls.append(f"second after {saga.result(first)}")
        if refuses:
            raise Refused("NO")

    return saga


async def test_a_lost_lease_ends_the_work() -> None:
    calls: list[str] = []
    runs: Runs = Runs(two(calls), before=lambda call: lose(runs.journal, call, "second"))
    assert await runs.take_up() == LEASE_GONE
    assert runs.rows == [("FORWARD", "first", "DONE")]


async def test_an_abort_in_mid_step_wins() -> None:
    calls: list[str] = []

    def abort(call: StepCall) -> None:
        if call.step == "second":
            runs.journal.instance.direction = Direction.BACK
            runs.journal.token = runs.journal.claims = 0

    runs: Runs = Runs(two(calls), before=abort)
    assert await runs.take_up() == LEASE_GONE
    assert await runs.take_up() == WRITTEN
    assert calls == ["first", "second after first", "undo first"]
    assert runs.outcome == "COMPENSATED"


def lose(journal: MemoryJournal, call: StepCall, step: str) -> None:
    if call.step == step:
        journal.token = 1


async def test_a_lease_lost_at_the_turn_leaves_the_direction_alone() -> None:
    calls: list[str] = []
    runs: Runs = Runs(two(calls, refuses=True), before=lambda call: lose(runs.journal, call, "second"))
    assert await runs.take_up() == LEASE_GONE
    assert runs.journal.instance.direction is Direction.FORWARD


async def test_a_step_that_was_done_before_is_read_and_not_run_again() -> None:
    calls: list[str] = []

    def commits_late(call: StepCall) -> None:
        if call.step == "first":
            runs.journal.instance.rows[Direction.FORWARD, "first"] = DONE

    runs: Runs = Runs(two(calls), before=commits_late)
    await runs.take_up()
    assert calls == ["first", "second after before"]
    assert runs.outcome == "COMPLETED"


async def test_a_step_that_commits_before_the_turn_counts() -> None:
    """Its thread was given up on after a timeout, and committed a moment before the turn was written."""
    calls: list[str] = []

    def commits_late(call: StepCall) -> None:
        if call.step == "second":
            runs.journal.instance.rows[Direction.FORWARD, "second"] = DONE

    runs: Runs = Runs(two(calls, refuses=True), before=commits_late)
    await runs.take_up()
    assert calls == ["first", "second after first"]
    assert runs.outcome == "COMPLETED"


async def test_a_turn_whose_answer_was_lost_is_gone_on_with() -> None:
    class LosesAnswers(MemoryJournal):
        async def turn(self, claimed: Claimed, turning: Turning, token: int) -> bool:
            await super().turn(claimed, turning, token)
            return await super().turn(claimed, turning, token)  # as when it is tried again

    calls: list[str] = []
    runs = Runs(two(calls, refuses=True))
    runs.journal = LosesAnswers(runs.journal.message)
    assert await runs.take_up() == WRITTEN
    assert calls == ["first", "second after first", "undo first"]
    assert runs.outcome == "COMPENSATED"


async def test_a_record_that_never_changes_is_left_alone_after_a_while() -> None:
    class Contradicts(MemoryJournal):
        def read_now(self) -> Any:
            return msgspec.structs.replace(super().read_now(), rows={})

    runs = Runs(two([]))
    runs.journal = Contradicts(runs.journal.message)
    runs.journal.instance.rows[Direction.FORWARD, "first"] = DONE
    left = await runs.take_up()
    assert isinstance(left, RetryLater)
    assert left.delay == 30.0
    assert "does not change" in left.text


async def test_a_function_that_cannot_be_called_now_burns_no_attempt() -> None:
    def busy(call: StepCall) -> None:
        raise NotBegun(3.0, "TIMEOUT", "no thread is free")

    runs: Runs = Runs(two([]), before=busy)
    assert await runs.take_up() == NotTried(3.0, "TIMEOUT", "no thread is free")
    assert runs.journal.attempts == 0


def stripped(kind: str = "") -> Saga[Any]:
    """The same saga after a deploy, without its first step or with another in its place."""
    saga: Saga[Any] = Saga("two", data=int) if kind == "data" else Saga("two")
    if kind in {"call", "uncompensated", "data"}:
        (saga.call if kind == "call" else saga.step)(name="first")(lambda saga: None)
    saga.step(name="second")(lambda saga: None)
    return saga


async def test_missing_code_strands_it_with_the_cure_and_burns_nothing() -> None:
    for kind, cure in {
        "": "the code has no step 'first': keep its function under @two.retired",
        "call": "'first' is a call in the code, and a step in the plan",
        "data": "the data of saga 'two'",
    }.items():
        calls: list[str] = []
        runs = Runs(two(calls))
        for _ in range(10):  # more often than a saga may be claimed without progress
            assert await runs.take_up(stripped(kind)) == WRITTEN
            assert (runs.journal.state, runs.journal.attempts) == (Stored.SCHEDULED, 0)
            assert runs.journal.error[0] == "STEP_MISSING"
            assert cure in runs.journal.error[1]
            runs.journal.move_clock(30)
        assert [event.step for event in runs.events if isinstance(event, SagaStranded)] == ["first"] * 10
        await runs.take_up()
        assert runs.outcome == "COMPLETED"


async def test_a_missing_compensation_strands_it() -> None:
    calls: list[str] = []
    runs: Runs = Runs(
        two(calls, refuses=True), before=lambda call: runs.__setattr__("is_stopping", call.step == "second")
    )
    await runs.take_up()
    assert runs.journal.instance.direction is Direction.BACK
    runs.is_stopping = False
    await runs.take_up(stripped("uncompensated"))
    assert "had a compensation when the instance began" in runs.journal.error[1]
    runs.journal.move_clock(30)
    await runs.take_up()
    assert calls[-1] == "undo first"


async def test_results_that_cannot_be_decoded_strand_it() -> None:
    runs = Runs(two([]))
    runs.journal.instance.rows[Direction.FORWARD, "first"] = DONE
    saga: Saga[Any] = Saga("two")

    @saga.step
    def first(saga: SagaContext[Any]) -> int:
        return 1

    @saga.step
    def second(saga: SagaContext[Any]) -> None:
        saga.result(first)

    await runs.take_up(saga)
    assert runs.journal.error[0] == "STEP_MISSING"
    assert "the result of step 'first'" in runs.journal.error[1]


async def test_S_4_a_call_that_strands_after_it_was_made_counts_as_tried() -> None:
    """It may have had its effect: refused at the next attempt, it is undone all the same."""
    saga: Saga[Any] = Saga("charging")
    calls: list[str] = []

    @saga.step
    def first(saga: SagaContext[Any]) -> str:
        return "1"

    @saga.call
    def charge(saga: SagaContext[Any]) -> None:
        calls.append(f"charge {saga.attempt}")
        if len(calls) <= 8:
            saga.result(first)  # which a deploy has given another class
        raise Refused("DECLINED")

    @charge.compensation
    def refund(saga: SagaContext[Any]) -> None:
        calls.append("refund")

    runs = Runs(saga)
    runs.journal.instance.rows[Direction.FORWARD, "first"] = StepRow(StepOutcome.DONE, result=b"1")
    for _ in range(8):
        await runs.take_up()
        assert (runs.journal.error[0], runs.journal.attempts, runs.journal.claims) == ("STEP_MISSING", 0, 1)
        runs.journal.move_clock(30)
    await runs.take_up()
    assert calls == ["charge 1"] * 9 + ["refund"]
    assert runs.outcome == "COMPENSATED"


async def test_an_instance_that_is_put_back_keeps_the_claims_of_others() -> None:
    runs = Runs(two([]))
    runs.journal.claims = 3
    for _ in range(5):
        await runs.take_up(stripped())
        assert runs.journal.claims == 3
        runs.journal.move_clock(30)
