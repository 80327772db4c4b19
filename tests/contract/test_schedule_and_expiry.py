"""Not before, and not after: scheduled messages and those with an expiry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from postroom.message import Message
from postroom.store.outbox.leases import Expired, GivenBack, Retry, Sent
from tests.contract.store_drivers import Received, Room, positions


def test_L_1_a_scheduled_message_is_not_claimed_before_its_time(room: Room) -> None:
    [position] = room.add(deliver_in=60)
    assert room.delivery(position).state == 1
    assert room.claim() == []
    room.advance(50)
    assert room.claim() == []
    assert room.statuses() == {position: "waiting"}
    room.advance(11)
    assert room.statuses() == {position: "pending"}
    [claimed] = room.claim()
    assert (claimed.position, claimed.attempts, claimed.claims) == (position, 0, 1)
    assert room.settle(Sent(claimed)) == []


def test_a_time_that_has_passed_means_at_once(room: Room) -> None:
    [position] = room.add(deliver_in=-60)
    assert room.statuses() == {position: "pending"}
    assert positions(room.claim()) == [position]


def test_a_time_in_another_time_zone_is_the_same_moment(room: Room) -> None:
    moment = datetime.now(UTC) + timedelta(seconds=60)
    from_elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=45)))
    [position] = room.add_messages([Message.new("orders", deliver_at=from_elsewhere)])
    due = room.delivery(position).due
    assert due is not None
    assert abs((due - moment).total_seconds()) < 0.002


def test_what_is_due_is_claimed_in_the_order_of_its_due_times(room: Room) -> None:
    [late] = room.add(deliver_in=120)
    [early] = room.add(deliver_in=60)
    room.advance(121)
    assert positions(room.claim(limit=1)) == [early]
    assert positions(room.claim(limit=1)) == [late]


def test_a_lease_on_a_message_that_was_due_ends_like_any_other(room: Room) -> None:
    [position] = room.add(deliver_in=60)
    room.advance(61)
    [claimed] = room.claim()
    assert room.claim() == []
    room.advance(31)
    [again] = room.claim()
    assert (again.position, again.claims) == (position, 2)
    assert room.settle(GivenBack(claimed)) == [claimed]


def test_L_1_an_expired_message_is_settled_and_not_handed_out(room: Room) -> None:
    [gone] = room.add(expires_in=60)
    [good] = room.add(expires_in=600)
    room.advance(61)
    claim = room.run(room.deliveries.rows.claim("worker", 10, 30))
    assert positions(claim.messages) == [good]
    assert [(type(one), one.claimed.position) for one in claim.settled] == [(Expired, gone)]
    assert claim.found == 2
    assert room.receipt(gone) == Received("expired", 0, None, None)
    assert room.statuses() == {gone: "expired", good: "sending"}
    assert room.positions(3) == []


def test_L_1_a_message_can_expire_while_it_waits_for_its_retry(room: Room) -> None:
    [position] = room.add(expires_in=100)
    [claimed] = room.claim()
    room.settle(Retry(claimed, 200, "CODE", "text"))
    room.advance(201)
    claim = room.run(room.deliveries.rows.claim("worker", 10, 30))
    assert claim.messages == []
    assert room.receipt(position) == Received("expired", 1, None, None)


def test_L_1_a_message_can_expire_after_its_lease(room: Room) -> None:
    [position] = room.add(expires_in=20)
    assert positions(room.claim()) == [position]
    room.advance(31)
    assert room.claim() == []
    assert room.receipts() == {position: "expired"}


def test_L_1_a_message_whose_lease_holds_can_be_sent_after_its_expiry(room: Room) -> None:
    [position] = room.add(expires_in=20)
    claimed = room.claim(seconds=60)
    room.advance(21)
    assert room.settle(*map(Sent, claimed)) == []
    assert room.receipts() == {position: "sent"}


def test_L_1_a_scheduled_message_that_is_found_too_late_has_expired(room: Room) -> None:
    [plain] = room.add(deliver_in=60, expires_in=120)
    [keyed] = room.add(key="a", deliver_in=60, expires_in=120)
    room.advance(121)
    assert room.claim() == []
    lanes = room.take_lanes()
    room.run(room.deliveries.lanes.promote(lanes))
    assert room.read_lanes(lanes).messages == []
    assert room.receipts() == {plain: "expired", keyed: "expired"}
