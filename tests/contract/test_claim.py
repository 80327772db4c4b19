"""Claims of messages without a key: a lease on each row."""

from __future__ import annotations

import time
from contextlib import closing
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pytest
from sqlalchemy import make_url

from postroom.admin import ALL
from postroom.message import Message
from postroom.rules.failures import Reason
from postroom.rules.lifecycle import ClaimLimits
from postroom.store.connections.stores import Store
from postroom.store.outbox.leases import Claim, Dead, GivenBack, Retry, Sent
from postroom.store.sql.steps import Query, run
from tests.contract.store_drivers import (
    DRIVERS,
    Driver,
    Room,
    lost_by,
    moment,
    only_on,
    only_with_row_locks,
    positions,
    single,
)

T = TypeVar("T")

if TYPE_CHECKING:
    from postroom.store.sql.steps import Steps
    from tests.conftest import FreshDatabase


def test_each_room_speaks_through_its_driver(room: Room, driver: Driver) -> None:
    store: Any = getattr(room.store, "_store", room.store)
    assert store.connector.url.drivername == driver.url_scheme


def test_every_database_is_reached_by_every_driver_that_a_store_can_use() -> None:
    assert {(driver.kind, driver.name) for driver in DRIVERS} == {
        ("sqlite", "sqlite3"),
        ("sqlite", "aiosqlite"),
        ("postgresql", "psycopg"),
        ("postgresql", "psycopg-async"),
        ("postgresql", "asyncpg"),
        ("mariadb", "pymysql"),
        ("mariadb", "asyncmy"),
    }


@only_on("aiomysql")
def test_aiomysql_does_what_asyncmy_does(room: Room) -> None:
    added = room.add(4)
    keyed = room.add(2, key="a")
    sent, failed, dead, back = room.claim()
    assert lost_by(room.run(room.deliveries.renewals.renew([sent, failed], [], 30))) == ([], [])
    failure = Retry(failed, 0, "CODE", "é %s")
    assert room.settle(Sent(sent, "offset 1"), failure, Dead(dead, "CODE", "text"), GivenBack(back)) == []
    assert positions(room.claim()) == [added[1], added[3]]
    lanes = room.take_lanes()
    first, second = room.read_lanes(lanes).messages
    assert room.settle(Retry(first, 0, "CODE", "text")) == []
    assert room.run(room.deliveries.lanes.promote(lanes)) == {first.lane: keyed[0]}
    assert room.settle(Sent(first), Sent(second)) == []
    assert room.admin().requeue(ALL, actor="operator").count == 1
    assert room.admin().status().sent == 3
    room.run(room.deliveries.lanes.release(lanes))


def test_L_2_the_oldest_come_first_and_in_order(room: Room) -> None:
    added = room.add(5)
    assert positions(room.claim(limit=3)) == added[:3]
    assert positions(room.claim(limit=3)) == added[3:]


def test_L_2_an_empty_outbox_gives_nothing(room: Room) -> None:
    assert room.run(room.deliveries.rows.claim("worker", 10, 30)) == Claim([], [], 0)


def test_L_2_what_others_hold_is_skipped(room: Room) -> None:
    added = room.add(4)
    first = room.claim("one", limit=2)
    second = room.claim("two")
    assert (positions(first), positions(second)) == (added[:2], added[2:])


@only_with_row_locks
def test_L_2_a_row_that_somebody_works_on_is_skipped_without_waiting(room: Room, neighbour: Store) -> None:
    added = room.add(3)
    with neighbour.session() as execute:
        execute(Query("BEGIN"))
        execute(
            Query(
                f"SELECT 1 FROM {room.tables['delivery']} WHERE state = 0 AND queue = 'default' AND lane = -1 "
                f"AND position = {added[0]} FOR UPDATE"
            )
        )
        assert positions(room.claim()) == added[1:]
        execute(Query("ROLLBACK"))
    assert positions(room.claim()) == added[:1]


def test_L_2_owner_and_lease_are_recorded_and_committed_at_once(room: Room, neighbour: Store) -> None:
    [position] = room.add()
    [claimed] = room.claim("worker 7", seconds=60)
    table = room.tables["delivery"]
    with neighbour.session() as execute:
        seen = execute(Query(f"SELECT owner, token FROM {table} WHERE leased_until > {room.dialect.now}")).rows
    assert [tuple(row) for row in seen] == [("worker 7", claimed.token)]
    assert room.delivery(position).claims == claimed.claims == 1


