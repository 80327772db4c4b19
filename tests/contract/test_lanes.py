"""Lanes: who holds a lane's lease sends its messages, in order."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import pytest

from postroom.admin import Filter
from postroom.message import Message
from postroom.rules.ordering import LANES
from postroom.store.outbox.lanes import MOST_PROMOTED
from postroom.store.outbox.leases import Claim, Claimed, Dead, Duplicate, Expired, GivenBack, Lane, Retry, Sent
from postroom.store.outbox.workers import ALIVE_SECONDS, Workers
from postroom.store.sql.steps import Query
from tests.contract.store_drivers import (
    Room,
    key_of_lane,
    keys_of_lane,
    lost_by,
    on_one_driver_of_each_style,
    only_with_row_locks,
    positions,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.connections.stores import Store
    from postroom.store.outbox.leases import Settlement


def numbers(lanes: list[Lane]) -> list[int]:
    return [lane.number for lane in lanes]


def later(lane: Lane) -> Lane:
    """The lane as its holder hands it in after the first read."""
    return msgspec.structs.replace(lane, interrupted=False)


def lane_of(room: Room, number: int) -> tuple[object, ...]:
    [row] = room.select("SELECT owner, token, read_to FROM {lane} WHERE queue = 'default' AND lane = :n", n=number)
    return row


def test_all_lanes_are_taken_in_order_under_one_token(room: Room) -> None:
    lanes = room.take_lanes("worker 7")
    assert numbers(lanes) == list(range(LANES))
    assert len({lane.token for lane in lanes}) == 1
    assert lane_of(room, 5) == ("worker 7", lanes[5].token, 0)
    assert not any(lane.interrupted for lane in lanes)


def test_only_free_lanes_are_taken(room: Room) -> None:
    assert numbers(room.take_lanes("one", limit=10)) == list(range(10))
    assert numbers(room.take_lanes("two", limit=10)) == list(range(10, 16))
    assert room.take_lanes("three") == []


@only_with_row_locks
def test_a_lane_that_somebody_works_on_is_skipped_without_waiting(room: Room, neighbour: Store) -> None:
    with neighbour.session() as execute:
        execute(Query("BEGIN"))
        execute(Query(f"SELECT 1 FROM {room.tables['lane']} WHERE queue = 'default' AND lane = 3 FOR UPDATE"))
        assert 3 not in numbers(room.take_lanes())
        execute(Query("ROLLBACK"))
    assert numbers(room.take_lanes()) == [3]


def test_L_4_a_lane_is_free_when_its_lease_has_ended_and_was_interrupted(room: Room) -> None:
    room.take_lanes("crashed", limit=2)
    room.advance(20)
    assert len(room.take_lanes("other", seconds=100)) == 14
    room.advance(11)
    again = room.take_lanes("other")
    assert numbers(again) == [0, 1]
    assert all(lane.interrupted for lane in again)


def test_a_released_lane_is_free_at_once_and_was_not_interrupted(room: Room) -> None:
    first, second = room.take_lanes("one", limit=2)
    room.run(room.deliveries.lanes.release([first]))
    assert lane_of(room, 0) == ("", 0, 0)
    [again] = room.take_lanes("two", limit=1)
    assert (again.number, again.interrupted) == (first.number, False)
    assert lost_by(room.run(room.deliveries.renewals.renew([], [first, second], 30))) == ([], [first])


def test_who_lost_a_lane_cannot_release_it(room: Room) -> None:
    [stale] = room.take_lanes("slow", limit=1)
    room.advance(31)
    [fresh] = room.take_lanes("quick", limit=1)
    room.run(room.deliveries.lanes.release([stale]))
    assert lane_of(room, 0)[:2] == ("quick", fresh.token)


def test_an_unknown_outcome_of_taking_lanes_is_resolved_by_its_token(room: Room) -> None:
    kept = room.take_lanes("worker", limit=4)
    room.take_lanes("worker", token=99)
    room.run(room.deliveries.recovery.forget(99))
    again = room.take_lanes("other")
    assert numbers(again) == list(range(4, 16))
    assert not any(lane.interrupted for lane in again)
    assert lost_by(room.run(room.deliveries.renewals.renew([], kept, 30))) == ([], [])


def test_no_lanes_give_nothing(room: Room) -> None:
    assert room.read_lanes([]) == Claim([], [], 0)
    assert room.run(room.deliveries.lanes.promote([])) == {}
    room.run(room.deliveries.lanes.release([]))


def test_L_16_lanes_are_read_in_the_order_of_adding(room: Room) -> None:
    added = [position for n in range(6) for position in room.add(key=key_of_lane(n % 3))]
    lanes = room.take_lanes()
    claimed = room.read_lanes(lanes).messages
    assert positions(claimed) == added
    assert [one.lane for one in claimed] == [0, 1, 2, 0, 1, 2]
    assert {one.token for one in claimed} == {lanes[0].token}
    assert [one.message.key for one in claimed[:3]] == [key_of_lane(n) for n in range(3)]


def test_the_limit_counts_for_each_lane(room: Room) -> None:
    first = room.add(3, key=key_of_lane(1))
    second = room.add(3, key=key_of_lane(2))
    assert positions(room.read_lanes(room.take_lanes(), limit=2).messages) == [*first[:2], *second[:2]]


def test_only_the_lanes_asked_for_are_read(room: Room) -> None:
    room.add(key=key_of_lane(1))
    [wanted] = room.add(key=key_of_lane(2))
    lanes = room.take_lanes()
    assert positions(room.read_lanes(lanes[2:3]).messages) == [wanted]


def test_each_lane_is_read_from_its_own_cursor(room: Room) -> None:
    first = room.add(3, key=key_of_lane(1))
    second = room.add(3, key=key_of_lane(2))
    claim = room.read_lanes(room.take_lanes(), after={1: first[1], 2: second[0]})
    assert positions(claim.messages) == [first[2], *second[1:]]


def test_what_is_in_flight_is_left_out(room: Room) -> None:
    added = room.add(4, key="a")
    lanes = room.take_lanes()
    assert positions(room.read_lanes(lanes, limit=2, in_flight=[added[0], added[2]]).messages) == [added[1], added[3]]


def test_a_read_renews_the_lease(room: Room) -> None:
    [position] = room.add(key="a")
    lanes = room.take_lanes()
    for _ in range(3):
        room.advance(20)
        assert positions(room.read_lanes(lanes).messages) == [position]
    assert room.take_lanes("other") == []


def test_a_lane_whose_lease_ended_gives_nothing_and_is_not_revived(room: Room) -> None:
    room.add(key="a")
    lanes = room.take_lanes()
    room.advance(31)
    assert room.read_lanes(lanes) == Claim([], [], 0)
    assert room.run(room.deliveries.lanes.promote(lanes)) == {}
    assert len(room.take_lanes("other")) == LANES


def test_a_lane_that_another_took_gives_nothing_while_the_others_do(room: Room) -> None:
    room.add(key=key_of_lane(0))
    [kept] = room.add(key=key_of_lane(1))
    lanes = room.take_lanes("slow", limit=2)
    room.run(room.deliveries.renewals.renew([], lanes[1:], 100))
    room.advance(31)
    room.take_lanes("quick", limit=1)
    assert positions(room.read_lanes(lanes).messages) == [kept]


@pytest.mark.parametrize("lost_by", ["its end", "another"])
@pytest.mark.parametrize(
    "ending",
    [
        Sent,
        Duplicate,
        Expired,
        lambda one: Retry(one, 0, "CODE", "text"),
        lambda one: Dead(one, "CODE", "text"),
        GivenBack,
    ],
    ids=["sent", "duplicate", "expired", "retry", "dead", "given back"],
)
def test_L_3_who_lost_the_lane_settles_nothing_of_it(
    room: Room, ending: Callable[[Claimed], Settlement], lost_by: str
) -> None:
    added = room.add(3, key=key_of_lane(3))
    room.add(key=key_of_lane(4))
    lost, kept = room.take_lanes("slow")[3:5]
    claimed = room.read_lanes([lost, kept]).messages
    room.run(room.deliveries.renewals.renew([], [kept], 100))
    room.advance(31)
    if lost_by == "another":
        room.take_lanes("quick")
    before = [room.delivery(position) for position in added]
    assert positions(room.settle(*map(ending, claimed))) == added
    assert [room.delivery(position) for position in added] == before


def test_messages_of_a_lane_are_settled_each_in_its_way(room: Room) -> None:
    keys = [f"key {n}" for n in range(5)]
    added = [position for key in keys for position in room.add(key=key)]
    sent, retried, dead, expired, back = room.read_lanes(room.take_lanes()).messages
    assert (
        room.settle(
            Sent(sent, "offset 1"),
            Retry(retried, 60, "TIMEOUT", "no answer"),
            Dead(dead, "BAD", "no"),
            Expired(expired),
            GivenBack(back),
        )
        == []
    )
    assert room.receipts() == {added[0]: "sent", added[3]: "expired"}
    rows = [room.delivery(position) for position in (added[1], added[2], added[4])]
    assert [(row.state, row.attempts, row.error_code) for row in rows] == [
        (2, 1, "TIMEOUT"),
        (3, 1, "BAD"),
        (0, 0, ""),
    ]


def test_due_messages_are_promoted_and_the_lowest_of_each_lane_returned(room: Room) -> None:
    keys = list(islice(keys_of_lane(4), 3))
    [failed] = room.add(key=keys[0])
    scheduled = room.add(2, key=keys[1], deliver_in=60)
    elsewhere = room.add(2, key=key_of_lane(9), deliver_in=60)
    [far] = room.add(key=keys[2], deliver_in=6000)
    lanes = room.take_lanes(seconds=600)
    room.settle(*(Retry(one, 60, "CODE", "text") for one in room.read_lanes(lanes, seconds=600).messages))
    assert room.run(room.deliveries.lanes.promote(lanes)) == {}
    room.advance(61)
    assert room.run(room.deliveries.lanes.promote(lanes)) == {4: failed, 9: elsewhere[0]}
    assert room.positions(0) == [failed, *scheduled, *elsewhere]
    assert room.positions(1) == [far]
    assert room.run(room.deliveries.lanes.promote(lanes)) == {}


def test_only_the_lanes_that_are_held_are_promoted(room: Room) -> None:
    [other] = room.add(key=key_of_lane(3), deliver_in=60)
    [mine] = room.add(key=key_of_lane(4), deliver_in=60)
    room.advance(61)
    lanes = room.take_lanes()
    assert room.run(room.deliveries.lanes.promote(lanes[4:])) == {4: mine}
    assert room.positions(1) == [other]


@on_one_driver_of_each_style
def test_thousands_are_promoted_in_a_few_calls(room: Room) -> None:
    added = room.add(1100, key="a", deliver_in=60)
    room.advance(61)
    lanes = room.take_lanes()
    lowest: list[int] = []
    while promoted := room.run(room.deliveries.lanes.promote(lanes)):
        lowest += promoted.values()
    assert lowest == [added[0], added[MOST_PROMOTED]]
    assert positions(room.read_lanes(lanes, limit=2000).messages) == added


def test_messages_without_a_key_are_in_no_lane(room: Room) -> None:
    room.add(2)
    room.add(deliver_in=60)
    room.advance(61)
    lanes = room.take_lanes()
    assert room.read_lanes(lanes).found == 0
    assert room.run(room.deliveries.lanes.promote(lanes)) == {}
    assert len(room.claim()) == 3


def test_a_queue_has_lanes_of_its_own(room: Room) -> None:
    [here] = room.add(key="a")
    [there] = room.add(key="a", queue="handlers")
    handlers = room.on("handlers")
    mine = room.take_lanes("one")
    theirs = room.run(handlers.lanes.take("two", 30))
    assert numbers(theirs) == list(range(LANES))
    assert room.run(handlers.lanes.take("three", 30)) == []
    assert positions(room.read_lanes(mine).messages) == [here]
    [claimed] = room.run(handlers.lanes.read(theirs, 10, 30)).messages
    assert claimed.position == there
    assert room.settle(Sent(claimed)) == [claimed]
    assert room.run(handlers.settlements.settle([Dead(claimed, "CODE", "text")])) == []
    assert positions(room.read_lanes(mine).messages) == [here]  # a dead one of another queue holds nobody here
    room.run(handlers.lanes.release(theirs))
    assert lost_by(room.run(room.deliveries.renewals.renew([], mine, 30))) == ([], [])


def test_what_was_read_is_being_sent_and_what_is_blocked_is_not(room: Room) -> None:
    [dead, behind] = room.add(2, key="a")
    [read] = room.add(key="b")
    lanes = room.take_lanes()
    [first, *_] = room.read_lanes(lanes).messages
    room.settle(Dead(first, "CODE", "text"))
    assert positions(room.read_lanes(lanes).messages) == [read]
    [unread] = room.add(key="b")
    assert room.statuses() == {dead: "dead", behind: "pending", read: "sending", unread: "pending"}
    room.advance(31)
    assert room.statuses() == {dead: "dead", behind: "pending", read: "pending", unread: "pending"}


@pytest.mark.parametrize("renew", [True, False])
def test_L_17_a_lane_with_something_freed_is_read_from_the_beginning_or_not_at_all(room: Room, *, renew: bool) -> None:
    """Whoever reads behind a position would pass by what a discarded message held back."""
    [dead, *held] = room.add(3, key=key_of_lane(0))
    [mate] = room.add(key=key_of_lane(1))
    lanes = room.take_lanes()
    [first, *_, second] = room.read_lanes(lanes, 1).messages
    room.settle(Dead(first, "CODE", "text"), Sent(second))
    [late] = room.add(key=key_of_lane(0))
    after = {0: held[-1], 1: mate}
    room.admin().discard(Filter(room.ids([dead])), actor="ada")
    claim = room.read_lanes(lanes, after=after, renew=renew)
    assert (positions(claim.messages), list(claim.freed)) == ([], [0])
    [other] = room.add(key=key_of_lane(1))
    claim = room.read_lanes(lanes, after=after, renew=renew)
    assert (positions(claim.messages), list(claim.freed)) == ([other], [0])  # other lanes are read meanwhile
    room.run(room.deliveries.lanes.look_back(lanes))
    claim = room.read_lanes(lanes, after={**after, 0: 0}, renew=renew)
    assert (positions(claim.messages), list(claim.freed)) == ([*held, late, other], [])
    assert lane_of(room, 0)[2] == (late if renew else dead)


def test_who_takes_a_lane_with_something_freed_reads_it_at_once(room: Room) -> None:
    [dead, held] = room.add(2, key=key_of_lane(0))
    lanes = room.take_lanes()
    room.settle(Dead(room.read_lanes(lanes, 1).messages[0], "CODE", "text"))
    room.admin().discard(Filter(room.ids([dead])), actor="ada")
    room.advance(31)
    claim = room.read_lanes(room.take_lanes())
    assert (positions(claim.messages), list(claim.freed)) == ([held], [])


def test_a_read_that_is_cut_short_says_so_whatever_becomes_of_what_it_found(room: Room) -> None:
    size = len(Message.new("t", ["x" * 100]).payload or b"")
    room.add(2, key=key_of_lane(0), payload=["x" * 100], expires_in=60)
    lanes = room.take_lanes(seconds=300)
    assert not room.read_lanes(lanes, 3, 300, most_bytes=2 * size + 1).cut_short
    room.advance(61)
    claim = room.read_lanes(lanes, 3, 300, most_bytes=size)
    assert (claim.messages, len(claim.settled), claim.cut_short) == ([], 1, True)
    assert room.read_lanes(lanes, 1).cut_short


def test_strangers_are_those_in_whose_place_is_another_message_or_none(room: Room) -> None:
    """As after the promotion of a standby that lagged, which gives positions out again."""
    room.add(3, key=key_of_lane(0))
    first, second, third = room.read_lanes(room.take_lanes()).messages
    assert room.run(room.deliveries.recovery.strangers([first, second, third])) == []
    room.select("DELETE FROM {outbox} WHERE position = :position", position=second.position)
    room.select("UPDATE {outbox} SET id = :id WHERE position = :position", id=str(uuid4()), position=third.position)
    assert room.run(room.deliveries.recovery.strangers([first, second, third])) == [second, third]


def test_a_silent_worker_counts_only_as_long_as_it_holds_lanes(room: Room) -> None:
    """A killed one must not keep others from its share; one with longer beats than ours is not killed."""
    workers = Workers(room.names)
    assert room.run(workers.beat("other", 0, 0)) == 1
    room.run(room.deliveries.lanes.take("other", 3, 8))
    assert room.run(workers.beat("mine", 0, 0, silent=1)) == 2
    room.advance(2)
    assert room.run(workers.beat("mine", 0, 0, silent=1)) == 2
    room.advance(2)
    assert room.run(workers.beat("mine", 0, 0, silent=1)) == 1
    assert room.run(workers.beat("mine", 0, 0)) == 2
    room.advance(ALIVE_SECONDS)
    assert room.run(workers.beat("mine", 0, 0)) == 1
