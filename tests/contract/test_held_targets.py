"""What waits for a topic that takes no messages: it holds its key, is told, and is freed in order."""

from __future__ import annotations

from itertools import pairwise

import pytest

from postroom import Message
from postroom.store.outbox.held_targets import BEGINNING, HeldTargets
from postroom.store.outbox.leases import Claimed, Postponed, Retry, Sent
from tests.contract.store_drivers import Room, on_one_driver_of_each_style, positions

CODE = "TARGET_UNAVAILABLE"


def postponed(claimed: Claimed, delay: float = 3600, reason: str = "no queue") -> Postponed:
    return Postponed(claimed, delay, CODE, reason)


def freed(room: Room, topic: str, most: int = 500) -> list[int]:
    """How many came free with each call."""
    counts, begin = [], BEGINNING
    while True:
        found = room.run(HeldTargets(room.store.names).free([topic], begin, most))
        counts.append(found.messages)
        if found.next is None:
            return counts
        begin = found.next


def test_R_9_what_is_postponed_waits_and_burns_nothing(room: Room) -> None:
    [position] = room.add()
    [claimed] = room.claim()
    assert room.settle(postponed(claimed, 60)) == []
    first = room.delivery(position)
    assert (first.state, first.attempts, first.claims, first.error_code, first.error_message) == (
        *(2, 0, 0),
        *(CODE, "no queue"),
    )
    assert (first.token, first.owner, first.leased_until) == (0, "", None)
    assert room.claim() == []
    room.advance(61)
    first = room.delivery(position)
    [again] = room.claim()
    assert (again.attempts, again.claims) == (0, 1)
    room.settle(postponed(again, 60, "still none"))
    second = room.delivery(position)
    assert (second.failed_at, second.error_message) == (first.failed_at, "still none"), "since when it waits"
    room.advance(61)
    [again] = room.claim()
    before = room.delivery(position).failed_at
    room.settle(Retry(again, 60, CODE, "refused"))
    assert room.delivery(position).failed_at != before


@on_one_driver_of_each_style
def test_R_9_topics_that_take_none_are_told_with_how_many_wait_since_when_and_why(room: Room) -> None:
    holding = HeldTargets(room.store.names)
    assert room.run(holding.held_targets()) == []
    room.add_messages([Message.new(topic, "a") for topic in ("a", "a", "b", "c")])
    room.add_messages([Message.new("a", "a")], "other")
    ours, elsewhere = room.claim(), room.run(room.on(queue="other").rows.claim("worker", 10, 30)).messages
    room.settle(*(postponed(one) for one in ours[:3]), Retry(ours[3], 60, "TIMEOUT", "no answer"))
    room.run(room.on(queue="other").settlements.settle([postponed(one, reason="forbidden") for one in elsewhere]))
    found = room.run(holding.held_targets())
    assert {(one.queue, one.topic, one.waiting, one.reason) for one in found} == {
        ("default", "a", 2, "no queue"),
        ("default", "b", 1, "no queue"),
        ("other", "a", 1, "forbidden"),
    }
    assert room.delivery(ours[0].position).failed_at in {one.since for one in found}
    assert None not in {one.since for one in found}
    assert [(one.topic, one.waiting) for one in room.run(holding.targets_of_queue())] == [("a", 2), ("b", 1)]


@on_one_driver_of_each_style
def test_R_9_only_what_waits_for_the_topic_is_freed_and_in_batches(room: Room) -> None:
    room.add_messages([Message.new("b" if n % 4 == 3 else "a", {"n": n}) for n in range(20)])
    claimed = room.claim()
    room.settle(*(postponed(one) if one.position % 5 else Retry(one, 60, "TIMEOUT", "") for one in claimed))
    wanted = [one.position for one in claimed if one.message.topic == "a" and one.position % 5]
    assert room.claim() == []
    counts = freed(room, "a", 4)
    assert sum(counts) == len(wanted)
    assert max(counts) <= 4
    assert freed(room, "a") == [0], "they are due already"
    assert positions(room.claim()) == wanted
    assert freed(room, "no such topic") == [0]


@on_one_driver_of_each_style
def test_L_16_what_waits_for_its_topic_holds_its_key_and_leaves_in_order(room: Room) -> None:
    room.add_messages([Message.new("a", {"n": n}, key=f"k{n % 3}") for n in range(30)])
    lanes = room.take_lanes()
    claimed = room.read_lanes(lanes).messages
    room.settle(*map(postponed, claimed[:10]))
    assert room.read_lanes(lanes).messages == [], "all others stand behind these"
    room.add_messages([Message.new("b", {"n": 99}, key="k1")])
    assert room.read_lanes(lanes).messages == []
    assert sum(freed(room, "a")) == 10
    sent: list[Claimed] = []
    while room.run(room.on().lanes.promote(lanes)) or room.read_lanes(lanes, limit=1).messages:
        some = room.read_lanes(lanes, limit=1).messages
        room.settle(*map(Sent, some))
        sent += some
    assert len(sent) == 31
    for key in ("k0", "k1", "k2"):
        assert all(one < other for one, other in pairwise([one.position for one in sent if one.message.key == key]))


@on_one_driver_of_each_style
def test_one_message_of_each_topic_is_freed_to_try(room: Room) -> None:
    room.add_messages([Message.new(topic, {"n": n}) for n in range(3) for topic in "abc"])
    room.settle(*map(postponed, room.claim()))
    assert room.run(HeldTargets(room.store.names).free_one_of_each(["a", "b", "no such topic"])) == 2
    assert sorted(one.message.topic for one in room.claim()) == ["a", "b"]
    assert room.run(HeldTargets(room.store.names).free_one_of_each(["no such topic"])) == 0


@on_one_driver_of_each_style
def test_many_topics_are_freed_in_one_walk(room: Room) -> None:
    topics = [f"t{n}" for n in range(500)]
    room.add_messages([Message.new(topic) for topic in [*topics, "other"]])
    claimed = room.claim(limit=1000)
    room.settle(*map(postponed, claimed))
    found = room.run(HeldTargets(room.store.names).free(topics, most=1000))
    assert found == (500, None)
    assert positions(room.claim(limit=1000)) == positions(claimed[:-1])


@pytest.mark.parametrize("ending", [Sent, lambda one: Retry(one, 60, "TIMEOUT", "")])
def test_what_is_no_longer_waiting_is_not_told(room: Room, ending: type[Sent]) -> None:
    room.add()
    room.settle(postponed(room.claim()[0], 0))
    assert len(room.run(HeldTargets(room.store.names).held_targets())) == 1
    room.settle(ending(room.claim()[0]))
    assert room.run(HeldTargets(room.store.names).held_targets()) == []