def test_L_3_the_token_changes_at_every_claim(room: Room) -> None:
    room.add()
    tokens = set()
    for _ in range(3):
        [claimed] = room.claim("worker")
        tokens.add(claimed.token)
        room.settle(GivenBack(claimed))
    assert len(tokens) == 3


def test_a_claim_uses_the_token_that_it_is_given(room: Room) -> None:
    [position] = room.add()
    [claimed] = room.claim(token=42)
    assert claimed.token == room.delivery(position).token == 42


def test_O_2_a_message_is_claimed_as_it_was_added(room: Room) -> None:
    message = Message.new(
        "orders.created",
        {"naïve": "✓", "order": 7},
        type="OrderCreated",
        aggregate_type="order",
        aggregate_id=7,
        headers={"tenant": "é", "percent": "100%"},
        idempotency_key="order-7",
        expires_at=moment(3600),
    )
    room.add_messages([message])
    [claimed] = room.claim()
    got = claimed.message
    assert got.created_at is not None
    assert got.expires_at is not None
    assert message.expires_at is not None
    assert abs((got.expires_at - message.expires_at).total_seconds()) <= 0.001
    assert abs((got.created_at - message.expires_at).total_seconds() + 3600) < 60
    assert msgspec.structs.replace(got, created_at=None, expires_at=message.expires_at, position=None) == message


@pytest.mark.parametrize("payload", [None, b"", b"\x00\xff", "text"])
def test_O_2_payloads_come_back_byte_by_byte(room: Room, payload: object) -> None:
    message = Message.new("raw", payload)
    room.add_messages([message])
    [claimed] = room.claim()
    assert claimed.message.payload == message.payload
    assert claimed.message.content_type == message.content_type


def test_L_4_an_expired_lease_can_be_claimed_though_nobody_freed_it(room: Room) -> None:
    added = room.add(2)
    room.claim("crashed", seconds=30)
    room.advance(20)
    assert room.claim("other") == []
    room.advance(11)
    again = room.claim("other")
    assert positions(again) == added
    assert [one.claims for one in again] == [2, 2]
    assert [one.attempts for one in again] == [0, 0]


def test_L_4_no_operation_passes_the_clients_clock_to_the_database(room: Room) -> None:
    room.add(3)
    room.add(3, key="a")
    d = room.deliveries
    [first, second, third] = room.run(no_moments(d.rows.claim("worker", 9, 30))).messages
    room.run(no_moments(d.renewals.renew([first], [], 30)))
    room.run(
        no_moments(d.settlements.settle([Sent(first), Retry(second, 30, "CODE", "text"), Dead(third, "CODE", "text")]))
    )
    lanes = room.run(no_moments(d.lanes.take("worker", 30)))
    [fourth, *_] = room.run(no_moments(d.lanes.read(lanes, 9, 30))).messages
    room.run(no_moments(d.settlements.settle([Retry(fourth, 0, "CODE", "text")])))
    assert room.run(no_moments(d.lanes.promote(lanes))) == {fourth.lane: fourth.position}


def no_moments(steps: Steps[T]) -> Steps[T]:
    """The steps; a parameter that is a moment, in whatever form, is an error."""
    result = None
    while True:
        try:
            query = steps.send(result)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # a generator's return value is untyped in StopIteration
        for value in query.params.values():
            assert not isinstance(value, date)
            assert not (isinstance(value, str) and value.startswith("20"))
            assert not (isinstance(value, float) and value > time.time() / 2)
        result = yield query


def test_a_claim_starts_behind_a_position(room: Room) -> None:
    added = room.add(4)
    assert positions(room.claim(after=added[1])) == added[2:]


def test_what_is_due_is_found_wherever_the_scan_starts(room: Room) -> None:
    [late] = room.add(deliver_in=60)
    ready = room.add(2)
    room.advance(61)
    assert positions(room.claim(after=ready[0])) == [late, ready[1]]


def test_a_claim_can_leave_out_what_is_due(room: Room) -> None:
    [late] = room.add(deliver_in=60)
    [ready] = room.add()
    room.advance(61)
    assert positions(room.claim(due=False)) == [ready]
    assert positions(room.claim()) == [late]


def test_the_limit_counts_due_and_ready_ones_together(room: Room) -> None:
    late = room.add(2, deliver_in=60)
    ready = room.add(3)
    room.advance(61)
    assert positions(room.claim(limit=3)) == [*late, ready[0]]
    assert positions(room.claim(limit=3)) == ready[1:]


