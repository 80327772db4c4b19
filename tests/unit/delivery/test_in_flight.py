from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from postroom.delivery.held_lanes import HeldLanes
from postroom.delivery.in_flight import InFlight
from postroom.delivery.pending import PendingSettlements
from postroom.message import Message
from postroom.rules.ordering import NO_LANE
from postroom.store.outbox.leases import Claimed, GivenBack, Lane


def claimed(position: int, lane: int = NO_LANE, token: int = 1) -> Claimed:
    return Claimed(position, lane, token, 0, 1, Message.new("t", b"x" * 10), 10)


def in_flight_with(*, most_messages: int = 9, most_bytes: int = 1000) -> InFlight:
    return InFlight(HeldLanes(), most_messages, most_bytes)


def test_room_is_bounded_in_number_and_in_bytes() -> None:
    in_flight = in_flight_with(most_messages=3, most_bytes=25)
    in_flight.take([claimed(1)], 100.0)
    assert in_flight.room == 2
    in_flight.take([claimed(2), claimed(3)], 100.0)
    assert in_flight.room == 0
    assert in_flight_with(most_bytes=25).room == 9
    full = in_flight_with(most_bytes=25)
    full.take([claimed(1), claimed(2), claimed(3)], 100.0)
    assert full.room == 0


def test_a_message_is_held_until_its_deadline_and_longer_when_renewed() -> None:
    in_flight = in_flight_with()
    one = claimed(1, token=7)
    in_flight.take([one], deadline=10.0)
    assert in_flight.held([one], 9.9) == [one]
    assert in_flight.held([one], 10.0) == []
    in_flight.extend([7], 20.0)
    assert in_flight.held([one], 19.9) == [one]
    in_flight.land([one])
    assert in_flight.held([one], 11.0) == []


def test_what_lands_leaves_nothing_behind() -> None:
    in_flight = in_flight_with()
    batch = [claimed(1, token=7), claimed(2, token=7)]
    in_flight.take(batch, 10.0)
    in_flight.land(batch)
    assert (len(in_flight), in_flight.bytes) == (0, 0)
    in_flight.forget_deadlines()
    assert in_flight.held(batch, 0.0) == []
    in_flight.land(batch)
    assert in_flight.bytes == 0


def test_a_message_is_not_held_once_its_lane_is_dropped() -> None:
    in_flight = in_flight_with()
    in_flight.lanes.hold(Lane(3, 5), 10.0)
    one = claimed(1, lane=3, token=5)
    in_flight.take([one], 10.0)
    assert in_flight.held([one], 5.0) == [one]
    assert in_flight.of_lane(in_flight.lanes.drop(3)) == [one]
    assert in_flight.held([one], 5.0) == []


def test_what_is_in_flight_behind_a_cursor_that_was_set_back_is_named() -> None:
    in_flight = in_flight_with()
    lanes = in_flight.lanes
    lanes.hold(Lane(3, 5), 10.0)
    for held in lanes:
        held.end_read(12, safe=12)
    in_flight.take([claimed(11, lane=3, token=5), claimed(12, lane=3, token=5), claimed(13)], 10.0)
    assert in_flight.behind_cursors(list(lanes)) == []
    lanes.read_again(3, 12)
    assert in_flight.behind_cursors(list(lanes)) == [12]
    assert in_flight.behind_cursors([]) == []


def test_a_message_that_was_lost_is_not_settled_by_the_attempt_that_has_it() -> None:
    in_flight = in_flight_with()
    settlements = PendingSettlements(in_flight, lambda _: None)
    lost, kept = claimed(1), claimed(2)
    in_flight.take([lost, kept], 10.0)
    settlements.lose([lost])
    assert in_flight.remaining([lost, kept]) == [kept]
    settlements.give_back([lost, kept])
    assert settlements.take_pending() == [GivenBack(kept)]
    assert settlements.take_conflicts() == [lost]


async def test_waiting_for_room_ends_when_messages_land() -> None:
    in_flight = in_flight_with(most_messages=2)
    batch = [claimed(1), claimed(2)]
    in_flight.take(batch, 10.0)
    waiting = asyncio.create_task(in_flight.wait_for_room(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    in_flight.land(batch[:1])
    await waiting
    emptying = asyncio.create_task(in_flight.wait_until_empty())
    await asyncio.sleep(0)
    in_flight.land(batch[1:])
    await emptying
    assert len(in_flight) == 0


def test_what_we_claim_again_ourselves_counts_once() -> None:
    """Its lease had ended before it was settled, as in an outage: it is still in flight, and due again."""
    in_flight = in_flight_with()
    before, now = claimed(1, token=1), claimed(1, token=2)
    in_flight.take([before], 100.0)
    in_flight.take([now, claimed(2, token=2)], 200.0)
    assert in_flight.bytes == 20
    in_flight.land([before])
    assert now in in_flight
    in_flight.land([now])
    assert in_flight.bytes == 10


def test_a_claim_that_is_replaced_keeps_its_deadline_and_stays_at_the_destination() -> None:
    in_flight = in_flight_with()
    before, beside, now = claimed(1, token=7), claimed(2, token=7), claimed(1, token=8)
    in_flight.take([before, beside], deadline=10.0)
    in_flight.lend([before, beside])
    assert in_flight.replace(before, now)
    assert in_flight.held([before, beside, now], 9.9) == [beside, now]
    assert in_flight.held([now], 10.0) == []
    assert (in_flight.is_at_destination(before), in_flight.is_at_destination(now)) == (False, True)
    in_flight.extend([8], 20.0)
    assert in_flight.held([beside, now], 19.9) == [now]
    in_flight.land([before])
    assert now in in_flight


def test_a_claim_that_has_landed_cannot_be_replaced() -> None:
    in_flight = in_flight_with()
    before, now = claimed(1, token=7), claimed(1, token=8)
    in_flight.take([before], 10.0)
    in_flight.lend([before])
    in_flight.land([before])
    assert not in_flight.replace(before, now)
    assert len(in_flight) == 0
    assert not in_flight.is_at_destination(before)
    assert not in_flight.is_at_destination(now)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=12, unique=True))
