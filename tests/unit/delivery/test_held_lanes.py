from __future__ import annotations

from postroom.delivery.held_lanes import HeldLane, HeldLanes
from postroom.message import Message
from postroom.store.outbox.leases import Claimed, Lane


def holding(number: int = 3) -> tuple[HeldLanes, HeldLane]:
    lanes = HeldLanes()
    lanes.hold(Lane(number, 5), 10.0)
    return lanes, next(iter(lanes))


def test_a_lane_is_read_again_from_where_something_was_passed_by() -> None:
    lanes, lane = holding()
    lane.cursor = 50
    lanes.read_again(3, 20)
    lanes.read_again(3, 40)
    lanes.read_again(4, 1)
    assert lane.cursor == 19


def test_what_is_dropped_while_a_read_is_under_way_is_read_again_all_the_same() -> None:
    lanes, lane = holding()
    lane.begin_read()
    lanes.read_again(3, 20)
    lane.end_read(60, safe=60)
    assert (lane.cursor, lane.furthest) == (19, 60)
    lane.begin_read()
    lane.end_read(70, safe=70)
    assert (lane.cursor, lane.furthest) == (70, 70)


def test_a_lease_holds_until_its_deadline_under_its_own_token() -> None:
    lanes, lane = holding()
    assert lanes.holds((3, 5), 9.9)
    assert not lanes.holds((3, 5), 10.0)
    assert not lanes.holds((3, 6), 0.0)
    lanes.extend([(3, 6), (4, 5)], 30.0)
    assert not lanes.holds((3, 5), 10.0), "another lease was renewed"
    lanes.extend([(3, 5)], 20.0)
    lanes.extend([(3, 5)], 15.0)
    assert lanes.holds((3, 5), 19.9), "a renewal that is noted late takes nothing away"
    assert lanes.still_held(lane)
    lanes.hold(Lane(3, 7), 30.0)
    assert not lanes.still_held(lane)


def test_nothing_of_an_abandoned_lane_may_be_settled() -> None:
    lanes, _ = holding()
    one = Claimed(1, 3, 5, 0, 0, Message.new("t", b"x"))
    assert (lanes.has_lane_of(one), lanes.any_abandoned, lanes.may_settle(one)) == (True, False, True)
    lanes.abandon(3)
    assert (lanes.has_lane_of(one), lanes.any_abandoned, lanes.may_settle(one)) == (False, True, False)
