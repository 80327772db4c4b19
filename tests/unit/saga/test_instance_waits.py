"""Waiting for events and for time: before, after, too late, and again after a failure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from postroom import RetryPolicy, Saga
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_state import STEP_MISSING
from postroom.saga.running.left import WRITTEN, RetryLater
from postroom.saga.running.memory_journal import BEGINNING
from postroom.saga.running.stranded import RETRY_STRANDED
from postroom.telemetry.saga_events import SagaStranded
from tests.unit.saga.runs import Runs

if TYPE_CHECKING:
    from postroom.saga.context import SagaContext


def parcel(
    calls: list[Any], on_timeout: Literal["compensate", "continue"] = "compensate", failures: int = 0
) -> Saga[Any]:
    saga: Saga[Any] = Saga("parcel")

    @saga.step
    def send(saga: SagaContext[Any]) -> None:
        calls.append("send")

    @send.compensation
    def recall(saga: SagaContext[Any]) -> None:
        calls.append("recall")

    @saga.wait("arrived", timeout=100, on_timeout=on_timeout, retry=RetryPolicy.table([500.0]))
    def received(saga: SagaContext[Any], event: dict[str, int] | None) -> None:
        calls.append(event)
        if len(calls) <= 1 + failures:
            raise ConnectionError

    return saga


async def test_an_event_that_comes_first_is_taken() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls))
    runs.journal.signal("other", b"{}")
    runs.journal.signal("arrived", b'{"n":1}')
    await runs.take_up()
    assert calls == ["send", {"n": 1}]
    assert runs.outcome == "COMPLETED"
    assert [event.name for event in runs.journal.events] == ["other"]


async def test_an_event_wakes_it() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls))
    assert await runs.take_up() == WRITTEN
    assert (runs.journal.state, runs.journal.due) == (Stored.SCHEDULED, 100.0)
    runs.journal.move_clock(40)
    assert await runs.take_up() is None
    runs.journal.signal("other", b"{}")
    assert await runs.take_up() == WRITTEN
    assert runs.journal.due == 100.0  # counts from when it began to wait
    runs.journal.signal("arrived", b'{"n":1}')
    await runs.take_up()
    assert calls == ["send", {"n": 1}]
    assert runs.outcome == "COMPLETED"


async def test_no_event_in_time_turns() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls))
    await runs.until_settled()
    assert calls == ["send", "recall"]
    assert runs.rows[1] == ("FORWARD", "received", "FAILED")
    assert runs.journal.instance.error_message == "no event 'arrived' came in time"
    assert runs.journal.monotonic() == 100.0


async def test_no_event_in_time_continues_without() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls, "continue"))
    await runs.until_settled()
    assert calls == ["send", None]
    assert runs.outcome == "COMPLETED"


async def test_an_event_counts_although_the_worker_is_late() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls))
    await runs.take_up()
    runs.journal.signal("arrived", b'{"n":1}')
    runs.journal.move_clock(1000)
    await runs.take_up()
    assert runs.outcome == "COMPLETED"


async def test_its_function_is_retried_with_the_same_event() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls, failures=1))
    runs.journal.signal("arrived", b'{"n":1}')
    assert isinstance(await runs.take_up(), RetryLater)
    await runs.until_settled()
    assert calls == ["send", {"n": 1}, {"n": 1}]
    assert runs.outcome == "COMPLETED"


async def test_an_event_that_cannot_be_read_stops_neither_the_next_nor_the_time() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls))
    runs.journal.signal("arrived", b'"secret"')
    runs.journal.signal("arrived", b'{"n":2}')
    await runs.take_up()
    assert calls == ["send", {"n": 2}]
    assert runs.outcome == "COMPLETED"
    assert [event.payload for event in runs.journal.events] == [b'"secret"']  # kept, for an operator to see


async def test_a_wait_with_an_event_that_cannot_be_read_is_stranded_until_its_time_is_up() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls))
    runs.journal.signal("arrived", b'"secret"')
    assert await runs.take_up() == WRITTEN
    assert runs.journal.state is Stored.SCHEDULED
    assert runs.journal.due == RETRY_STRANDED  # another worker may have the code that reads it
    code, text = runs.journal.error
    assert code == STEP_MISSING
    assert text.startswith("event 'arrived' cannot be read (the event of 'received': ")
    assert "deploy code that reads it, or signal another" in text
    assert [event.cure for event in runs.events if isinstance(event, SagaStranded)] == [text]
    await runs.until_settled()
    assert calls == ["send", "recall"]
    assert runs.journal.monotonic() == 100.0
    failure = runs.journal.instance.error_message
    assert failure.startswith("no event 'arrived' came in time that can be read: event 'arrived' cannot be read")
    assert "secret" not in f"{text} {failure}"


async def test_the_deadline_ends_a_wait() -> None:
    calls: list[Any] = []
    runs = Runs(parcel(calls), deadline=30.0)
    await runs.until_settled()
    assert runs.journal.monotonic() == 30.0
    assert runs.journal.instance.error_code == "DEADLINE"
    assert calls == ["send", "recall"]


async def test_sleeps_for_seconds_and_until_a_time() -> None:
    saga, woken = Saga("sleepy"), []
    saga.sleep("nap", seconds=50)

    @saga.sleep("night", until=lambda data: BEGINNING + timedelta(seconds=data["until"]))
    def morning(saga: SagaContext[Any]) -> None:
        woken.append(saga.step)

    saga.sleep("past", until=lambda data: BEGINNING)
    runs = Runs(saga, {"until": 80})
    await runs.take_up()
    assert runs.journal.due == 50.0
    runs.journal.signal("whatever", b"1")
    await runs.take_up()
    assert runs.journal.due == 50.0
    await runs.until_settled()
    assert runs.journal.monotonic() == 80.0
    assert woken == ["night"]
    assert runs.rows == [("FORWARD", step, "DONE") for step in ("nap", "night", "past")]


async def test_waking_up_is_no_sign_of_trouble() -> None:
    saga = Saga("patient")

    @saga.wait("at_last")
    def waited(saga: SagaContext[Any], event: Any) -> None: ...

    runs = Runs(saga)
    for _ in range(20):
        await runs.take_up()
        runs.journal.signal("not_yet", b"1")
    runs.journal.signal("at_last", b"1")
    await runs.take_up()
    assert runs.outcome == "COMPLETED"
