"""Waiting for events and times: no event is missed, none counts twice, whatever comes first."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Kind, PlannedStep, SagaOutcome, StepOutcome
from postroom.store.saga.values import LOST, Event, Locked, Logged, Received
from tests.contract.stored_sagas import FORWARD, Sagas, done, failed

if TYPE_CHECKING:
    from postroom.store.outbox.leases import Claimed
    from tests.contract.store_drivers import Room

WAITING, DONE = int(StepOutcome.WAITING), int(StepOutcome.DONE)


@pytest.fixture
def sagas(room: Room) -> Sagas:
    return Sagas(room)


def receive(sagas: Sagas, id: str, event: str = "parcel", payload: object = None) -> Received | Locked:
    """Signal an event, and let a worker receive it."""
    message = sagas.signal(id, event, payload)
    [signal] = [one for one in sagas.claim() if one.message.id == message.id]
    return sagas.room.run(sagas.store.receive(signal, id, event, signal.message.payload))


def woken(sagas: Sagas, position: int) -> Claimed:
    [claimed] = [one for one in sagas.claim() if one.position == position]
    return claimed


def test_an_instance_sleeps_until_its_event_comes(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7")
    assert room.run(sagas.store.wait(claimed, "delivered", "parcel", 3600)) is None
    asleep = room.delivery(claimed.position)
    assert (asleep.state, asleep.token, asleep.owner, asleep.claims) == (Stored.SCHEDULED, 0, "", 0)
    assert sagas.steps(claimed.position) == {(0, "delivered"): WAITING}
    assert sagas.claim() == []
    assert receive(sagas, "order-7", "parcel", {"by": "ann"}) is Received.DELIVERED
    again = woken(sagas, claimed.position)
    event = room.run(sagas.store.wait(again, "delivered", "parcel", 3600))
    assert isinstance(event, Event)
    assert (event.name, event.payload) == ("parcel", b'{"by":"ann"}')
    assert room.run(sagas.store.holds(again))
    assert sagas.log(again, done("delivered", b"1"), event=event.message_id) is Logged.WRITTEN
    assert sagas.steps(claimed.position) == {(0, "delivered"): DONE}
    assert sagas.read(claimed.position).rows[FORWARD, "delivered"].result == b"1"
    assert sagas.events(claimed.position) == []
    assert len(room.receipts()) == 1  # the signal's


def test_an_event_may_come_before_the_instance_waits(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7")
    assert receive(sagas, "order-7", "invoice") is Received.DELIVERED
    assert receive(sagas, "order-7", "parcel", 1) is Received.DELIVERED
    assert receive(sagas, "order-7", "parcel", 2) is Received.DELIVERED
    event = room.run(sagas.store.wait(claimed, "delivered", "parcel", 3600))
    assert isinstance(event, Event)
    assert event.payload == b"1"  # the first of its name
    assert room.run(sagas.store.holds(claimed))
    assert sagas.log(claimed, done("delivered"), event=event.message_id) is Logged.WRITTEN
    assert sagas.events(claimed.position) == ["invoice", "parcel"]


def test_an_event_that_cannot_be_read_is_passed_over(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7")
    for payload in (1, 2):
        assert receive(sagas, "order-7", "parcel", payload) is Received.DELIVERED
    after: UUID | None = None
    for expected in (b"1", b"2"):
        event = room.run(sagas.store.wait(claimed, "delivered", "parcel", 3600, after, "bad"))
        assert isinstance(event, Event)
        assert event.payload == expected
        after = event.message_id
    assert room.run(sagas.store.wait(claimed, "delivered", "parcel", 3600, after, "bad")) is None
    asleep = room.delivery(claimed.position)
    assert (asleep.state, asleep.attempts, asleep.claims) == (Stored.SCHEDULED, 0, 0)
    assert (asleep.error_code, asleep.error_message) == ("STEP_MISSING", "bad")
    assert sagas.events(claimed.position) == ["parcel", "parcel"]
    assert receive(sagas, "order-7", "parcel", 3) is Received.DELIVERED
    again = woken(sagas, claimed.position)
    event = room.run(sagas.store.wait(again, "delivered", "parcel", 3600, after, "bad"))
    assert isinstance(event, Event)
    assert event.payload == b"3"


def test_a_wait_for_no_time_only_looks(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7")
    assert room.run(sagas.store.wait(claimed, "delivered", "parcel", 0)) is None
    assert room.run(sagas.store.holds(claimed))
    assert sagas.log(claimed, done("delivered")) is Logged.WRITTEN  # as a wait that goes on without its event
    assert sagas.steps(claimed.position) == {(0, "delivered"): DONE}


def test_the_time_of_a_wait_counts_from_its_beginning(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    assert room.run(sagas.store.wait(claimed, "cooling_off", None, 60)) is None
    assert sagas.claim() == []
    room.advance(61)
    [again] = sagas.claim()
    assert 61 <= sagas.read(again.position).rows[FORWARD, "cooling_off"].waited < 70
    assert room.run(sagas.store.wait(again, "cooling_off", None, 5)) is None  # woken too early, as it were
    room.advance(6)
    [again] = sagas.claim()
    assert 67 <= sagas.read(again.position).rows[FORWARD, "cooling_off"].waited < 76
    assert sagas.log(again, done("cooling_off"), end=SagaOutcome.COMPLETED) is Logged.WRITTEN


def test_a_wait_that_timed_out_turns(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    room.run(sagas.store.wait(claimed, "delivered", "parcel", 1))
    room.advance(2)
    [again] = sagas.claim()
    assert room.run(sagas.store.turn(again, [failed("delivered")], "delivered", "TIMEOUT", "", token=7))
    assert sagas.steps(again.position) == {(0, "delivered"): int(StepOutcome.FAILED)}


def test_a_wait_that_is_over_is_not_begun_again(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    sagas.log(claimed, done("delivered"))
    assert room.run(sagas.store.wait(claimed, "delivered", "parcel", 60)) is LOST
    assert room.run(sagas.store.holds(claimed))


def test_whoever_lost_the_lease_neither_waits_nor_takes_an_event(room: Room, sagas: Sagas) -> None:
    late = sagas.running(id="order-7")
    room.advance(31)
    [other] = sagas.claim(worker="other")
    assert room.run(sagas.store.wait(late, "delivered", "parcel", 60)) is LOST
    assert sagas.steps(other.position) == {}
    assert room.delivery(other.position).token == other.token


def test_a_repeated_signal_is_one_event(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7")
    message = sagas.signal("order-7")
    [late] = sagas.claim()
    room.advance(31)
    [signal] = [one for one in sagas.claim(worker="other") if one.message.id == message.id]
    assert room.run(sagas.store.receive(late, "order-7", "parcel", b"1")) is Received.LEASE_LOST
    assert sagas.events(claimed.position) == []
    assert room.run(sagas.store.receive(signal, "order-7", "parcel", b"1")) is Received.DELIVERED
    assert room.run(sagas.store.receive(signal, "order-7", "parcel", b"1")) is Received.LEASE_LOST
    assert sagas.events(claimed.position) == ["parcel"]


def test_a_signal_to_nobody_waits_and_one_to_an_ended_instance_is_too_late(room: Room, sagas: Sagas) -> None:
    assert receive(sagas, "order-7") is Received.UNKNOWN
    assert room.receipts() == {}
    assert len(room.positions()) == 1  # it is tried again later
    claimed = sagas.running(id="order-8")
    sagas.log(claimed, end=SagaOutcome.COMPLETED)
    assert receive(sagas, "order-8") is Received.ENDED
    assert len(room.receipts()) == 2
    assert sagas.events(claimed.position) == []


@pytest.mark.parametrize("state", ["leased", "retry", "parked"])
def test_an_event_comes_to_an_instance_in_any_state_and_disturbs_nothing(room: Room, sagas: Sagas, state: str) -> None:
    claimed = sagas.running(id="order-7")
    if state == "retry":
        room.run(sagas.queue.settlements.settle([sagas.retry(claimed, 60)]))
    if state == "parked":
        room.run(sagas.store.park(claimed, "charge", "TIMEOUT", "", attempted=True))
    before = room.delivery(claimed.position)
    assert receive(sagas, "order-7") is Received.DELIVERED
    assert room.delivery(claimed.position) == before
    assert sagas.events(claimed.position) == ["parcel"]


def test_an_unused_event_does_not_keep_an_instance_from_its_end(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7", plan=(PlannedStep("a", Kind.WAIT, event="parcel"),))
    receive(sagas, "order-7", "another")
    assert sagas.log(claimed, done("a"), end=SagaOutcome.COMPLETED, event=UUID(int=7)) is Logged.WRITTEN
    assert sagas.row(claimed.position).outcome == SagaOutcome.COMPLETED
