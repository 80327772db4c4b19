"""The backlog as metrics show it, on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.rules.ordering import Order
from postroom.store.admin.backlog import BacklogReader
from postroom.store.outbox.leases import Dead, Retry, Sent
from tests.contract.store_drivers import Room, key_of_lane

if TYPE_CHECKING:
    from postroom.telemetry.events import Backlog

SAGA = "saga:place_order"


def backlog(room: Room, order: Order = Order.HOLD, most: int = 1000) -> dict[str, Backlog]:
    return room.run(BacklogReader(room.names, order, most).backlog())


def oldest_saga(room: Room) -> float:
    return backlog(room)[SAGA].oldest_pending_seconds


def test_V_1_an_empty_outbox_has_no_backlog(room: Room) -> None:
    assert backlog(room) == {}


def test_V_1_messages_are_counted_by_queue_and_state(room: Room) -> None:
    room.add(5)
    room.add(2, deliver_in=60)
    room.add(3, queue="topic:payments")
    sent, dead, failed, *_ = room.claim()
    room.settle(Sent(sent), Dead(dead, "CODE", "text"), Retry(failed, 60, "CODE", "text"))
    found = backlog(room)
    assert {queue: (one.pending, one.waiting, one.dead) for queue, one in found.items()} == {
        "default": (2, 3, 1),
        "topic:payments": (3, 0, 0),
    }


def test_V_1_a_count_stops_at_its_limit(room: Room) -> None:
    room.add(9)
    assert backlog(room, most=4)["default"].pending == 4


def test_V_1_the_oldest_is_that_which_waited_longest_in_any_lane(room: Room) -> None:
    room.add(key=key_of_lane(5))
    room.advance(100)
    room.add(key=key_of_lane(0))
    room.add()
    assert backlog(room)["default"].oldest_pending_seconds == pytest.approx(100, abs=5)


def test_V_1_what_was_due_later_has_waited_only_since_then(room: Room) -> None:
    room.add(deliver_in=80)
    room.advance(100)
    claimed = room.claim(due=True)  # it is ready from here on
    assert len(claimed) == 1
    assert backlog(room)["default"].oldest_pending_seconds == pytest.approx(20, abs=5)


@pytest.mark.parametrize(("order", "seconds"), [(Order.HOLD, 0), (Order.SKIP, 100)])
def test_V_1_what_is_held_back_does_not_count_as_waiting_to_leave(room: Room, order: Order, seconds: float) -> None:
    room.add(2, key="a")
    [first, _] = room.read_lanes(room.take_lanes()).messages
    room.settle(Dead(first, "CODE", "text"))
    room.advance(100)
    assert backlog(room, order)["default"].pending == 1
    assert backlog(room, order)["default"].held_keys == int(order is Order.HOLD)
    assert backlog(room, order)["default"].oldest_pending_seconds == pytest.approx(seconds, abs=5)


def test_V_1_a_saga_that_a_worker_holds_does_not_wait(room: Room) -> None:
    """It lives long, and is held as long as it runs: only one that no worker takes shows that workers are too few."""
    room.add(2, queue=SAGA)
    saga = room.on(SAGA)
    room.advance(100)
    assert len(room.run(saga.rows.claim("worker", 1, 30)).messages) == 1
    assert oldest_saga(room) == pytest.approx(100, abs=5)
    assert len(room.run(saga.rows.claim("worker", 1, 30)).messages) == 1
    assert oldest_saga(room) == 0
    room.advance(50)  # both leases ended 20 seconds ago
    assert oldest_saga(room) == pytest.approx(20, abs=5)


def test_V_1_a_saga_that_no_worker_took_when_it_was_due_waits(room: Room) -> None:
    room.add(queue=SAGA)
    [claimed] = room.run(room.on(SAGA).rows.claim("worker", 1, 30)).messages
    room.run(room.on(SAGA).settlements.settle([Retry(claimed, 60, "CODE", "text")]))
    assert oldest_saga(room) == 0
    room.advance(100)
    assert oldest_saga(room) == pytest.approx(40, abs=5)
