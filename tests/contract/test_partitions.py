"""Partitions on PostgreSQL: everything works as without, and old messages go with their partition."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom import Message, Outbox
from postroom.doctor import Verdict, examine
from postroom.errors import DuplicateMessage, InvalidIdentifier, SchemaError
from postroom.rules import partitions as rules
from postroom.store.admin import ages
from postroom.store.admin.partitions import OldPartitions, Partitions
from postroom.store.admin.retention import clean, swept
from postroom.store.connections.stores import Store
from postroom.store.outbox.leases import Dead, Sent
from postroom.store.schema.migrations import upgrade
from postroom.store.schema.partitions import check_partitions, is_partitioned, partition
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query
from tests.contract import test_claim, test_dead_letters, test_idempotency_key, test_retention, test_settle
from tests.contract.store_drivers import DRIVERS, Driver, Room
from tests.services.databases import fresh_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DAY = 86_400.0
SIZE = 100


@pytest.fixture(scope="module")
def contract_database() -> Iterator[Callable[[str], str]]:
    """A database whose outbox has partitions of few messages."""
    with fresh_database("postgresql") as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr("postroom.store.schema.partitions.LEAST", SIZE)
        patch.setattr(rules, "LEAST", SIZE)
        with closing(Store(url)) as store:
            store.call(lambda connection: upgrade(connection, store.names))
            assert store.call(lambda connection: partition(connection, store.names))
            assert not store.call(lambda connection: partition(connection, store.names))
        yield lambda _kind: url


@pytest.fixture(
    scope="module", params=[one for one in DRIVERS if one.name in {"psycopg", "asyncpg"}], ids=lambda one: one.name
)
def driver(request: pytest.FixtureRequest) -> Driver:
    found: Driver = request.param
    return found


def _reused(module: object) -> dict[str, Callable[..., None]]:
    """A suite's tests that run on every driver."""
    tests = {name: test for name, test in vars(module).items() if name.startswith("test_") and callable(test)}
    return {
        name: test for name, test in tests.items() if not getattr(test, "pytestmark", None) and name not in _OTHERWISE
    }


_OTHERWISE = {"test_L_15_a_clean_up_goes_through_all_batches_and_past_what_stays"}
"""Its batches differ where a partition ends among its messages."""


for _suite in (test_claim, test_settle, test_idempotency_key, test_dead_letters, test_retention):
    globals().update(_reused(_suite))


def old_partitions(room: Room, monkeypatch: pytest.MonkeyPatch) -> int:
    """Clean partitions alone, as if each message counted; returns how many messages went."""
    monkeypatch.setattr(ages, "FEW", 1)
    return room.run(swept(OldPartitions(room.names, 7 * DAY)))


