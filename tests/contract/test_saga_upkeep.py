"""What operators and clean-up do to queues in general, and must not do to sagas."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from postroom.admin import Filter
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import SagaOutcome
from postroom.store.admin.cancellation import Cancellation
from postroom.store.admin.dead_letters import DeadLetters
from postroom.store.admin.expired_leases import ExpiredLeases
from postroom.store.admin.retention import clean
from postroom.store.outbox.leases import Dead
from tests.contract.store_drivers import on_one_driver_of_each_style
from tests.contract.stored_sagas import NAME, Sagas, done

if TYPE_CHECKING:
    from tests.contract.store_drivers import Room

pytestmark = on_one_driver_of_each_style
DAY = 86_400


@pytest.fixture
def sagas(room: Room) -> Sagas:
    return Sagas(room)


def rows(room: Room) -> dict[str, int]:
    """How many rows there are, in the tables that have any."""
    counts = {
        table: int(room.select(f"SELECT count(*) FROM {{{table}}}")[0][0])
        for table in ("outbox", "delivery", "receipt", "saga", "saga_step", "saga_event")
    }
    return {table: count for table, count in counts.items() if count}


def test_retention_removes_all_of_a_saga_and_nothing_of_an_open_one(room: Room, sagas: Sagas) -> None:
    ended, open_one = sagas.running(id="order-1"), sagas.running(id="order-2")
    for claimed in (ended, open_one):
        signal = sagas.signal(f"order-{1 if claimed is ended else 2}")
        [received] = [one for one in sagas.claim() if one.message.id == signal.id]
        room.run(sagas.store.receive(received, f"order-{1 if claimed is ended else 2}", "parcel", b"1"))
        sagas.log(claimed, done("reserve"))
    sagas.log(ended, done("charge"), end=SagaOutcome.COMPLETED)
    assert rows(room) == {"outbox": 4, "delivery": 1, "receipt": 3, "saga": 2, "saga_step": 3, "saga_event": 2}
    room.advance(6 * DAY)
    assert room.run(clean(room.names)).messages == 0
    room.advance(2 * DAY)
    assert room.run(clean(room.names, batch=1)).messages == 3
    assert rows(room) == {"outbox": 1, "delivery": 1, "saga": 1, "saga_step": 1, "saga_event": 1}
    assert list(sagas.read(open_one.position).rows) == [(0, "reserve")]
    assert room.run(sagas.store.position_of("order-1")) is None
    assert sagas.start("order-1") > open_one.position  # the id is free again


def test_retention_leaves_an_open_saga_alone_though_there_is_a_receipt(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    sagas.log(claimed, done("reserve"))
    room.select("INSERT INTO {receipt} (position, outcome) VALUES (:position, 'sent')", position=claimed.position)
    room.advance(8 * DAY)
    room.run(clean(room.names))
    assert rows(room) == {"outbox": 1, "delivery": 1, "receipt": 1, "saga": 1, "saga_step": 1}


@pytest.mark.parametrize("which", ["all", "queue", "ids", "topic", "code"])
def test_a_parked_saga_is_not_discarded(room: Room, sagas: Sagas, which: str) -> None:
    claimed = sagas.running(id="order-7")
    room.run(sagas.store.park(claimed, "charge", "TIMEOUT", "", attempted=True))
    [other] = room.add(1)
    room.settle(*(Dead(one, "TIMEOUT", "") for one in room.claim()))
    ids = list(map(str, room.ids([claimed.position, other])))
    chosen = {
        "all": Filter(),
        "queue": Filter(queue=f"saga:{NAME}"),
        "ids": Filter(ids=ids),
        "topic": Filter(topic=f"saga:{NAME}"),
        "code": Filter(code="TIMEOUT"),
    }
    acted = room.run(DeadLetters(room.names).discard(chosen[which]))
    assert acted.sagas == [claimed.message.id]  # it says so, and stops no act on the others
    others = [] if which in {"queue", "topic"} else [other]
    assert acted.ids == [UUID(one) for one in ids if one != str(claimed.message.id)][: len(others)]
    assert room.positions(Stored.DEAD) == [one for one in (claimed.position, other) if one not in others]


def test_a_requeued_saga_goes_on_as_a_resumed_one(room: Room, sagas: Sagas) -> None:
    """A first attempt that is refused has no effect to undo; this one is not the first, though its attempts are."""
    claimed = sagas.running()
    sagas.log(claimed, done("reserve"))
    room.run(sagas.store.park(claimed, "charge", "TIMEOUT", "", attempted=True))
    assert room.run(DeadLetters(room.names).requeue(Filter(ids=[claimed.message.id]))).count == 1
    [again] = sagas.claim()
    assert (again.attempts, again.claims) == (0, 2)
    assert list(sagas.read(again.position).rows) == [(0, "reserve")]


def test_a_dead_signal_is_a_message_like_others(room: Room, sagas: Sagas) -> None:
    sagas.signal("nobody")
    [signal] = sagas.claim()
    room.run(sagas.queue.settlements.settle([Dead(signal, "SAGA_UNKNOWN", "")]))
    assert room.run(DeadLetters(room.names).discard(Filter(queue=f"saga:{NAME}"))).count == 1
    sagas.signal("nobody")
    assert room.run(Cancellation(room.names).cancel(Filter(queue=f"saga:{NAME}"))).count == 1
    assert rows(room) == {}


@pytest.mark.parametrize("state", ["new", "waiting", "retry"])
def test_a_saga_is_not_cancelled(room: Room, sagas: Sagas, state: str) -> None:
    position = sagas.start("order-7")
    if state != "new":
        [claimed] = sagas.claim()
        if state == "waiting":
            room.run(sagas.store.wait(claimed, "delivered", "parcel", 60))
        else:
            room.run(sagas.queue.settlements.settle([sagas.retry(claimed, 60)]))
    for which in (Filter(), Filter(ids=room.ids([position]))):
        room.add(1)
        acted = room.run(Cancellation(room.names).cancel(which))
        assert (acted.count, [str(one) for one in acted.sagas]) == (which == Filter(), [str(*room.ids([position]))])
    assert room.positions()[0] == position


def test_expired_leases_of_sagas_stay_so_that_late_work_counts(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    room.add(1)
    room.claim()
    room.advance(60)
    assert room.run(ExpiredLeases(room.names).release()).messages == 1
    assert room.run(sagas.store.holds(claimed))
