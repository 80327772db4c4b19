"""Deduplication by topic and digest, on by choice: what was sent before is settled and not sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.outbox.deduplication import content_hash
from postroom.store.outbox.leases import Claimed, Dead, Duplicate, Retry, Sent
from tests.contract.store_drivers import Received, Room, positions

if TYPE_CHECKING:
    from collections.abc import Sequence

SAME = {"the": "same"}


def send(room: Room, claimed: Sequence[Claimed], answer: str = "offset 1") -> None:
    assert room.settle(*(Sent(one, answer, dedup=content_hash(one)) for one in claimed)) == []


def deduplicate(room: Room, claimed: Sequence[Claimed]) -> tuple[list[Claimed], list[Duplicate]]:
    sorted_out = room.run(room.deliveries.deduplication.deduplicate(claimed))
    return sorted_out.send, sorted_out.duplicates


def test_nothing_to_deduplicate_gives_nothing(room: Room) -> None:
    assert deduplicate(room, []) == ([], [])


def test_L_11_content_that_was_sent_is_settled_with_the_earlier_answer(room: Room) -> None:
    room.add(payload=SAME)
    send(room, room.claim(), "offset 7")
    [twin] = room.add(payload=SAME)
    [other] = room.add()
    claimed = room.claim()
    to_send, duplicates = deduplicate(room, claimed)
    assert positions(to_send) == [other]
    assert duplicates == [Duplicate(claimed[0], "offset 7")]
    assert room.receipt(twin) == Received("duplicate", 0, "offset 7", None)
    assert room.find_delivery(twin) is None
    assert room.statuses()[twin] == "sent"


def test_L_11_the_first_answer_counts(room: Room) -> None:
    room.add(2, payload=SAME)
    first, second = room.claim()
    send(room, [second], "offset 2")
    send(room, [first], "offset 1")
    room.add(payload=SAME)
    [duplicate] = deduplicate(room, room.claim())[1]
    assert duplicate.answer == "offset 1"


def test_L_11_the_same_content_for_another_topic_is_not_the_same(room: Room) -> None:
    room.add(payload=SAME, topic="one")
    send(room, room.claim())
    [other] = room.add(payload=SAME, topic="two")
    to_send, duplicates = deduplicate(room, room.claim())
    assert (positions(to_send), duplicates) == ([other], [])


def test_L_11_what_was_sent_without_deduplication_does_not_count(room: Room) -> None:
    room.add(payload=SAME)
    room.settle(*map(Sent, room.claim()))
    [again] = room.add(payload=SAME)
    to_send, _ = deduplicate(room, room.claim())
    assert positions(to_send) == [again]


def test_L_11_what_failed_or_died_was_not_sent(room: Room) -> None:
    room.add(2, payload=SAME)
    failed, dead = room.claim()
    room.settle(Retry(failed, 600, "CODE", "text"), Dead(dead, "CODE", "text"))
    [again] = room.add(payload=SAME)
    to_send, _ = deduplicate(room, room.claim())
    assert positions(to_send) == [again]


def test_L_11_of_twins_in_a_batch_one_is_sent_and_the_others_are_given_back(room: Room) -> None:
    [first, second, third] = room.add(3, payload=SAME)
    to_send, duplicates = deduplicate(room, room.claim())
    assert (positions(to_send), duplicates) == ([first], [])
    assert [(room.delivery(one).token, room.delivery(one).claims) for one in (second, third)] == [(0, 0), (0, 0)]
    send(room, to_send)
    assert deduplicate(room, room.claim())[0] == []
    assert room.receipts() == {first: "sent", second: "duplicate", third: "duplicate"}


def test_L_11_a_twin_is_sent_after_all_when_the_first_one_failed(room: Room) -> None:
    _, second = room.add(2, payload=SAME)
    [first_claim], _ = deduplicate(room, room.claim())
    room.settle(Dead(first_claim, "CODE", "text"))
    assert positions(deduplicate(room, room.claim())[0]) == [second]


def test_L_11_in_a_lane_nothing_overtakes_a_twin_that_is_left_out(room: Room) -> None:
    first, twin = room.add(2, payload=SAME, key="a")
    [behind] = room.add(key="a")
    [other] = room.add(key="b")
    lanes = room.take_lanes()
    to_send, _ = deduplicate(room, room.read_lanes(lanes).messages)
    assert positions(to_send) == [first, other]
    send(room, to_send)
    to_send, duplicates = deduplicate(room, room.read_lanes(lanes).messages)
    assert [one.claimed.position for one in duplicates] == [twin]
    assert positions(to_send) == [behind]


def test_L_11_messages_without_a_digest_are_never_duplicates(room: Room) -> None:
    added = room.add(2)
    room.select("UPDATE {outbox} SET digest = NULL")
    first, second = room.claim()
    assert deduplicate(room, [first, second]) == ([first, second], [])
    send(room, [first])
    assert deduplicate(room, [second]) == ([second], [])
    assert room.positions() == added[1:]


def test_L_11_what_was_lost_meanwhile_is_neither_sent_nor_settled(room: Room) -> None:
    room.add(payload=SAME)
    send(room, room.claim())
    [twin] = room.add(payload=SAME)
    claimed = room.claim()
    room.advance(31)
    assert deduplicate(room, claimed) == ([], [])
    assert room.receipt(twin) is None
    assert positions(room.claim("other")) == [twin]
