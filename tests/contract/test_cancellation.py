"""Cancellation: an operator removes what was not sent yet; what is behind it on its key goes on in its order."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from postroom import Message
from postroom.admin import ALL, ActResult, Filter, Refusal
from postroom.errors import InvalidSetting
from postroom.rules.naming import LEDGER
from postroom.rules.ordering import Order
from postroom.store.outbox.leases import Dead, Retry, Sent
from postroom.store.outbox.workers import Workers
from tests.contract.store_drivers import Room, key_of_lane, positions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

KEY = key_of_lane(0)


def cancel(room: Room, wanted: Sequence[int] | None = None, **fields: Any) -> ActResult:
    ids = None if wanted is None else room.ids(wanted)
    return room.admin().cancel(Filter(ids, **fields), actor="ada")


def sending(done: ActResult) -> list[UUID]:
    assert {one.status for one in done.refused} <= {Refusal.SENDING}
    return [one.id for one in done.refused]


def test_L_17_pending_and_waiting_messages_are_removed_and_audited(room: Room) -> None:
    pending, keyed, later, other = (
        *room.add(),
        *room.add(key=KEY),
        *room.add(deliver_in=60),
        *room.add(topic="other"),
    )
    ids = room.ids([pending, keyed, later])
    done = cancel(room, [pending, keyed, later])
    assert (done.count, set(done.ids), sending(done)) == (3, set(ids), [])
    assert room.positions() == [other]
    assert room.select("SELECT position FROM {outbox}") == [(other,)]
    assert {(one.action, one.actor, one.position) for one in room.audit()} == {
        ("cancel", "ada", position) for position in (pending, keyed, later)
    }


def test_L_17_what_is_sent_or_dead_stays(room: Room) -> None:
    [dead, sent] = room.add(2)
    [first, second] = room.claim()
    room.settle(Dead(first, "CODE", "text"), Sent(second))
    assert cancel(room, [dead, sent]).count == 0
    assert (room.positions(), list(room.receipts())) == ([dead], [sent])


def test_L_17_what_is_being_sent_is_refused_until_its_lease_ends(room: Room) -> None:
    [alone] = room.add()
    [read, unread] = room.add(2, key=KEY)
    ids = room.ids([alone, read])
    room.claim(seconds=30)
    lanes = room.take_lanes(seconds=30)
    assert positions(room.read_lanes(lanes, 1).messages) == [read]
    done = cancel(room)
    assert (done.count, sorted(sending(done))) == (1, sorted(ids))
    assert room.positions() == [alone, read]
    assert sending(cancel(room)) == sending(done)  # that a lane is marked changes nothing
    room.advance(31)
    assert cancel(room).count == 2
    assert unread not in room.positions()


def test_L_17_what_a_relay_read_whose_broker_is_down_can_be_cancelled(room: Room) -> None:
    [read] = room.add(key=KEY)
    room.run(Workers(room.names).beat("worker", 16, 0, "connection refused"))
    room.read_lanes(room.take_lanes("worker"))
    assert cancel(room, [read]).count == 1


@pytest.mark.parametrize("order", Order)
def test_L_17_those_behind_a_cancelled_message_go_in_their_order(room: Room, order: Order) -> None:
    protocol = room.on(order=order)
    [first, *held] = room.add(3, key=KEY)
    lanes = room.take_lanes()
    [claimed] = room.run(protocol.lanes.read(lanes, 1, 30)).messages
    room.settle(Retry(claimed, 60, "UNROUTABLE", "no such queue"))
    [late] = room.add(key=KEY)
    assert room.run(protocol.lanes.read(lanes, 10, 30)).messages == []
    assert cancel(room, code="UNROUTABLE").count == 1
    behind = {0: held[-1]}
    claim = room.run(protocol.lanes.read(lanes, 10, 30, after=behind))
    assert (claim.messages, list(claim.freed)) == ([], [0])
    room.run(protocol.lanes.look_back(lanes))
    assert positions(room.run(protocol.lanes.read(lanes, 10, 30)).messages) == [*held, late]
    assert first not in room.positions()


def test_L_17_what_is_held_can_be_cancelled_though_its_lane_is_being_read(room: Room) -> None:
    [dead, held, last] = room.add(3, key=KEY)
    lanes = room.take_lanes()
    [claimed, *_] = room.read_lanes(lanes).messages
    room.settle(Dead(claimed, "CODE", "text"))
    assert cancel(room, [held]).count == 1
    assert room.positions() == [dead, last]


def test_L_17_a_filter_chooses_and_counts(room: Room) -> None:
    orders, others = room.add(3, topic="orders"), room.add(2, topic="others", key=KEY)
    assert room.admin().count_unsent(Filter(topic="others", key=KEY)).total == 2
    assert cancel(room, topic="others", key=KEY).count == 2
    room.advance(90)
    room.add(topic="orders")
    assert cancel(room, older_than=timedelta(minutes=1)).count == 3
    assert not set(room.positions()) & {*orders, *others}


def test_V_6_only_what_is_pending_or_only_what_waits(room: Room) -> None:
    [failed] = room.add()
    room.settle(Retry(room.claim()[0], 30, "CODE", "text"))
    [ready, later] = *room.add(), *room.add(deliver_in=60)
    admin = room.admin()
    shown = admin.count_unsent(Filter(status="waiting"))
    assert (shown.total, admin.count_unsent(Filter(status="pending")).total) == (2, 1)
    assert admin.count_dead_letters(Filter(status="pending")).total == 0
    # What matters is the moment that was shown: 40 seconds from now, one of them is due.
    then = shown.as_of + timedelta(seconds=40)
    assert [admin.count_unsent(Filter(status=one, as_of=then)).total for one in ("waiting", "pending")] == [1, 2]
    ids = room.ids([failed, later])
    assert set(cancel(room, status="waiting", as_of=shown.as_of).ids) == set(ids)
    assert room.positions() == [ready]
    with pytest.raises(InvalidSetting, match="status = 'sent' is not valid in a filter: use pending, waiting or dead"):
        Filter(status="sent")


def test_thousands_are_cancelled_in_batches(room: Room) -> None:
    room.add(1200, key=KEY)
    told: list[int] = []
    done = room.admin().cancel(ALL, actor="ada", progress=told.append)
    assert (done.count, told, room.positions()) == (1200, [500, 500, 200], [])


def test_L_12_a_keyed_request_that_waits_for_the_message_fails(room: Room) -> None:
    place = msgspec.json.encode(["scope", "k", "a" * 64]).decode()
    room.add_messages([msgspec.structs.replace(Message.new("t", 1), headers={LEDGER: place})])
    assert cancel(room).count == 1
    assert room.select("SELECT status, http_status FROM {idempotency} WHERE idempotency_key = 'k'") == [("failed", 410)]
