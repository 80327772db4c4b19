from __future__ import annotations

import asyncio

from postroom.delivery.in_flight import Flight
from postroom.message import Message
from postroom.rules.ordering import NO_LANE
from postroom.store.outbox.leases import Claimed, Lane


def claimed(position: int, lane: int = NO_LANE, token: int = 1) -> Claimed:
    return Claimed(position, lane, token, 0, 1, Message.new("t", b"x" * 10), 10)


def test_room_is_bounded_in_number_and_in_bytes() -> None:
    flight = Flight(most_messages=3, most_bytes=25)
    flight.take_off([claimed(1)], 100.0)
    assert flight.room == 2
    flight.take_off([claimed(2), claimed(3)], 100.0)
    assert flight.room == 0
    assert Flight(most_messages=9, most_bytes=25).room == 9
    full = Flight(most_messages=9, most_bytes=25)
    full.take_off([claimed(1), claimed(2), claimed(3)], 100.0)
    assert full.room == 0


def test_a_message_is_held_until_its_deadline_and_longer_when_renewed() -> None:
    flight = Flight(9, 1000)
    one = claimed(1, token=7)
    flight.take_off([one], deadline=10.0)
    assert flight.held([one], 9.9) == [one]
    assert flight.held([one], 10.0) == []
    flight.extend([(NO_LANE, 7)], 20.0)
    assert flight.held([one], 19.9) == [one]
    flight.lose([one])
    assert flight.held([one], 11.0) == []


def test_what_lands_leaves_nothing_behind() -> None:
    flight = Flight(9, 1000)
    batch = [claimed(1, token=7), claimed(2, token=7)]
    flight.take_off(batch, 10.0)
    flight.land(batch)
    assert (flight.messages, flight.bytes) == ({}, 0)
    flight.forget_landed()
    assert flight.held(batch, 0.0) == []
    flight.land(batch)
    assert flight.bytes == 0


def test_a_lane_that_is_dropped_takes_its_messages_along() -> None:
    flight = Flight(9, 1000)
    flight.hold_lane(Lane(3, 5), 10.0)
    one = claimed(1, lane=3, token=5)
    flight.take_off([one], 10.0)
    assert flight.held([one], 5.0) == [one]
    assert flight.drop_lane(3) == [one]
    assert flight.held([one], 5.0) == []


def test_a_lane_is_read_again_from_where_something_was_passed_by() -> None:
    flight = Flight(9, 1000)
    flight.hold_lane(Lane(3, 5), 10.0)
    flight.lanes[3].cursor = 50
    flight.read_again(3, 20)
    flight.read_again(3, 40)
    flight.read_again(4, 1)
    assert flight.lanes[3].cursor == 19


def test_what_is_dropped_while_a_read_is_under_way_is_read_again_all_the_same() -> None:
    flight = Flight(9, 1000)
    flight.hold_lane(Lane(3, 5), 10.0)
    lane = flight.lanes[3]
    lane.begin_read()
    flight.read_again(3, 20)
    lane.end_read(60, safe=60)
    assert (lane.cursor, lane.furthest) == (19, 60)
    lane.begin_read()
    lane.end_read(70, safe=70)
    assert (lane.cursor, lane.furthest) == (70, 70)


def test_what_is_in_flight_behind_a_cursor_that_was_set_back_is_named() -> None:
    flight = Flight(9, 1000)
    flight.hold_lane(Lane(3, 5), 10.0)
    flight.lanes[3].end_read(12, safe=12)
    flight.take_off([claimed(11, lane=3, token=5), claimed(12, lane=3, token=5), claimed(13)], 10.0)
    assert flight.behind_cursors() == []
    flight.read_again(3, 12)
    assert flight.behind_cursors() == [12]


def test_a_message_that_was_lost_is_not_settled_by_who_carries_it() -> None:
    flight = Flight(9, 1000)
    lost, kept = claimed(1), claimed(2)
    flight.take_off([lost, kept], 10.0)
    flight.lose([lost])
    assert flight.flying([lost, kept]) == [kept]
    assert flight.flying([lost]) == [lost], "asked once only: a later claim of the same is another one"


async def test_waiting_for_room_ends_when_messages_land() -> None:
    flight = Flight(2, 1000)
    batch = [claimed(1), claimed(2)]
    flight.take_off(batch, 10.0)
    waiting = asyncio.create_task(flight.wait_for_room(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    flight.land(batch[:1])
    await waiting
    emptying = asyncio.create_task(flight.wait_until_empty())
    await asyncio.sleep(0)
    flight.land(batch[1:])
    await emptying
    assert flight.messages == {}


def test_what_we_claim_again_ourselves_counts_once() -> None:
    """Its lease had ended before it was settled, as in an outage: it is still in flight, and due again."""
    flight = Flight(9, 1000)
    before, now = claimed(1, token=1), claimed(1, token=2)
    flight.take_off([before], 100.0)
    flight.take_off([now, claimed(2, token=2)], 200.0)
    assert flight.bytes == 20
    flight.land([before])
    assert flight.messages[1] is now
    flight.land([now])
    assert flight.bytes == 10
