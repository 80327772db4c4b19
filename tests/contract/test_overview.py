"""The overview: what waits in each queue and who works on it, on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.admin import BoundedCount, as_json
from postroom.rules.ordering import Order
from postroom.store.admin.overview import OverviewReader
from postroom.store.outbox.leases import Dead, Postponed, Retry, Sent
from postroom.store.outbox.workers import Workers
from tests.contract.store_drivers import Room, key_of_lane
from tests.contract.stored_sagas import Sagas

if TYPE_CHECKING:
    from postroom.admin import Overview, QueueOverview


def queues(overview: Overview) -> dict[str, QueueOverview]:
    return {one.queue: one for one in overview.queues}


def test_V_6_an_empty_outbox_has_an_empty_overview(room: Room) -> None:
    found = room.admin().overview()
    assert (found.queues, found.workers, found.targets, found.sagas) == ((), (), (), ())
    assert (found.pending, found.in_doubt, found.oldest_pending_seconds) == (BoundedCount(), BoundedCount(), 0.0)


def test_V_6_each_queue_tells_what_waits_in_it_and_who_works_on_it(room: Room) -> None:
    room.add(5)
    room.add(2, deliver_in=60)
    room.add(3, queue="topic:payments")
    room.advance(100)
    sent, dead, failed, target, *_ = room.claim()
    room.settle(
        *(Sent(sent), Dead(dead, "CODE", "text"), Retry(failed, 600, "CODE", "text")),
        Postponed(target, 600, "TARGET_UNAVAILABLE", "no queue"),
    )
    room.add(2, key=key_of_lane(3))
    [first] = room.read_lanes(room.take_lanes(), 1).messages
    room.settle(Dead(first, "CODE", "text"))
    room.run(Workers(room.names).beat("ada", 1, 0, "refused"))
    room.run(Workers(room.names).beat("eve", 1, 0))
    room.run(Workers(room.names, "idle").beat("eve", 0, 0))
    found = room.admin().overview()
    default, idle, payments = found.queues
    assert (default.queue, idle.queue, payments.queue) == ("default", "idle", "topic:payments")
    assert [str(one) for one in (default.pending, default.waiting, default.dead)] == ["4", "2", "2"]
    assert (int(default.held_keys), default.workers, default.workers_down) == (1, 2, 1)
    assert default.oldest_pending_seconds == pytest.approx(100, abs=5)
    assert (idle.workers, bool(idle.pending)) == (1, False)
    assert (payments.pending, payments.workers) == (BoundedCount(3), 0)
    assert (found.pending, found.dead, found.held_keys) == (BoundedCount(7), BoundedCount(2), BoundedCount(1))
    assert [(one.queue, one.topic, one.waiting, one.reason) for one in found.targets] == [
        ("default", "orders", 1, "no queue")
    ]
    assert [(one.name, one.broker_down) for one in found.down] == [("ada", "refused")]
    assert not room.admin(Order.SKIP).overview().held_keys
    assert as_json(found)["queues"][0]["dead"] == {"value": 2, "more": False}


def test_V_6_counts_stop_at_their_limit(room: Room) -> None:
    room.add(4)
    room.add(3, queue="topic:payments")
    found = queues(room.run(OverviewReader(room.names, most=3).overview()))
    assert (str(found["default"].pending), str(found["topic:payments"].pending)) == ("3+", "3")


def test_V_6_sagas_and_transactions_that_have_not_ended_are_counted(room: Room) -> None:
    sagas = Sagas(room)
    for _ in range(3):
        sagas.start()
    [parked, *_] = sagas.claim()
    room.run(room.on(f"saga:{sagas.name}").settlements.settle([Dead(parked, "BROKEN", "text")]))
    sagas.signal("nobody")
    room.execute(
        "INSERT INTO {twophase} (id, decision, participants, deadline_ms) "
        "VALUES ('a', 1, :none, 0), ('b', 1, :none, 0)",
        none="{}",
    )
    room.execute(f"UPDATE {{twophase}} SET settled_at = {room.dialect.now} WHERE id = 'b'")
    found = room.admin().overview()
    assert [(one.name, str(one.open), str(one.parked)) for one in found.sagas] == [(sagas.name, "3", "1")]
    assert found.in_doubt == BoundedCount(1)
    assert found.in_doubt_oldest_seconds < 30