def test_there_is_one_claim_at_most_for_each_position(claims: list[tuple[int, int]]) -> None:
    in_flight = in_flight_with()
    taken = [claimed(position, token=token) for position, token in claims]
    for one in taken:
        in_flight.take([one], 1.0)
    newest = {one.position: one for one in taken}
    assert in_flight.remaining(taken) == [one for one in taken if newest[one.position] is one]


class EveryClaimLandsOnce(RuleBasedStateMachine):
    """Whatever happens to claims, in whatever order: each leaves flight once, and counts and bytes are right.

    A claim that a destination has in hand may get a new token: then the claim with that token lands in its stead.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_flight = in_flight_with()
        self.settlements = PendingSettlements(self.in_flight, lambda _: None)
        self.taken: list[Claimed] = []
        self.expected: dict[int, Claimed] = {}
        self.landed: Counter[tuple[int, int]] = Counter()
        self.replaced: set[tuple[int, int]] = set()
        self.lent: set[tuple[int, int]] = set()

    def some(self, data: st.DataObject) -> list[Claimed]:
        return data.draw(st.lists(st.sampled_from(self.taken), max_size=4)) if self.taken else []

    def note(self, claims: list[Claimed]) -> None:
        for one in claims:
            if self.expected.get(one.position) is one:
                del self.expected[one.position]
                self.landed[one.lease] += 1

    @rule(
        positions=st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True), lane=st.sampled_from([NO_LANE, 3])
    )
    def take(self, positions: list[int], lane: int) -> None:
        claims = [claimed(position, lane, token=len(self.taken) + 1) for position in positions]
        self.note([self.expected[position] for position in positions if position in self.expected])
        self.in_flight.take(claims, 10.0)
        self.taken += claims
        self.expected.update({one.position: one for one in claims})

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        claims = self.some(data)
        self.in_flight.land(claims)
        self.note(claims)

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        claims = self.some(data)
        self.settlements.lose(claims)
        self.note(claims)

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        claims = list({one.lease: one for one in self.some(data)}.values())
        remaining = [one for one in claims if self.expected.get(one.position) is one]
        self.settlements.take_pending()
        self.settlements.give_back(claims)
        assert self.settlements.take_pending() == [GivenBack(one) for one in remaining], "they stay until it is written"
        self.in_flight.land(remaining)
        self.note(remaining)

    @rule(data=st.data())
    def lend(self, data: st.DataObject) -> None:
        claims = self.some(data)
        self.in_flight.lend(claims)
        self.lent |= {one.lease for one in claims}

    @rule(data=st.data())
    def take_back(self, data: st.DataObject) -> None:
        claims = self.some(data)
        self.in_flight.take_back(claims)
        self.lent -= {one.lease for one in claims}

    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        for old in self.some(data)[:1]:
            new = claimed(old.position, old.lane, token=len(self.taken) + 1)
            is_there = self.expected.get(old.position) is old
            assert self.in_flight.replace(old, new) == is_there
            self.lent.discard(old.lease)
            if is_there:
                self.taken.append(new)
                self.expected[old.position] = new
                self.replaced.add(old.lease)
                self.lent.add(new.lease)

    @invariant()
    def what_is_at_the_destination_is_known(self) -> None:
        assert all(self.in_flight.is_at_destination(one) == (one.lease in self.lent) for one in self.taken)

    @invariant()
    def counts_are_right(self) -> None:
        assert len(self.in_flight) == len(self.expected)
        assert self.in_flight.bytes == 10 * len(self.expected)
        assert all(one in self.in_flight for one in self.expected.values())
        assert len(self.in_flight.rows) + len(self.in_flight.ordered) == len(self.expected)

    @invariant()
    def each_claim_landed_once_or_is_in_flight(self) -> None:
        for one in self.taken:
            assert self.landed[one.lease] + (one in self.in_flight) + (one.lease in self.replaced) == 1


TestEveryClaimLandsOnce = EveryClaimLandsOnce.TestCase
