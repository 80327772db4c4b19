"""The trap of MariaDB: under its default REPEATABLE READ, a claim's gap locks block producers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from postroom.store.admin.dead_letters import DeadLetters
from postroom.store.admin.retention import swept
from postroom.store.admin.settled_messages import SettledMessages
from postroom.store.outbox.leases import Claimed, Dead, Retry, Sent
from postroom.store.sql.db_errors import code_of
from postroom.store.sql.steps import Query
from tests.contract.store_drivers import Room, only_on, single
from tests.contract.trap_support import add_with, until_commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.steps import Steps

HOLDING_OPERATIONS: dict[str, Callable[[Room, list[Claimed]], Steps[Any]]] = {
    "claim": lambda room, _: room.deliveries.rows.claim("worker", 100, 30, due=False),
    "claim of due ones": lambda room, _: room.deliveries.rows.claim("worker", 100, 30),
    "settle": lambda room, claimed: room.deliveries.settlements.settle([Sent(one) for one in claimed]),
    "renew": lambda room, claimed: room.deliveries.renewals.renew(claimed, [], 30),
    "read": lambda room, _: room.deliveries.lanes.read(room.take_lanes(), 100, 30),
    "promote": lambda room, _: room.deliveries.lanes.promote(room.take_lanes()),
    "requeue": lambda room, _: DeadLetters(room.names).requeue(),
    "retention": lambda room, _: swept(SettledMessages(room.names, 0)),
}


def insert_meanwhile(room: Room, operation: str, isolation: str) -> None:
    """Let a producer in REPEATABLE READ add messages while an operation's transaction is open."""
    claimed = messages_in_every_state(room)
    with room.producer.session() as worker, room.producer.session() as producer:
        worker(Query(f"SET SESSION TRANSACTION ISOLATION LEVEL {isolation}"))
        producer(Query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        producer(Query("SET SESSION innodb_lock_wait_timeout = 0"))
        commit = until_commit(HOLDING_OPERATIONS[operation](room, claimed), worker)
        try:
            producer(Query("START TRANSACTION"))
            for fields in ({}, {"key": "a"}, {"key": "b"}):
                add_with(room.names, producer, **fields)
            producer(Query("COMMIT"))
        finally:
            worker(commit)
            producer(Query("ROLLBACK"))
            for session in (worker, producer):
                session(Query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"))
            producer(Query("SET SESSION innodb_lock_wait_timeout = DEFAULT"))


def messages_in_every_state(room: Room) -> list[Claimed]:
    """Returns some that are leased."""
    room.add(6)
    room.add(2, deliver_in=0)
    room.add(3, key="a")
    sent, retried, dead, *leased = room.claim(limit=6)
    room.settle(Sent(sent), Retry(retried, 0, "CODE", "text"), Dead(dead, "CODE", "text"))
    return leased


@only_on("pymysql")
@pytest.mark.parametrize("operation", HOLDING_OPERATIONS)
def test_no_operation_blocks_a_producer(room: Room, operation: str) -> None:
    insert_meanwhile(room, operation, "READ COMMITTED")
    assert room.select("SELECT count(*) FROM {outbox} WHERE topic = 'meanwhile'") == [(3,)]


@only_on("pymysql")
def test_under_repeatable_read_the_gap_lock_of_a_claim_blocks_a_producer(room: Room) -> None:
    """The trap itself, so that nobody builds it again."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the code below tells which
        insert_meanwhile(room, "claim", "REPEATABLE READ")
    assert code_of(caught.value) == 1205


@only_on("mariadb")
def test_the_stores_own_sessions_are_in_read_committed(room: Room) -> None:
    assert room.run(single("SELECT @@tx_isolation")).rows[0][0] == "READ-COMMITTED"


@only_on("postgresql")
def test_the_stores_own_sessions_are_in_read_committed_on_postgresql(room: Room) -> None:
    assert room.run(single("SHOW transaction_isolation")).rows[0][0] == "read committed"
