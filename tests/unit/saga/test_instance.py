"""One instance, from its first step to its end: what runs, in which order, with what, and what is recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

import msgspec
import pytest

from postroom import RetryPolicy, Saga
from postroom.errors import Refused
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Direction
from postroom.saga.running.left import GIVEN_BACK, WRITTEN, RetryLater
from postroom.telemetry.saga_events import SagaParked, SagasEnded, SagaTurned, StepEnd, StepsEnded
from tests.unit.saga.runs import Runs

if TYPE_CHECKING:
    from postroom.saga.context import SagaContext

ONCE = RetryPolicy(max_attempts=1)


def trip(calls: list[str], **failing: Exception) -> Saga[dict[str, int]]:
    """Three steps, of which two have compensations; those named in `failing` raise."""
    saga = Saga("trip", data=dict[str, int])

    def called(name: str) -> None:
        calls.append(name)
        if name in failing:
            raise failing[name]

    @saga.step(retry=ONCE)
    def flight(saga: SagaContext[Any]) -> str:
        called("flight")
        saga.data["flight"] = 7
        return "LH7"

    @flight.compensation
    def cancel_flight(saga: SagaContext[Any], result: Any) -> None:
        called(f"cancel_flight {result} {saga.data}")

    @saga.step(retry=ONCE)
    def insurance(saga: SagaContext[Any]) -> None:
        called("insurance")

    @saga.call(retry=ONCE)
    async def hotel(saga: SagaContext[Any]) -> int:
        assert saga.connection is None
        called("hotel")
        return len(saga.result(flight))

    @hotel.compensation
    async def cancel_hotel(saga: SagaContext[Any]) -> None:
        called(f"cancel_hotel {saga.result()}")

    return saga


async def test_runs_the_steps_in_order_and_ends_with_the_last_log() -> None:
    calls: list[str] = []
    runs = Runs(trip(calls))
    assert await runs.take_up() == WRITTEN
    assert calls == ["flight", "insurance", "hotel"]
    assert runs.rows == [("FORWARD", step, "DONE") for step in ("flight", "insurance", "hotel")]
    assert runs.outcome == "COMPLETED"
    rows = runs.journal.instance.rows
    assert rows[Direction.FORWARD, "flight"].data == b'{"flight":7}'
    assert rows[Direction.FORWARD, "insurance"].data is None
    assert rows[Direction.FORWARD, "hotel"].result == b"3"
    ends = [step.end for event in runs.events if isinstance(event, StepsEnded) for step in event.steps]
    assert ends == [StepEnd.DONE] * 3
    assert [event.ended[0].id for event in runs.events if isinstance(event, SagasEnded)] == ["one"]


async def test_undoes_in_reverse_with_results_and_data() -> None:
    calls: list[str] = []
    runs = Runs(trip(calls, hotel=ValueError("full")))
    await runs.until_settled()
    assert calls == ["flight", "insurance", "hotel", "cancel_hotel None", "cancel_flight LH7 {'flight': 7}"]
    assert runs.rows[2:] == [
        ("FORWARD", "hotel", "FAILED"),
        ("BACK", "hotel", "DONE"),
        ("BACK", "flight", "DONE"),
    ]
    assert runs.outcome == "COMPENSATED"
    instance = runs.journal.instance
    assert (instance.failed_step, instance.error_code) == ("hotel", "INTERNAL_ERROR")
    assert "ValueError: full" in instance.error_message
    assert "test_instance.py" in instance.error_message
    assert [event.step for event in runs.events if isinstance(event, SagaTurned)] == ["hotel"]


async def test_a_call_that_was_refused_at_once_is_not_undone() -> None:
    calls: list[str] = []
    runs = Runs(trip(calls, hotel=Refused("FULL", "no room")))
    await runs.until_settled()
    assert calls == ["flight", "insurance", "hotel", "cancel_flight LH7 {'flight': 7}"]
    assert ("BACK", "hotel", "SKIPPED") in runs.rows
    assert (runs.journal.instance.error_code, runs.journal.instance.error_message) == ("FULL", "no room")


async def test_a_call_that_was_refused_after_somebody_else_had_begun_it_is_undone() -> None:
    calls: list[str] = []
    runs = Runs(trip(calls, hotel=Refused("FULL")))
    runs.journal.claims = 1  # a worker that was killed
    runs.journal.instance.rows |= (await _after_two_steps()).journal.instance.rows
    await runs.until_settled()
    assert "cancel_hotel None" in calls
    assert (runs.journal.instance.error_code, runs.journal.instance.error_message) == ("FULL", "")


async def _after_two_steps() -> Runs:
    runs = Runs(trip([], hotel=ConnectionError()))
    await runs.take_up()
    rows = runs.journal.instance.rows
    runs.journal.instance.rows = {key: row for key, row in rows.items() if key[1] in {"flight", "insurance"}}
    runs.journal.instance.rows = {
        key: row for key, row in runs.journal.instance.rows.items() if key[0] is Direction.FORWARD
    }
    return runs


async def test_a_step_that_failed_has_nothing_to_undo() -> None:
    calls: list[str] = []
    runs = Runs(trip(calls, flight=ValueError()))
    await runs.take_up()
    assert calls == ["flight"]
    assert runs.outcome == "COMPENSATED"


async def test_retries_a_step_and_forgets_what_the_failed_attempt_did_to_the_data() -> None:
    saga, seen = Saga("retried", data=dict[str, int]), []

    @saga.step(retry=RetryPolicy.table([5.0], max_attempts=3))
    def flaky(saga: SagaContext[Any]) -> None:
        seen.append((saga.attempt, dict(saga.data)))
        saga.data["n"] = saga.attempt
        if saga.attempt < 3:
            raise ConnectionError("away")

    @saga.step
    def after(saga: SagaContext[Any]) -> None:
        seen.append((saga.attempt, dict(saga.data)))

    runs = Runs(saga)
    left = await runs.take_up()
    assert isinstance(left, RetryLater)
    assert (left.delay, left.code) == (5.0, "CONNECTION")
    assert runs.journal.state is Stored.RETRY
    assert await runs.take_up() is None
    await runs.until_settled()
    assert seen == [(1, {}), (2, {}), (3, {}), (1, {"n": 3})]
    assert runs.journal.monotonic() == 10.0


@pytest.mark.parametrize("error", [Refused("NO"), KeyError("x")])
async def test_does_not_retry_what_is_permanent(error: Exception) -> None:
    saga, calls = Saga("permanent"), []

    @saga.step(permanent=(KeyError,))
    def charge(saga: SagaContext[Any]) -> Never:
        calls.append(saga.attempt)
        raise error

    runs = Runs(saga)
    await runs.until_settled()
    assert calls == [1]
    assert runs.outcome == "COMPENSATED"


async def test_a_compensation_that_keeps_failing_parks_the_saga() -> None:
    calls: list[str] = []
    saga = trip(calls, hotel=Refused("FULL"), **{"cancel_flight LH7 {'flight': 7}": ConnectionError("away")})
    runs = Runs(saga)
    await runs.until_settled()
    assert runs.journal.state is Stored.DEAD
    assert runs.outcome == "OPEN"
    assert calls.count("cancel_flight LH7 {'flight': 7}") == 15
    parked = [event for event in runs.events if isinstance(event, SagaParked)]
    assert [(one.step, one.direction, one.code, one.attempts) for one in parked] == [
        ("flight", Direction.BACK, "CONNECTION", 15)
    ]
    assert [code for code, _ in runs.parked] == ["CONNECTION"]


async def test_after_the_pivot_it_only_goes_forward() -> None:
    saga, calls = Saga("pivoted", deadline=10), []

    @saga.step
    def reserve(saga: SagaContext[Any]) -> None: ...

    @reserve.compensation
    def release(saga: SagaContext[Any]) -> None:
        calls.append("release")

    @saga.step(pivot=True)
    def pay(saga: SagaContext[Any]) -> None: ...

    @saga.step(retry=RetryPolicy.table([60.0], max_attempts=2))
    def ship(saga: SagaContext[Any]) -> Never:
        calls.append("ship")
        raise Refused("NO") if len(calls) == 2 else ConnectionError

    runs = Runs(saga, deadline=10.0)
    await runs.until_settled()
    assert calls == ["ship", "ship"]
    assert runs.journal.monotonic() == 60.0  # beyond the deadline
    assert runs.journal.state is Stored.DEAD
    assert runs.journal.error[0] == "NO"


async def test_turns_at_its_deadline_and_retries_no_later() -> None:
    saga, calls = Saga("hurried"), []

    @saga.step
    def first(saga: SagaContext[Any]) -> None: ...

    @first.compensation
    def undo_first(saga: SagaContext[Any]) -> None:
        calls.append("undo")

    @saga.step(retry=RetryPolicy.table([60.0]))
    def second(saga: SagaContext[Any]) -> Never:
        calls.append(f"second {saga.deadline:%S}")
        raise ConnectionError

    runs = Runs(saga, deadline=20.0)
    left = await runs.take_up()
    assert isinstance(left, RetryLater)
    assert left.delay == 20.0
    await runs.until_settled()
    assert calls == ["second 20", "undo"]
    assert runs.journal.instance.error_code == "DEADLINE"
    assert runs.outcome == "COMPENSATED"


async def test_skips_a_step_whose_condition_says_no_and_records_the_answer() -> None:
    saga, calls = Saga("branching", data=dict[str, int]), []

    @saga.step
    def count(saga: SagaContext[Any]) -> None:
        saga.data["total"] = 0

    @saga.step(when=lambda data: data["total"] > 0)
    def charge(saga: SagaContext[Any]) -> None:
        calls.append("charge")

    @charge.compensation
    def refund(saga: SagaContext[Any]) -> None:
        calls.append("refund")

    @saga.step
    def thank(saga: SagaContext[Any]) -> None:
        calls.append("thank")

    @saga.call(when=lambda data: False)
    def never(saga: SagaContext[Any]) -> None:
        calls.append("never")

    runs = Runs(saga)
    await runs.take_up()
    assert calls == ["thank"]
    assert ("FORWARD", "charge", "SKIPPED") in runs.rows
    assert runs.rows[-1] == ("FORWARD", "never", "SKIPPED")
    assert runs.outcome == "COMPLETED"


async def test_a_condition_that_raises_is_a_failed_attempt() -> None:
    saga = Saga("branching")

    @saga.step(when=lambda data: data["nothing"], retry=RetryPolicy.table([1.0], max_attempts=2))
    def charge(saga: SagaContext[Any]) -> None: ...

    runs = Runs(saga)
    assert isinstance(await runs.take_up(), RetryLater)
    await runs.until_settled()
    assert runs.journal.instance.error_message.startswith("KeyError: 'nothing'")


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, GeneratorExit])
@pytest.mark.parametrize("asked", ["when", "until"])
async def test_a_condition_that_exits_is_a_failed_attempt_too(asked: str, error: type[BaseException]) -> None:
    """It is called in the event loop, which it would end, and the relay of all other sagas with it."""
    saga = Saga("exiting")

    def exits(_data: Any) -> Any:
        raise error("7")

    if asked == "when":

        @saga.step(when=exits)
        def charge(saga: SagaContext[Any]) -> None: ...
    else:
        saga.sleep("charge", until=exits)

    runs = Runs(saga)
    assert isinstance(await runs.take_up(), RetryLater)
    await runs.until_settled()
    assert f"{error.__name__}: 7" in runs.journal.instance.error_message


async def test_stops_between_steps_and_gives_the_instance_back() -> None:
    saga = Saga("stopped")

    @saga.step
    def first(saga: SagaContext[Any]) -> None:
        runs.is_stopping = True

    @saga.step
    def second(saga: SagaContext[Any]) -> None: ...

    runs = Runs(saga)
    assert await runs.take_up() == GIVEN_BACK
    assert runs.rows == [("FORWARD", "first", "DONE")]
    runs.is_stopping = False
    await runs.take_up()
    assert runs.outcome == "COMPLETED"


@pytest.mark.parametrize("value", [object(), "x" * 70_000])
async def test_what_cannot_be_kept_fails_for_good(value: object) -> None:
    saga, calls = Saga("unkept"), []

    @saga.call
    def returns(saga: SagaContext[Any]) -> object:
        calls.append("do")
        return value

    @returns.compensation
    def undo(saga: SagaContext[Any]) -> None:
        calls.append("undo")

    runs = Runs(saga)
    await runs.until_settled()
    assert calls == ["do", "undo"]  # it may have happened
    assert "the result of step 'returns'" in runs.journal.instance.error_message
    assert "xxx" not in runs.journal.instance.error_message


async def test_tells_its_parent_how_it_ended() -> None:
    saga = Saga("child", data=dict[str, int])

    @saga.step
    def count(saga: SagaContext[Any]) -> None:
        saga.data["n"] = 1

    class Parent:
        name, id = "parent", "p-1"

    runs = Runs(saga)
    message = saga.start_message({}, "one", (Parent(), "child_done"))
    runs.start = runs.start._replace(tell=msgspec.json.decode(message.headers["postroom-saga-tell"], type=_tell()))
    await runs.take_up()
    (told,) = runs.journal.told
    assert told.topic == "saga:parent"
    assert told.headers["postroom-saga-event"] == "child_done"
    assert told.payload is not None
    assert msgspec.json.decode(told.payload)["outcome"] == "completed"
    assert msgspec.json.decode(told.payload)["data"] == {"n": 1}


def _tell() -> type:
    from postroom.saga.messages import Tell

    return Tell


async def test_claimed_too_often_without_progress_it_turns() -> None:
    calls: list[str] = []
    runs = Runs(trip(calls))
    runs.journal.claims = 6
    await runs.take_up()
    assert calls == []
    assert runs.outcome == "COMPENSATED"
    assert "claimed 7 times without progress at 'flight'" in runs.journal.instance.error_message
