"""The traps of the delivery protocol: simpler designs fell into each of them, with the failure seen."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import pytest

from postroom.message import Message
from postroom.rules.ordering import Order, key_hash, waves
from postroom.store.admin.retention import swept
from postroom.store.admin.settled_messages import SettledMessages
from postroom.store.connections.stores import Store
from postroom.store.outbox.leases import Claimed, Dead, GivenBack, Retry, Sent, Settlement
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.writers import WRITERS
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.steps import Query, run
from tests.contract.store_drivers import Room, key_of_lane, keys_of_lane, only_on, only_with_row_locks, positions
from tests.contract.trap_support import add_with, uncommitted_settle, wait_until_blocked

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import FreshDatabase


# A lane is taken in one statement, and read in a new one


@only_with_row_locks
def test_a_lane_is_taken_in_one_statement_and_read_in_a_new_one(room: Room, neighbour: Store) -> None:
    [settled, unsettled] = room.add(2, key=key_of_lane(3))
    lanes = room.take_lanes("last owner")
    first, _ = room.read_lanes(lanes).messages
    with neighbour.session() as execute:
        uncommitted_settle(room, first, execute)
        execute(Query(f"UPDATE {room.tables['lane']} SET leased_until = {room.dialect.never} WHERE lane = 3"))
        # Its lease ends in the same moment, and another wants the lane: it does not wait for the last owner's
        # transaction, which would leave it with a snapshot from before that transaction's end.
        assert room.take_lanes("next owner") == []
        execute(Query("COMMIT"))
    [lane] = room.take_lanes("next owner")
    assert positions(room.read_lanes([lane]).messages) == [unsettled]
    assert room.receipts() == {settled: "sent"}


@only_on("psycopg")
def test_taken_and_read_in_one_statement_a_lane_shows_what_its_last_owner_has_deleted(
    room: Room, neighbour: Store
) -> None:
    """The trap itself, so that nobody builds it again."""
    [settled, unsettled] = room.add(2, key=key_of_lane(3))
    first, _ = room.read_lanes(room.take_lanes("last owner")).messages
    take_and_read = (
        "WITH taken AS (UPDATE {lane} SET owner = 'next owner' WHERE lane = 3 RETURNING lane) "
        "SELECT d.position FROM taken JOIN {delivery} d ON d.lane = taken.lane ORDER BY d.position"
    )
    with neighbour.session() as execute, ThreadPoolExecutor(1) as thread:
        uncommitted_settle(room, first, execute)
        read = thread.submit(room.select, take_and_read)
        wait_until_blocked(execute)
        execute(Query("COMMIT"))
        assert read.result() == [(settled,), (unsettled,)]
    assert room.positions() == [unsettled]


# A lease that is renewed or taken between the look and the write


@only_on("psycopg")
@pytest.mark.parametrize("settlement", [Sent, GivenBack, partial(Retry, delay=5, code="X", message="no")])
def test_a_settlement_that_meets_a_renewal_is_written_and_one_that_meets_a_new_claim_is_not(
    room: Room, neighbour: Store, settlement: Callable[[Claimed], Settlement]
) -> None:
    room.add(2)
    renewed, taken = room.claim("slow")
    table = room.names.mapping()["delivery"]
    with neighbour.session() as execute, ThreadPoolExecutor(1) as thread:
        execute(Query("BEGIN"))
        later = f"UPDATE {table} SET leased_until = leased_until + interval '9 s'"
        execute(Query(f"{later} WHERE position = {renewed.position}"))
        execute(Query(f"{later}, token = token + 1 WHERE position = {taken.position}"))
        settled = thread.submit(room.settle, settlement(renewed), settlement(taken))
        wait_until_blocked(execute)
        execute(Query("COMMIT"))
        assert settled.result() == [taken]


# Who loses the lease of a keyed message drops everything of its lane


def test_who_loses_the_lease_of_a_keyed_message_drops_everything_of_its_lane_unsent(room: Room) -> None:
    lost = room.add(3, key=key_of_lane(3))
    kept = room.add(2, key=key_of_lane(4))
    lanes = room.take_lanes("slow", limit=5)
    batch = room.read_lanes(lanes).messages
    room.run(room.deliveries.renewals.renew([], lanes[4:], 100))
    room.advance(31)
    [taken] = [lane for lane in room.take_lanes("quick") if lane.number == 3]
    first, *rest = batch
    assert room.settle(Sent(first)) == [first]
    dropped = [one for one in rest if one.lane == first.lane]
    assert positions(dropped) == lost[1:]
    assert room.settle(*map(Sent, rest)) == dropped  # had it sent them, nobody would believe it
    assert list(room.receipts()) == kept
    assert positions(room.read_lanes([taken]).messages) == lost


# All columns that a claim writes are NOT NULL with defaults


def test_a_claim_never_makes_the_row_move(fresh_database: FreshDatabase) -> None:
    """NULLs that a claim fills make the row grow: 77 % of the updates were HOT, like this all are."""
    with closing(Store(fresh_database("postgresql"))) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        protocol = QueueStore(store.names)
        table = store.names.mapping()["delivery"]
        writer = WRITERS["postgresql"](store.names)
        with store.session() as execute:
            run(writer.add([Message.new("orders", {"n": n}) for n in range(2000)]), execute)
            claimed = 0
            while messages := run(protocol.rows.claim("a worker of some name", 100, 30), execute).messages:
                claimed += len(messages)
            execute(Query("SELECT pg_stat_force_next_flush()"))
            execute(Query("SELECT pg_stat_clear_snapshot()"))
            figures = f"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = '{table}'::regclass"
            [updates] = execute(Query(figures)).rows
    assert claimed == 2000
    assert tuple(updates) == (2000, 2000)


# The key's hash has 64 bits, and is the same in every database

KEY_HASH = {
    "postgresql": "SELECT ('x' || left(md5(convert_to(:key, 'UTF8')), 16))::bit(64)::bigint",
    "mysql": "SELECT CAST(CONV(LEFT(MD5(:key), 16), 16, -10) AS SIGNED)",
}


@only_on("psycopg", "pymysql")
@pytest.mark.parametrize("key", ["a", "A", "7", "order-7", "naïve ✓", "😀", " ", "x" * 255])
def test_the_hash_of_a_key_is_the_same_in_every_database(room: Room, key: str) -> None:
    assert room.select(KEY_HASH[room.names.dialect], key=key) == [(key_hash(key),)]


def test_the_hash_of_a_key_is_kept_whole(room: Room) -> None:
    keys = ["a", "order-5797", "order-47139"]
    stored = [room.delivery(room.add(key=key)[0]).key_hash for key in keys]
    assert stored == [key_hash(key) for key in keys]
    assert stored[1] != stored[2]
    assert (stored[1] or 0) & 0xFFFFFFFF == (stored[2] or 0) & 0xFFFFFFFF


# Scheduled never blocks its key, retry always does, dead does under hold


@pytest.mark.parametrize(
    ("before", "order", "blocks"),
    [
        ("scheduled", Order.HOLD, False),
        ("scheduled", Order.SKIP, False),
        ("retry", Order.HOLD, True),
        ("retry", Order.SKIP, True),
        ("dead", Order.HOLD, True),
        ("dead", Order.SKIP, False),
    ],
)
def test_what_blocks_a_key(room: Room, before: str, order: Order, blocks: bool) -> None:  # noqa: FBT001 - a table's column
    protocol = room.on(order=order)
    lanes = room.run(protocol.lanes.take("worker", 30))
    room.add(key="a", deliver_in=60 if before == "scheduled" else None)
    for one in room.run(protocol.lanes.read(lanes, 10, 30)).messages:
        ending = Dead(one, "CODE", "text") if before == "dead" else Retry(one, 60, "CODE", "text")
        room.run(protocol.settlements.settle([ending]))
    [behind] = room.add(key="a")
    assert positions(room.run(protocol.lanes.read(lanes, 10, 30)).messages) == ([] if blocks else [behind])


# Order under pipelining: waves


def test_sent_in_waves_a_failure_in_the_middle_leaves_nothing_out_of_order(room: Room) -> None:
    one, other = (key for key, _ in zip(keys_of_lane(3), "12", strict=False))
    first = room.add(4, key=one)
    second = room.add(4, key=other)
    lanes = room.take_lanes()
    left: dict[str | None, list[int]] = {one: [], other: []}
    failing = first[1]

    def key_of(claimed: Claimed) -> str | None:
        return claimed.message.key

    def pass_on(batch: list[Claimed]) -> None:
        failed: set[str | None] = set()
        for wave in waves(batch, key_of):
            for claimed in wave:
                if key_of(claimed) in failed:
                    continue
                if claimed.position == failing:
                    failed.add(key_of(claimed))
                    room.settle(Retry(claimed, 0, "CODE", "text"))
                else:
                    left[key_of(claimed)].append(claimed.position)
                    room.settle(Sent(claimed))

    pass_on(room.read_lanes(lanes).messages)
    assert left == {one: first[:1], other: second}
    assert room.read_lanes(lanes).messages == []  # the failed one holds the rest of its key
    failing = 0
    room.run(room.deliveries.lanes.promote(lanes))
    pass_on(room.read_lanes(lanes).messages)
    assert left == {one: first, other: second}


# Settling and claiming an expired lease


@pytest.mark.parametrize("first", ["settle", "claim"])
def test_an_expired_lease_is_settled_or_claimed_never_both_nor_neither(room: Room, first: str) -> None:
    [position] = room.add()
    late = room.claim("late")
    room.advance(31)
    taken: list[Claimed] = []
    if first == "claim":
        taken = room.claim("next")
    assert room.settle(*map(Sent, late)) == late
    if first == "settle":
        taken = room.claim("next")
    assert positions(taken) == [position]
    assert room.receipts() == {}
    assert room.settle(*map(Sent, taken)) == []
    assert room.receipts() == {position: "sent"}


# A lower position may commit after a higher one was claimed


@only_with_row_locks
@pytest.mark.parametrize("key", [None, "a"])
def test_what_commits_late_is_found_by_a_sweep(room: Room, neighbour: Store, key: str | None) -> None:
    lanes = room.take_lanes() if key else []

    def find(after: int) -> list[int]:
        if key is None:
            return positions(room.claim(after=after))
        return positions(room.read_lanes(lanes, after=dict.fromkeys(range(16), after)).messages)

    with neighbour.session() as execute:
        execute(Query("BEGIN"))
        add_with(room.names, execute, key=key)
        [higher] = room.add(key=key)
        assert find(after=0) == [higher]
        execute(Query("COMMIT"))
    assert find(after=higher) == []
    [lower, *_] = find(after=0)
    assert lower < higher


@only_on("psycopg")
def test_a_producer_that_waits_for_a_unique_key_commits_late_too(room: Room, neighbour: Store) -> None:
    """It holds a position and has no transaction id yet: no bound made of transaction ids would cover it."""
    with neighbour.session() as first, neighbour.session() as second, ThreadPoolExecutor(1) as thread:
        first(Query("BEGIN"))
        add_with(room.names, first, idempotency_key="order-7")
        waiting = thread.submit(add_with, room.names, second, idempotency_key="order-7")
        wait_until_blocked(first)
        [higher] = room.add()
        assert positions(room.claim()) == [higher]
        first(Query("ROLLBACK"))
        waiting.result()
    assert room.claim(after=higher) == []
    [late] = room.claim()
    assert late.position < higher


# Positions of deleted messages (SQLite needs AUTOINCREMENT for it)


def test_positions_are_never_used_again(room: Room) -> None:
    removed = room.add(3)
    room.settle(*map(Sent, room.claim()))
    room.advance(1)
    room.run(swept(SettledMessages(room.names, 0)))
    assert room.select("SELECT 1 FROM {outbox}") == []
    assert room.add()[0] > removed[-1]
