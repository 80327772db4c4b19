"""Aborting an instance: it takes the lease away, whoever has it, and refuses what cannot be undone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.errors import SagaNotDecodable
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Kind, PlannedStep, SagaOutcome
from postroom.store.saga.values import Aborted, Logged
from tests.contract.stored_sagas import BACK, NAME, Row, Sagas, done, failed

if TYPE_CHECKING:
    from tests.contract.store_drivers import Room


@pytest.fixture
def sagas(room: Room) -> Sagas:
    return Sagas(room)


def abort(sagas: Sagas, id: str = "order-7") -> Aborted:
    found: Aborted = sagas.in_transaction(sagas.store.abort, id, "ann", "no longer wanted")
    return found


@pytest.mark.parametrize("state", ["new", "leased", "waiting", "retry", "parked"])
def test_an_abort_takes_the_lease_and_turns_back(room: Room, sagas: Sagas, state: str) -> None:
    position = sagas.start("order-7")
    held = sagas.claim() if state != "new" else []
    for claimed in held:
        if state == "waiting":
            room.run(sagas.store.wait(claimed, "delivered", "parcel", 60))
        elif state == "retry":
            room.run(sagas.queue.settlements.settle([sagas.retry(claimed, 60)]))
        elif state == "parked":
            room.run(sagas.store.park(claimed, "charge", "TIMEOUT", "no answer", attempted=True))
    assert abort(sagas) is Aborted.ABORTED
    assert sagas.row(position) == Row(1, 0, "", "ABORTED", "no longer wanted", "ann")
    delivery = room.delivery(position)
    assert (delivery.state, delivery.token, delivery.owner, delivery.leased_until) == (Stored.READY, 0, "", None)
    assert (delivery.attempts, delivery.claims, delivery.error_code) == (0, 0, "")
    if state == "leased":
        assert sagas.log(held[0], done("reserve")) is Logged.LEASE_LOST
        assert room.run(sagas.queue.renewals.renew(held, [], 30)).lost == held
    [again] = sagas.claim(worker="other")  # it goes back at once
    assert again.position == position
    entry = room.audit()[-1]
    assert (entry.action, entry.actor, entry.position) == ("saga_aborted", "ann", position)
    assert entry.details == {"saga": NAME, "id": "order-7", "reason": "no longer wanted"}
    assert abort(sagas) is Aborted.ALREADY_BACK


def test_what_cannot_be_aborted_is_told_and_left_alone(room: Room, sagas: Sagas) -> None:
    assert abort(sagas, "order-1") is Aborted.UNKNOWN
    plan = (PlannedStep("reserve"), PlannedStep("charge", pivot=True), PlannedStep("ship"))
    claimed = sagas.running(id="order-7", plan=plan)
    sagas.log(claimed, done("reserve"), done("charge"))
    assert abort(sagas) is Aborted.PAST_PIVOT
    assert room.run(sagas.store.holds(claimed))
    assert sagas.row(claimed.position).direction == 0
    sagas.log(claimed, done("ship"), end=SagaOutcome.COMPLETED)
    assert abort(sagas) is Aborted.ENDED
    assert room.audit() == []


def test_a_pivot_that_may_be_on_its_way_refuses_an_abort(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7", plan=(PlannedStep("charge", Kind.CALL, pivot=True),))
    assert abort(sagas) is Aborted.PAST_PIVOT
    assert room.run(sagas.store.holds(claimed))


def test_a_parked_pivot_leaves_it_to_the_operator_whether_it_happened(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7", plan=(PlannedStep("charge", Kind.CALL, pivot=True),))
    room.run(sagas.store.park(claimed, "charge", "TIMEOUT", "no answer", attempted=True))
    assert sagas.in_transaction(sagas.store.abort, "order-7", "ada", "the bank has not seen it") is Aborted.ABORTED
    assert sagas.row(claimed.position).direction == BACK


def test_an_instance_that_turned_by_itself_is_on_its_way_back(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running(id="order-7")
    room.run(sagas.store.turn(claimed, [failed("reserve")], "reserve", "NO", "", token=7))
    assert abort(sagas) is Aborted.ALREADY_BACK
    assert room.delivery(claimed.position).token == 7


def test_a_plan_that_cannot_be_read_is_a_clear_error(room: Room, sagas: Sagas) -> None:
    position = sagas.start("order-7")
    room.select("UPDATE {outbox} SET headers = :headers WHERE position = :position", headers="{}", position=position)
    with pytest.raises(SagaNotDecodable, match="plan"):
        abort(sagas)
    assert sagas.row(position).direction == 0
