"""Retention: what is settled and old goes, in batches; what is not sent stays."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest

from postroom.admin import Cleaned
from postroom.errors import DatabaseUnreachable
from postroom.rules.replay import Entry, Response, Run, Status
from postroom.store.admin import ages
from postroom.store.admin.retention import Cleanup, Kept, audit_entries, clean, expired_entries, marks, swept
from postroom.store.admin.settled_messages import SettledMessages
from postroom.store.connections.stores import Store
from postroom.store.ledger.entries import LEDGER_ENTRIES, Terms
from postroom.store.outbox.leases import Dead, Expired, Retry, Sent, new_token
from postroom.store.sql.steps import Query, Result, run
from postroom.store.twophase.branches import WITNESS
from tests.contract.store_drivers import Room, on_one_driver_of_each_style, only_with_row_locks

if TYPE_CHECKING:
    from postroom.store.sql.steps import Steps

DAY = 86_400.0
ENDS = ("BEGIN", "COMMIT", "START TRANSACTION", "BEGIN ISOLATION LEVEL READ COMMITTED")
T = TypeVar("T")


def remove(room: Room, seconds: float = 7 * DAY, batch: int = 1000) -> int:
    return room.run(swept(SettledMessages(room.names, seconds), batch))


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
    assert room.run(swept(SettledMessages(room.names, 7 * DAY), 10, told.append)) == 25
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
    cleaned = room.run(clean(room.names, Kept(messages=7, marks=9), batch=10, progress=told.append))
    assert (cleaned.messages, cleaned.marks) == (len(settled_early), 0)
    assert told == [9, 10, 6]  # the first page holds one that stays
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
    with room.producer.session() as execute:
        sweep = SettledMessages(room.names, 7 * DAY)
        execute(Query("BEGIN"))
        run(sweep.page(3), lambda query: execute(query) if query.text not in ENDS else Result([]))
        assert remove(room) == 1
        execute(Query("COMMIT"))
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
    told: list[int] = []
    assert room.run(swept(marks(room.names, 7 * DAY), 4, told.append)) == 7
    assert told == [4, 3]  # pages go across consumers
    assert room.run(swept(marks(room.names, 7 * DAY), 4)) == 0
    assert room.select("SELECT consumer, message_id FROM {inbox}") == [("billing", "new")]


def test_T_2_marks_of_branches_outlive_a_shorter_retention(room: Room) -> None:
    """Without its mark, a branch that recovery finds committed would count as rolled back by somebody."""

    def mark(consumer: str) -> None:
        room.select("INSERT INTO {inbox} (consumer, message_id) VALUES (:c, 'a')", c=consumer)

    mark("billing")
    mark(WITNESS)
    room.advance(6 * DAY)
    assert room.run(swept(marks(room.names, DAY))) == 1
    assert room.select("SELECT consumer FROM {inbox}") == [(WITNESS,)]
    room.advance(DAY)
    assert room.run(swept(marks(room.names, DAY))) == 1


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
    assert room.run(swept(expired_entries(room.names))) == 0
    room.advance(2)
    told: list[int] = []
    assert room.run(swept(expired_entries(room.names), 4, told.append)) == 6
    assert told == [4, 2]
    kept = [key for [key] in room.select("SELECT idempotency_key FROM {idempotency} ORDER BY idempotency_key")]
    assert kept == ["late", "new", "running"]
    room.advance(2 * DAY)
    assert room.admin().cleanup().entries == 3


def noted(steps: Steps[T], seen: list[str]) -> Steps[T]:
    """The same operation; `seen` gets the text of each statement."""
    try:
        query = next(steps)
        while True:
            seen.append(query.text)
            query = steps.send((yield query))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # a generator's return value is untyped in StopIteration


@on_one_driver_of_each_style
def test_K_1_twenty_thousand_scopes_take_one_pass(room: Room) -> None:
    """A scope for each user is usual. One transaction for each made 20,000 of them, and 100,000 statements."""
    scopes, digest, never = 20_000, "0" * 64, room.dialect.never
    for first in range(0, scopes, 1000):
        rows = ", ".join(f"('user-{n}', 'k', '{digest}', {never}, {never})" for n in range(first, first + 1000))
        room.execute(
            f"INSERT INTO {{idempotency}} (scope, idempotency_key, digest, leased_until, expires_at) VALUES {rows}"
        )
    [later] = room.select(f"SELECT {room.dialect.later(':s')}", s=DAY)
    room.execute("UPDATE {idempotency} SET expires_at = :later WHERE scope LIKE 'user-%7'", later=later[0])
    seen: list[str] = []
    assert room.run(noted(swept(expired_entries(room.names), 1000), seen)) == scopes * 9 // 10
    pages = scopes // 1000 + 1
    transactions = seen.count("COMMIT") or sum("DELETE" in text for text in seen)
    assert transactions <= pages
    assert len(seen) <= 6 * pages
    assert room.select("SELECT count(*) FROM {idempotency}") == [(scopes // 10,)]


def test_L_15_audit_entries_go_by_their_age(room: Room) -> None:
    for _ in range(5):
        room.execute("INSERT INTO {audit} (action, details) VALUES ('requeue', '{{}}')")
    room.advance(300 * DAY)
    room.execute("INSERT INTO {audit} (action, details) VALUES ('discard', '{{}}')")
    seen: list[str] = []
    assert room.run(noted(swept(audit_entries(room.names, 301 * DAY), 2), seen)) == 0
    assert sum("OFFSET" in text for text in seen) == 1  # the first that stays is the last that is read
    assert room.admin().cleanup(audit_days=301).audit == 0
    room.advance(2 * DAY)
    assert room.admin().cleanup(audit_days=301).audit == 5
    assert room.select("SELECT action FROM {audit}") == [("discard",)]


@on_one_driver_of_each_style
def test_L_15_receipts_of_new_messages_are_not_read(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ages, "FEW", 10)
    old = room.add(100)
    settle_all(room)
    room.advance(8 * DAY)
    room.add(2000)
    for _ in range(2):
        room.settle(*map(Sent, room.claim(limit=1000)))
    nonsense = old[20:30]
    values = ", ".join(map(str, nonsense))
    room.execute(f"UPDATE {{outbox}} SET created_at = '9998-01-01 00:00:00' WHERE position IN ({values})")
    seen: list[str] = []
    assert room.run(noted(swept(SettledMessages(room.names, 7 * DAY), 100), seen)) == 100
    assert sum("OFFSET" in text for text in seen) <= 3
    assert len(messages(room)) == 2000


@on_one_driver_of_each_style
def test_L_15_a_crash_in_the_middle_leaves_nothing_half_removed(room: Room) -> None:
    def fill() -> list[int]:
        room.empty()
        room.add(20)
        settle_all(room)
        unsent = room.add()
        room.advance(8 * DAY)
        return unsent

    def crash(cleanup: Cleanup, after: int) -> None:
        """Lose the connection after so many statements."""
        counter = itertools.count()
        with room.producer.session() as execute:
            run(cleanup.batch(), lambda query: execute(query) if next(counter) < after else cut())

    fill()
    seen: list[str] = []
    room.run(noted(Cleanup(room.names, Kept()).batch(), seen))
    unsent = fill()
    cleanup = Cleanup(room.names, Kept())
    for after in range(len(seen)):
        cleanup = Cleanup(room.names, Kept())
        with pytest.raises(DatabaseUnreachable):
            crash(cleanup, after)
        assert len(messages(room)) == len(room.receipts()) + 1 == 21
    while not cleanup.done:
        room.run(cleanup.batch())
    assert cleanup.cleaned == Cleaned(20, 0, 0)
    assert messages(room) == unsent


def cut() -> Result:
    raise ConnectionError("cut")


@on_one_driver_of_each_style
def test_L_15_two_that_clean_at_once_remove_everything_once(room: Room) -> None:
    room.add(3000)
    for _ in range(3):
        room.settle(*map(Sent, room.claim(limit=1000)))
    unsent = room.add(5)
    rows = ", ".join(f"('billing-{n % 7}', 'm-{n}')" for n in range(2000))
    room.execute(f"INSERT INTO {{inbox}} (consumer, message_id) VALUES {rows}")
    room.advance(8 * DAY)

    def cleaned(_: int) -> Cleaned:
        with closing(Store(room.url)) as store:
            return store.run(clean(room.names, batch=50))

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(cleaned, range(3)))
    left = room.run(clean(room.names))  # what one had locked while others passed it over, or stopped short of
    assert (sum(one.messages for one in [*found, left]), sum(one.marks for one in [*found, left])) == (3000, 2000)
    assert room.run(clean(room.names)) == Cleaned(0, 0, 0)
    assert messages(room) == unsent
