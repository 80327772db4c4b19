"""Interrupted lanes: what their last holder was sending is suspect, and what kills its worker ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from postroom.rules.failures import Reason
from postroom.rules.lifecycle import ClaimLimits
from postroom.rules.ordering import Order
from postroom.store.outbox.leases import Claim, Claimed, Dead, GivenBack, Lane, Sent
from tests.contract.store_drivers import Room, key_of_lane, positions

if TYPE_CHECKING:
    from postroom.store.outbox.leases import Settlement
    from postroom.store.outbox.queue_store import QueueStore


def later(lane: Lane) -> Lane:
    """The lane as its holder hands it in after the first read."""
    return msgspec.structs.replace(lane, interrupted=False)


class Crashing:
    """A worker that takes the lanes, reads them once and dies."""

    def __init__(self, room: Room, limits: ClaimLimits, order: Order = Order.HOLD) -> None:
        self.room = room
        self.protocol: QueueStore = room.on(limits=limits, order=order)

    def read(self) -> Claim:
        lanes = self.room.run(self.protocol.lanes.take("worker", 30))
        return self.room.run(self.protocol.lanes.read(lanes, 100, 30))

    def crash(self) -> None:
        self.room.advance(31)

    def settle(self, *settlements: Settlement) -> list[Claimed]:
        return self.room.run(self.protocol.settlements.settle(settlements))


def test_L_7_what_kills_its_worker_in_a_lane_is_sent_alone_and_then_goes_dead(room: Room) -> None:
    [before] = room.add(key="innocent")
    [poison, behind] = room.add(2, key="poisoned")
    worker = Crashing(room, ClaimLimits(alone_after=1, dead_after=3))
    assert [one.claims for one in worker.read().messages] == [0, 0, 0]  # nobody was interrupted
    worker.crash()
    assert [one.claims for one in worker.read().messages] == [1, 1, 1]
    worker.crash()
    # Suspects now; the oldest is sent alone and turns out to be innocent.
    [alone] = worker.read().messages
    assert (alone.position, alone.claims) == (before, 2)
    assert [room.delivery(position).claims for position in (poison, behind)] == [1, 1]
    assert worker.settle(Sent(alone)) == []
    worker.crash()
    for claims in (2, 3):
        [alone] = worker.read().messages
        assert (alone.position, alone.claims) == (poison, claims)
        worker.crash()
    last = worker.read()
    [dead] = last.settled
    assert isinstance(dead, Dead)
    assert (dead.claimed.position, dead.code) == (poison, Reason.LEASE_EXPIRED)
    assert last.messages == []  # the dead one holds its key
    row = room.delivery(poison)
    assert (row.state, row.attempts, row.error_code) == (3, 0, Reason.LEASE_EXPIRED)
    worker.crash()
    assert worker.read().messages == []
    assert room.delivery(behind).claims == 1


def test_L_7_a_lane_that_was_not_interrupted_counts_no_claims(room: Room) -> None:
    [position] = room.add(key="a")
    for _ in range(8):
        lanes = room.take_lanes()
        assert positions(room.read_lanes(lanes).messages) == [position]
        assert positions(room.read_lanes(lanes).messages) == [position]
        room.run(room.deliveries.lanes.release(lanes))
    assert room.delivery(position).claims == 0


def test_L_7_only_the_first_read_of_an_interrupted_lane_counts(room: Room) -> None:
    [position] = room.add(key="a")
    room.take_lanes()
    room.advance(31)
    lanes = room.take_lanes()
    assert [one.claims for one in room.read_lanes(lanes).messages] == [1]
    assert [one.claims for one in room.read_lanes([later(lane) for lane in lanes]).messages] == [1]
    assert room.delivery(position).claims == 1


def test_L_7_giving_back_a_message_of_a_lane_changes_nothing(room: Room) -> None:
    [position] = room.add(key="a")
    room.take_lanes()
    room.advance(31)
    lanes = room.take_lanes()
    [claimed] = room.read_lanes(lanes).messages
    before = room.delivery(position)
    assert room.settle(GivenBack(claimed)) == []
    assert room.delivery(position) == before
    assert positions(room.read_lanes([later(lane) for lane in lanes]).messages) == [position]


def test_L_3_who_lost_the_lane_counts_no_claims_in_it(room: Room) -> None:
    [position] = room.add(key="a")
    room.take_lanes("crashed")
    room.advance(31)
    lanes = room.take_lanes("slow")
    claimed = room.read_lanes(lanes).messages
    room.advance(31)
    room.take_lanes("quick")
    room.run(room.deliveries.sql.transaction(room.deliveries.lanes._count_claims, claimed))
    assert room.delivery(position).claims == 1


@pytest.mark.parametrize("order", Order)
def test_a_delivery_of_a_lane_without_a_message_goes_dead(room: Room, order: Order) -> None:
    protocol = room.on(order=order)
    lost, behind = room.add(2, key="a")
    [other] = room.add(key=key_of_lane(0))
    room.select("DELETE FROM {outbox} WHERE position = :position", position=lost)
    lanes = room.run(protocol.lanes.take("worker", 30))
    claim = room.run(protocol.lanes.read(lanes, 10, 30))
    assert [one.claimed.position for one in claim.settled] == [lost]
    assert positions(claim.messages) == [other]  # whether anything stands behind the lost one shows at the next read
    row = room.delivery(lost)
    assert (row.state, row.error_code, row.attempts) == (3, Reason.MESSAGE_MISSING, 0)
    again = room.run(protocol.lanes.read(lanes, 10, 30))
    assert positions(again.messages) == ([other] if order is Order.HOLD else [behind, other])
