"""Retention: what is settled and old goes, in batches; what is not sent stays."""

from __future__ import annotations

from functools import partial

from postroom.admin import Cleaned
from postroom.rules.replay import Entry, Response, Run, Status
from postroom.store.admin.retention import Retention, clean
from postroom.store.ledger.entries import LEDGER_ENTRIES, Terms
from postroom.store.outbox.leases import Dead, Expired, Retry, Sent, new_token
from postroom.store.twophase.branches import WITNESS
from tests.contract.store_drivers import Room, only_with_row_locks

DAY = 86_400.0


def remove(room: Room, seconds: float = 7 * DAY, batch: int = 1000) -> int:
    return room.run(Retention(room.names).remove_settled(seconds, batch))


def settle_all(room: Room) -> None:
    assert room.settle(*map(Sent, room.claim(limit=10_000))) == []


def messages(room: Room) -> list[int]:
    return [position for [position] in room.select("SELECT position FROM {outbox} ORDER BY position")]


def test_L_15_what_was_settled_long_ago_is_removed(room: Room) -> None:
    old = room.add(2)
    [first, second] = room.claim()
    room.settle(Sent(first), Expired(second))
    room.advance(6 * DAY)
    new = room.add(1)
    settle_all(room)
    assert remove(room) == 0
    room.advance(1.1 * DAY)
    assert messages(room) == [*old, *new]
    assert remove(room) == 2
    assert messages(room) == list(room.receipts()) == new
    assert remove(room) == 0


def test_L_15_what_is_not_sent_is_never_removed(room: Room) -> None:
    unsent = room.add(4)
    [_, failed, dead, _] = room.claim(seconds=30)
    room.settle(Retry(failed, 1, "CODE", "text"), Dead(dead, "CODE", "text"))
    keyed = room.add(2, key="a")
    scheduled = room.add(1, deliver_in=3600)
    room.advance(1000 * DAY)
    assert remove(room, seconds=0) == 0
    assert messages(room) == room.positions() == [*unsent, *keyed, *scheduled]


def test_L_15_it_is_removed_in_batches(room: Room) -> None:
    added = room.add(25)
    settle_all(room)
    room.advance(8 * DAY)
    told: list[int] = []
    assert room.run(Retention(room.names).remove_settled(7 * DAY, 10, told.append)) == 25
    assert told == [10, 10, 5]
    assert (messages(room), room.receipts()) == ([], {})
    assert added


def test_L_15_a_clean_up_goes_through_all_batches_and_past_what_stays(room: Room) -> None:
    [late] = room.add()
    settled_early = room.add(25)
    early = room.claim(limit=100)
    room.settle(*(Sent(one) for one in early if one.position != late))
    room.select("INSERT INTO {inbox} (consumer, message_id) VALUES ('billing', 'old')")
    room.advance(8 * DAY)
    settle_all(room)  # the first message too, but only now
    [unsent] = room.add()
    told: list[int] = []
    cleaned = room.run(clean(room.names, days=7, inbox_days=9, batch=10, progress=told.append))
    assert (cleaned.messages, cleaned.marks) == (len(settled_early), 0)
    assert told == [10, 10, 5, 0]
    assert messages(room) == [late, unsent]
    assert room.admin().cleanup(days=0, inbox_days=7) == Cleaned(1, 1, 0)
    assert messages(room) == [unsent]


def test_O_3_the_idempotency_key_of_a_removed_message_can_be_used_again(room: Room) -> None:
    [first] = room.add(idempotency_key="order-7")
    settle_all(room)
    room.advance(8 * DAY)
    remove(room)
    [second] = room.add(idempotency_key="order-7")
    assert second > first


@only_with_row_locks
def test_L_15_two_at_once_do_not_wait_for_each_other(room: Room) -> None:
    added = room.add(4)
    settle_all(room)
    room.advance(8 * DAY)
    old = Retention(room.names)
    with room.producer.session() as execute:
        steps = old.remove_settled(7 * DAY, 3)
        query = next(steps)
        for _ in range(6):  # begin, select twice, delete three times, but not the commit
            query = steps.send(execute(query))
        assert query.text == "COMMIT"
        assert remove(room) == 1
        execute(query)
    assert messages(room) == []
    assert added


def test_I_3_old_inbox_marks_are_removed_in_batches(room: Room) -> None:
    def mark(consumer: str, *ids: str) -> None:
        for one in ids:
            room.select("INSERT INTO {inbox} (consumer, message_id) VALUES (:c, :m)", c=consumer, m=one)

    mark("billing", *"abcde")
    mark("shipping", "a", "b")
    room.advance(8 * DAY)
    mark("billing", "new")
    old = Retention(room.names)
    told: list[int] = []
    assert room.run(old.remove_marks(7 * DAY, 4, told.append)) == 7
    assert told == [4, 1, 2]
    assert room.run(old.remove_marks(7 * DAY, 4)) == 0
    assert room.select("SELECT consumer, message_id FROM {inbox}") == [("billing", "new")]


def test_T_2_marks_of_branches_outlive_a_shorter_retention(room: Room) -> None:
    """Without its mark, a branch that recovery finds committed would count as rolled back by somebody."""

    def mark(consumer: str) -> None:
        room.select("INSERT INTO {inbox} (consumer, message_id) VALUES (:c, 'a')", c=consumer)

    mark("billing")
    mark(WITNESS)
    room.advance(6 * DAY)
    assert room.run(Retention(room.names).remove_marks(DAY)) == 1
    assert room.select("SELECT consumer FROM {inbox}") == [(WITNESS,)]
    room.advance(DAY)
    assert room.run(Retention(room.names).remove_marks(DAY)) == 1


def test_K_1_expired_entries_are_removed_in_batches_and_never_from_under_a_run(room: Room) -> None:
    def begin(scope: str, key: str, lease: float = 30) -> Entry:
        entry = Entry(scope, key, "0" * 64, new_token())
        begin = partial(entries.begin, replay_failures=False)
        assert room.run(room.deliveries.sql.transaction(begin, entry, Terms(lease, DAY))) == Run(entry)
        return entry

    def finish(entry: Entry) -> None:
        assert room.run(entries.end(entry, Status.SUCCEEDED, Response(200), DAY))

    entries = LEDGER_ENTRIES[room.names.dialect](room.names)
    for key in "abcde":
        finish(begin("", key))
    begin("shop", "crashed")
    begin("shop", "running", lease=2 * DAY)
    late = begin("shop", "late")
    room.advance(DAY - 1)
    finish(late)
    begin("shop", "new")
    old = Retention(room.names)
    assert room.run(old.remove_expired()) == 0
    room.advance(2)
    told: list[int] = []
    assert room.run(old.remove_expired(4, told.append)) == 6
    assert told == [4, 1, 1]
    kept = [key for [key] in room.select("SELECT idempotency_key FROM {idempotency} ORDER BY idempotency_key")]
    assert kept == ["late", "new", "running"]
    room.advance(2 * DAY)
    assert room.admin().cleanup().entries == 3
