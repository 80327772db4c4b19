"""What an operator does with dead letters, and the audit of it; conflicts are audited too."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroom.admin import ALL, Filter
from postroom.errors import MessageNotFound
from postroom.rules.ordering import Order
from postroom.store.admin import newest_first
from postroom.store.admin.conflicts import Conflicts, LostLease
from postroom.store.admin.dead_letters import DeadLetters
from postroom.store.outbox.leases import Claimed, Dead, Expired, GivenBack, Retry, Sent
from postroom.store.sql.steps import Query, Result, run
from tests.contract.store_drivers import Room, on_one_driver_of_each_style, positions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    Act = Callable[[Room, Sequence[UUID]], list[UUID]]


def bury(room: Room, count: int = 1, key: str | None = None) -> list[int]:
    """Add messages and let them die."""
    added = room.add(count, key=key)
    lanes = room.take_lanes("gravedigger") if key else []
    claimed = [*room.claim(limit=count), *room.read_lanes(lanes, limit=count).messages]
    assert positions(claimed) == added
    assert room.settle(*(Dead(one, "REJECTED", "not wanted") for one in claimed)) == []
    room.run(room.deliveries.lanes.release(lanes))
    return added


def requeue(room: Room, ids: Sequence[UUID] | None = None, actor: str = "") -> list[UUID]:
    return list(room.admin().requeue(Filter(ids, queue="default"), actor=actor).ids)


def discard(room: Room, ids: Sequence[UUID] | None = None, actor: str = "") -> list[UUID]:
    return list(room.admin().discard(Filter(ids, queue="default"), actor=actor).ids)


def test_L_10_a_requeued_message_starts_again(room: Room) -> None:
    [position] = room.add()
    for _ in range(2):
        [claimed] = room.claim()
        room.settle(Retry(claimed, 0, "TIMEOUT", "no answer"))
    [claimed] = room.claim()
    room.settle(Dead(claimed, "REJECTED", "not wanted"))
    [identifier] = room.ids([position])
    assert requeue(room, [identifier]) == [identifier]
    row = room.delivery(position)
    assert (row.attempts, row.claims, row.error_code, row.error_message, row.due) == (0, 0, "", "", None)
    assert room.statuses() == {position: "pending"}
    [again] = room.claim()
    assert (again.position, again.attempts, again.claims) == (position, 0, 1)
    assert room.settle(Sent(again)) == []


def test_L_10_requeueing_is_audited_with_what_it_was_and_by_whom(room: Room) -> None:
    [position] = bury(room)
    [identifier] = room.ids([position])
    failed_at = room.delivery(position).failed_at
    assert failed_at is not None
    requeue(room, actor="ada")
    [entry] = room.audit()
    assert (entry.action, entry.actor, entry.position, entry.message_id) == (
        "requeue",
        "ada",
        position,
        str(identifier),
    )
    assert datetime.fromisoformat(entry.details.pop("failed_at")) == failed_at
    assert entry.details == {
        "topic": "orders",
        "key": None,
        "attempts": 1,
        "error_code": "REJECTED",
        "error_message": "not wanted",
    }


def test_L_10_a_discarded_message_is_gone_and_audited(room: Room) -> None:
    [position] = bury(room)
    [identifier] = room.ids([position])
    assert discard(room, [identifier], actor="ada") == [identifier]
    assert room.find_delivery(position) is None
    assert room.select("SELECT 1 FROM {outbox}") == []
    assert room.statuses() == {}
    [entry] = room.audit()
    assert (entry.action, entry.actor, entry.position, entry.message_id) == (
        "discard",
        "ada",
        position,
        str(identifier),
    )
    assert entry.details["error_code"] == "REJECTED"


@pytest.mark.parametrize("act", [requeue, discard])
def test_L_10_what_is_not_dead_is_left_alone(room: Room, act: Act) -> None:
    [dead] = bury(room)
    pending, leased, waiting, scheduled, sent = room.add(5)
    claimed = {one.position: one for one in room.claim()}
    room.settle(GivenBack(claimed[pending]), Retry(claimed[waiting], 60, "CODE", "text"), Sent(claimed[sent]))
    room.settle(Retry(claimed[scheduled], 60, "CODE", "text"))
    others = [pending, leased, waiting, scheduled]
    before = [room.delivery(position) for position in others]
    ids = room.ids([dead, *others, sent])
    assert act(room, [*ids, uuid4()]) == ids[:1]
    assert [room.delivery(position) for position in others] == before
    assert room.receipts() == {sent: "sent"}
    assert len(room.audit()) == 1
    assert act(room, ids) == []
    assert len(room.audit()) == 1


def test_L_10_nothing_is_done_where_there_is_nothing(room: Room) -> None:
    assert requeue(room) == discard(room) == requeue(room, []) == discard(room, []) == []
    assert room.audit() == []


def test_L_10_only_those_that_are_named(room: Room) -> None:
    added = bury(room, 4)
    ids = room.ids(added)
    assert requeue(room, [ids[2], ids[0]]) == [ids[0], ids[2]]
    assert discard(room, [ids[1]]) == [ids[1]]
    assert room.positions(3) == [added[3]]
    assert room.positions(2) == [added[0], added[2]]


@on_one_driver_of_each_style
def test_L_10_many_are_requeued_and_discarded_in_batches(room: Room) -> None:
    added = bury(room, 1200)
    ids = room.ids(added)
    assert requeue(room, actor="ada") == ids
    assert room.positions(2) == added
    claimed = room.claim(limit=1200)
    assert positions(claimed) == added
    room.settle(*(Dead(one, "AGAIN", "text") for one in claimed))
    assert set(requeue(room, ids[:1100])) == set(ids[:1100])
    room.settle(*(Dead(one, "AGAIN", "text") for one in room.claim(limit=1200)))
    assert discard(room) == ids
    assert room.positions() == []
    assert len(room.audit()) == 1200 + 1100 + 1200


def test_L_16_a_requeued_message_goes_before_what_it_held(room: Room) -> None:
    [dead] = bury(room, key="a")
    behind = room.add(2, key="a")
    lanes = room.take_lanes()
    assert room.read_lanes(lanes).messages == []
    requeue(room)
    assert room.read_lanes(lanes).messages == []  # it holds them still
    assert list(room.run(room.deliveries.lanes.promote(lanes)).values()) == [dead]
    assert positions(room.read_lanes(lanes).messages) == [dead, *behind]


def test_L_16_under_skip_a_requeued_message_holds_those_behind_it_again(room: Room) -> None:
    protocol = room.on(order=Order.SKIP)
    [dead] = bury(room, key="a")
    behind = room.add(2, key="a")
    lanes = room.run(protocol.lanes.take("worker", 30))
    assert positions(room.run(protocol.lanes.read(lanes, 10, 30)).messages) == behind
    requeue(room)
    assert room.run(protocol.lanes.read(lanes, 10, 30)).messages == []
    room.run(protocol.lanes.promote(lanes))
    assert positions(room.run(protocol.lanes.read(lanes, 10, 30)).messages) == [dead, *behind]


def test_L_16_a_discarded_message_holds_nobody(room: Room) -> None:
    bury(room, key="a")
    behind = room.add(2, key="a")
    lanes = room.take_lanes()
    discard(room)
    assert positions(room.read_lanes(lanes).messages) == behind


def test_a_dead_delivery_without_a_message_can_be_discarded(room: Room) -> None:
    [position] = room.add()
    room.select("DELETE FROM {outbox}")
    assert room.claim() == []
    assert room.positions(3) == [position]
    discard(room, actor="ada")
    assert room.positions() == []
    [entry] = room.audit()
    assert (entry.position, entry.message_id, entry.details["error_code"]) == (position, None, "MESSAGE_MISSING")


def test_queues_are_separate(room: Room) -> None:
    [here] = bury(room)
    [there] = room.add(queue="handlers")
    handlers = room.on("handlers")
    [claimed] = room.run(handlers.rows.claim("worker", 1, 30)).messages
    room.run(handlers.settlements.settle([Dead(claimed, "CODE", "text")]))
    ids = room.ids([here, there])
    assert requeue(room, ids) == ids[:1]
    assert list(room.admin().discard(Filter(queue="handlers"), actor="ada").ids) == ids[1:]


def letters(room: Room, which: Filter = ALL, **options: Any) -> list[int]:
    return [letter.position for letter in room.admin().dead_letters(which, **options)]


def test_L_10_dead_letters_of_all_queues_are_listed_newest_first(room: Room) -> None:
    first, second = bury(room, 2)
    [third] = bury(room, key="a")
    [there] = room.add(queue="handlers")
    handlers = room.on("handlers")
    [claimed] = room.run(handlers.rows.claim("worker", 1, 30)).messages
    room.run(handlers.settlements.settle([Dead(claimed, "OTHER", "text")]))
    assert letters(room) == [there, third, second, first]
    assert letters(room, limit=2) == [there, third]
    assert letters(room, limit=2, before=third) == [second, first]
    newest, keyed, *_ = room.admin().dead_letters()
    assert (newest.queue, newest.topic, newest.error_code, newest.attempts) == ("handlers", "orders", "OTHER", 1)
    assert (keyed.key, keyed.id) == ("a", str(room.ids([third])[0]))
    assert keyed.failed_at is not None
    assert keyed.failed_at.tzinfo is not None
    assert room.admin().requeue(ALL, actor="ada").count == 4
    assert letters(room) == []
    assert [room.delivery(position).queue for position in (third, there)] == ["default", "handlers"]


def test_V_6_those_older_than_the_inboxes_remember_are_counted_by_their_places(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newest_first, "NEAR", 2)
    monkeypatch.setattr(newest_first, "OUT_OF_STEP", timedelta(0))
    for _ in range(3):
        room.add(8)
        room.advance(3600)
    room.execute("UPDATE {delivery} SET state = 3")
    for hours, expected in ((0.5, 24), (1.5, 16), (2.5, 8), (9, 0)):
        counts = room.run(DeadLetters(room.names).count(old=hours * 3600))
        assert (counts.total, counts.older_than_inbox) == (24, expected)


def test_L_10_dead_letters_are_chosen_by_what_they_are(room: Room) -> None:
    old = bury(room, 2)
    room.advance(600)
    keyed = bury(room, 2, key="a")
    other = bury(room, 1, key="b")
    [elsewhere] = room.add(topic="mails")
    [claimed] = room.claim()
    room.settle(Dead(claimed, "OTHER", "text"))
    assert letters(room, Filter(topic="orders"), limit=1) == other
    assert letters(room, Filter(topic="mails")) == letters(room, Filter(code="OTHER")) == [elsewhere]
    assert letters(room, Filter(key="a")) == keyed[::-1]
    assert letters(room, Filter(key="a", code="OTHER")) == []
    assert letters(room, Filter(older_than=timedelta(minutes=5))) == old[::-1]
    counts = room.run(DeadLetters(room.names).count(Filter(topic="orders"), old=300))
    assert (counts.total, counts.older_than_inbox) == (5, 2)
    counts = room.run(DeadLetters(room.names).count(Filter(room.ids([*old, *keyed])), old=300))
    assert (counts.total, counts.older_than_inbox) == (4, 2)
    counts = room.run(DeadLetters(room.names).count(old=300))
    assert (counts.total, counts.older_than_inbox) == (6, 2)
    told: list[int] = []
    assert list(room.admin().requeue(Filter(key="a"), actor="ada", progress=told.append).ids) == room.ids(keyed)
    assert sum(told) == 2
    gone = room.ids(old)
    which = Filter(older_than=timedelta(minutes=5), topic="orders")
    assert list(room.admin().discard(which, actor="ada").ids) == gone
    assert letters(room) == [elsewhere, *other]


def test_L_10_a_dead_letter_is_shown_with_what_was_done_to_it(room: Room) -> None:
    [position] = bury(room)
    [identifier] = room.ids([position])
    requeue(room, actor="ada")
    with pytest.raises(MessageNotFound, match="pending"):
        room.admin().dead_letter(identifier)
    [claimed] = room.claim()
    room.settle(Dead(claimed, "AGAIN", "text"))
    found = room.admin().dead_letter(identifier)
    assert found.delivery is not None
    assert (found.delivery.error_code, found.attempts) == ("AGAIN", 1)
    assert [(act.action, act.actor) for act in found.history] == [("requeue", "ada")]
    missing = uuid4()
    with pytest.raises(MessageNotFound, match=str(missing)):
        room.admin().dead_letter(missing)


@on_one_driver_of_each_style
def test_every_batch_of_dead_letters_reads_on_behind_the_one_before(room: Room) -> None:
    bury(room, 1100)
    bury(room, 3, key="a")
    seen: list[Query] = []
    steps = DeadLetters(room.names).requeue()
    with room.producer.session() as execute:

        def noting(query: Query) -> Result:
            seen.append(query)
            return execute(query)

        assert run(steps, noting).count == 1103
    batches = [query.text for query in seen if "LEFT JOIN" in query.text]
    assert len(batches) == 4
    assert all("d.lane = " in text and "d.position > " in text for text in batches)


def conflicts(room: Room, lost: Sequence[Claimed]) -> list[LostLease]:
    return room.run(Conflicts(room.deliveries.sql).record("slow", lost))


def test_no_conflicts_are_no_entries(room: Room) -> None:
    assert conflicts(room, []) == []
    assert room.audit() == []


def test_L_6_a_conflict_is_audited_with_what_was_found(room: Room) -> None:
    sent, expired, dead, waiting, leased, free, discarded = room.add(7)
    lost = room.claim("slow")
    room.advance(31)
    fresh = {one.position: one for one in room.claim("quick", seconds=600)}
    room.settle(
        Sent(fresh[sent]),
        Expired(fresh[expired]),
        Dead(fresh[dead], "CODE", "text"),
        Retry(fresh[waiting], 60, "CODE", "text"),
        GivenBack(fresh[free]),
        Dead(fresh[discarded], "CODE", "text"),
    )
    discard(room, room.ids([discarded]))
    found = conflicts(room, lost)
    assert {one.claimed.position: (one.status, one.owner, one.token) for one in found} == {
        sent: ("sent", "", 0),
        expired: ("expired", "", 0),
        dead: ("dead", "", 0),
        waiting: ("waiting", "", 0),
        leased: ("sending", "quick", fresh[leased].token),
        free: ("pending", "", 0),
        discarded: ("removed", "", 0),
    }
    entries = [entry for entry in room.audit() if entry.action == "conflict"]
    assert [entry.position for entry in entries] == positions(lost)
    assert {entry.actor for entry in entries} == {"slow"}
    assert [entry.message_id for entry in entries] == [str(one.message.id) for one in lost]
    assert entries[4].details == {"status": "sending", "owner": "quick", "same_claim": False}
    assert entries[0].details == {"status": "sent", "owner": "", "same_claim": False}


def test_L_6_a_lease_that_ended_and_was_not_taken_is_found_as_ones_own(room: Room) -> None:
    room.add()
    lost = room.claim("slow")
    room.advance(31)
    [found] = conflicts(room, lost)
    assert (found.status, found.owner, found.token) == ("pending", "slow", lost[0].token)
    assert room.audit()[0].details == {"status": "pending", "owner": "slow", "same_claim": True}


def test_L_6_a_lane_that_was_taken_is_found_with_its_holder(room: Room) -> None:
    sent, unsent = room.add(2, key="a")
    lost = room.read_lanes(room.take_lanes("slow")).messages
    room.advance(31)
    lanes = room.take_lanes("quick")
    [first, _] = room.read_lanes(lanes).messages
    room.settle(Sent(first))
    assert [(one.claimed.position, one.status, one.owner, one.token) for one in conflicts(room, lost)] == [
        (sent, "sent", "", 0),
        (unsent, "sending", "quick", lanes[0].token),
    ]
    room.run(room.deliveries.lanes.release(lanes))
    assert [(one.status, one.owner) for one in conflicts(room, lost[1:])] == [("pending", "")]