def test_messages_with_a_key_are_not_claimed_one_by_one(room: Room) -> None:
    keyed = room.add(3, key="a")
    [plain] = room.add()
    room.add(key="a", deliver_in=60)
    room.advance(61)
    assert positions(room.claim()) == [plain]
    assert room.delivery(keyed[0]).token == 0


def test_queues_are_separate(room: Room) -> None:
    [here] = room.add()
    [there] = room.add(queue="handlers")
    [later] = room.add(queue="handlers", deliver_in=60)
    room.advance(61)
    assert positions(room.claim()) == [here]
    handlers = room.on("handlers")
    claimed = room.run(handlers.rows.claim("worker", 10, 30)).messages
    assert positions(claimed) == [there, later]
    assert room.settle(Sent(claimed[0])) == [claimed[0]]
    assert room.run(handlers.settlements.settle([Sent(claimed[0])])) == []


def test_L_7_a_message_claimed_too_often_is_sent_alone_and_then_goes_dead(room: Room) -> None:
    limits = ClaimLimits(alone_after=2, dead_after=4)
    before, poison, behind = room.add(3)
    protocol = room.on(limits=limits)

    def claim() -> Claim:
        return room.run(protocol.rows.claim("worker", 10, 30))

    for _ in range(2):
        assert positions(claim().messages) == [before, poison, behind]
        room.advance(31)
    # All three are suspects now; each is sent alone, and the innocent ones turn out to be so.
    claimed = claim().messages
    assert positions(claimed) == [before]
    assert [room.delivery(position).claims for position in (poison, behind)] == [2, 2]
    room.run(protocol.settlements.settle([Sent(claimed[0])]))
    for _ in range(2):
        assert positions(claim().messages) == [poison]
        room.advance(31)
    last = claim()
    assert positions(last.messages) == [behind]
    [dead] = last.settled
    assert isinstance(dead, Dead)
    assert (dead.claimed.position, dead.code) == (poison, Reason.LEASE_EXPIRED)
    assert last.found == 2
    row = room.delivery(poison)
    assert (row.state, row.error_code, row.attempts) == (3, Reason.LEASE_EXPIRED, 0)
    assert row.failed_at is not None


def test_L_7_a_settlement_ends_the_count_of_claims(room: Room) -> None:
    limits = ClaimLimits(alone_after=1, dead_after=2)
    protocol = room.on(limits=limits)
    [position] = room.add()
    for _ in range(4):
        [claimed] = room.run(protocol.rows.claim("worker", 10, 30)).messages
        assert claimed.claims == 1
        room.run(protocol.settlements.settle([Retry(claimed, 0, "CODE", "text")]))
        assert room.delivery(position).claims == 0


def test_a_delivery_without_a_message_goes_dead(room: Room) -> None:
    lost, good = room.add(2)
    room.select("DELETE FROM {outbox} WHERE position = :position", position=lost)
    claim = room.run(room.deliveries.rows.claim("worker", 10, 30))
    assert positions(claim.messages) == [good]
    [dead] = claim.settled
    assert isinstance(dead, Dead)
    assert dead.claimed.message.position == lost  # which the log tells
    row = room.delivery(lost)
    assert (row.state, row.error_code, row.token, row.attempts) == (3, Reason.MESSAGE_MISSING, 0, 0)


def test_an_unknown_outcome_is_resolved_by_its_token(room: Room) -> None:
    added = room.add(2)
    known = room.claim(limit=1, token=7)
    room.claim(token=8)
    room.run(room.deliveries.recovery.forget(8))
    row = room.delivery(added[1])
    assert (row.token, row.owner, row.claims, row.leased_until) == (0, "", 0, None)
    assert positions(room.claim("other")) == added[1:]
    assert room.settle(*map(Sent, known)) == []


@only_on("postgresql")
def test_nothing_is_claimed_that_a_crash_of_the_database_could_undo(
    driver: Driver, fresh_database: FreshDatabase
) -> None:
    """A claim's commit flushes what producers committed asynchronously, also where that is everybody's default."""
    url = fresh_database("postgresql")
    with closing(Store(url)) as store, store.session() as execute:
        execute(Query(f"ALTER DATABASE {make_url(url).database} SET synchronous_commit = off"))
    with closing(driver.open(url)) as opened:
        assert opened.run(single("SHOW synchronous_commit")).rows[0][0] == "on"


def test_two_claims_on_two_connections_share_nothing(room: Room, neighbour: Store) -> None:
    added = room.add(10)
    mine = room.claim("one", limit=4)
    with neighbour.session() as execute:
        theirs = run(room.deliveries.rows.claim("two", 100, 30), execute).messages
    assert positions(mine) + positions(theirs) == added