def go_ahead(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have many partitions, and begin in a new one."""
    with monkeypatch.context() as patch:
        patch.setattr(rules, "AHEAD", 15)
        room.run(swept(OldPartitions(room.names, 7 * DAY)))
    position = room.run(Partitions(room.names).next_position())
    room.count_on_from(next(part.start for part in parts(room) if part.start >= position))


def parts(room: Room) -> list[rules.Range]:
    return [part.range for part in room.run(Partitions(room.names).existing())]


def settle(room: Room, count: int) -> list[int]:
    added = room.add(count)
    while claimed := room.claim(limit=1000):
        room.settle(*map(Sent, claimed))
    return added


def test_L_15_old_partitions_are_emptied_and_dropped_and_what_must_stay_stays(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_ahead(room, monkeypatch)
    dead, held = room.add(2)
    [buried, _] = room.claim()
    room.settle(Dead(buried, "CODE", "text"))
    room.add(idempotency_key="order-7", payload=7)
    room.settle(*(Sent(one) for one in room.claim() if one.position != held))
    old = settle(room, 3 * SIZE)
    room.advance(8 * DAY)
    settle(room, 5 * SIZE)
    before = parts(room)
    gone = old_partitions(room, monkeypatch)
    assert gone > SIZE
    left = {position for [position] in room.select("SELECT position FROM {outbox}")}
    assert {dead, held} <= left
    assert left == {position for [position] in room.select("SELECT position FROM {receipt}")} | {*room.positions()}
    assert len(left) == 2 + 1 + 8 * SIZE - gone
    assert all(position > dead + SIZE for position in {*old} & left)
    assert len(parts(room)) < len(before)
    assert any(part.start <= dead < part.end for part in parts(room))  # kept, for what must stay
    [again] = room.add(idempotency_key="order-7", payload=8)  # its message is gone, so its key is free
    assert again not in left
    assert old_partitions(room, monkeypatch) == 0


def test_O_3_keys_are_unique_across_partitions_and_free_when_a_message_goes(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_ahead(room, monkeypatch)
    [first] = room.add(idempotency_key="k", payload=1)
    for _ in range(2):
        settle(room, SIZE)
    room.add(idempotency_key="k", payload=1)  # recognised
    assert room.select("SELECT position FROM {outbox} WHERE idempotency_key = 'k'") == [(first,)]
    [identifier] = room.ids([first])
    with psycopg.connect(room.url) as connection, pytest.raises(DuplicateMessage):
        Outbox().add_many(connection, [Message.new("orders", 2, id=identifier, idempotency_key="another")])
    room.execute("DELETE FROM {delivery} WHERE position = :p", p=first)
    room.execute("DELETE FROM {outbox} WHERE position = :p", p=first)
    [second] = room.add(idempotency_key="k", payload=2)
    assert second > first
    assert room.select("SELECT count(*) FROM postroom.outbox_key") == [(1,)]


def test_L_15_without_partitions_ahead_messages_go_to_the_default_one(room: Room) -> None:
    """Nobody ran a cleanup for long. The next one adds partitions further ahead, and cleans the default row by row."""
    room.count_on_from(max(part.end for part in parts(room)) + 5)
    added = settle(room, 20)
    assert room.select("SELECT count(*) FROM postroom.outbox_default") == [(20,)]
    end = parts(room)[-1].end
    room.run(swept(OldPartitions(room.names, 7 * DAY)))
    assert parts(room)[-1].end > end
    assert parts(room)[-1].start > added[-1]
    room.advance(8 * DAY)
    assert room.run(clean(room.names)).messages == 20


def test_L_15_a_partition_in_use_is_left_for_the_next_time(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    go_ahead(room, monkeypatch)
    settle(room, 2 * SIZE)
    room.advance(8 * DAY)
    settle(room, 2 * SIZE)
    with room.producer.session() as execute:
        execute(Query("BEGIN"))
        execute(Query("LOCK TABLE postroom.outbox IN ROW EXCLUSIVE MODE"))
        children = [part.name for part in room.run(Partitions(room.names).existing())]
        for child in children:
            execute(Query(f"LOCK TABLE postroom.{child} IN ROW EXCLUSIVE MODE"))
        assert old_partitions(room, monkeypatch) == 0
        execute(Query("ROLLBACK"))
    assert old_partitions(room, monkeypatch) > 0


def test_L_15_producers_and_relays_go_on_while_partitions_are_emptied(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_ahead(room, monkeypatch)
    settle(room, 3 * SIZE)
    room.advance(8 * DAY)
    settle(room, SIZE)
    stop = threading.Event()
    added: list[int] = []

    def produce() -> None:
        with psycopg.connect(room.url) as connection:
            while not stop.is_set():
                Outbox().add(connection, "orders", 1)
                connection.commit()
                added.append(1)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        assert old_partitions(room, monkeypatch) > 0
    finally:
        stop.set()
        producer.join()
    claimed = room.claim(limit=100_000)
    assert len(claimed) == len(added)
    assert not any(one.message is None for one in claimed)


def test_L_15_two_that_clean_at_once_do_no_harm(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    go_ahead(room, monkeypatch)
    settle(room, 5 * SIZE)
    unsent = room.add(3)
    room.advance(8 * DAY)
    new = room.add(SIZE)
    room.settle(*(Sent(one) for one in room.claim(limit=1000) if one.position in new))
    monkeypatch.setattr(ages, "FEW", 1)
    monkeypatch.setattr(rules, "AHEAD", 20)  # they add partitions, too

    def cleaned(_: int) -> int:
        with closing(Store(room.url)) as store:
            return store.run(swept(OldPartitions(room.names, 7 * DAY)))

    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(cleaned, range(3)))
    assert SIZE <= sum(found) <= 5 * SIZE
    left = {position for [position] in room.select("SELECT position FROM {outbox}")}
    assert {*unsent, *new} <= left
    assert len(left) == 6 * SIZE + 3 - sum(found)
    assert all(one.end <= another.start for one, another in pairwise(parts(room)))


def test_an_outbox_in_use_is_partitioned_with_all_that_is_in_it() -> None:
    with fresh_database("postgresql") as url, closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        with psycopg.connect(url) as connection:
            connection.execute("CREATE ROLE partition_reader")
            connection.execute("GRANT SELECT ON postroom.outbox, postroom.outbox_status TO partition_reader")
            connection.execute("GRANT INSERT (id, topic) ON postroom.outbox TO partition_reader")
            one = Outbox().add(connection, "orders", 1, idempotency_key="k")
            Outbox().add(connection, "orders", 2)
            connection.commit()
            assert not store.call(lambda other: is_partitioned(other, store.names))
            assert store.call(lambda other: partition(other, store.names))
            [[function]] = connection.execute(
                "SELECT postroom.add('orders', '1'::jsonb, idempotency_key => 'k')"
            ).fetchall()
            assert function == one.id
            assert connection.execute("SELECT count(*) FROM postroom.outbox_status").fetchall() == [(2,)]
            rights = "has_table_privilege('partition_reader', 'postroom.outbox', 'SELECT'), has_column_privilege("
            rights += "'partition_reader', 'postroom.outbox', 'topic', 'INSERT')"
            assert connection.execute(f"SELECT {rights}").fetchall() == [(True, True)]
            connection.execute("DROP OWNED BY partition_reader; DROP ROLE partition_reader")
            Outbox().add(connection, "orders", 3)
            assert connection.execute("SELECT count(*) FROM postroom.outbox_default").fetchall() == [(0,)]
            connection.commit()
        judged = {one.code: one.evidence for one in examine(url, only=["SCHEMA_*"]) if one.verdict is not Verdict.OK}
        assert judged == {}, "the doctor knows partitions"
        store.call(lambda connection: upgrade(connection, store.names))


def test_where_there_can_be_no_partitions_it_says_so() -> None:
    with pytest.raises(SchemaError, match="partitions need PostgreSQL"):
        check_partitions(Names.of("mysql"))
    with pytest.raises(InvalidIdentifier, match="with partitions, at most 28"):
        check_partitions(Names.of("postgresql", None, "x" * 29))
