"""What the tests of traps share: transactions that stay open, and sessions that wait for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from postroom.message import Message
from postroom.store.outbox.leases import Sent
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.steps import Query, Result, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.outbox.leases import Claimed
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps
    from tests.contract.store_drivers import Room

    Execute = Callable[[Query], Result]


def until_commit(steps: Steps[Any], execute: Execute) -> Query:
    """Run an operation that makes its own transaction up to its COMMIT, which is returned and not run."""
    query = next(steps)
    while query.text != "COMMIT":
        query = steps.send(execute(query))
    return query


def uncommitted_settle(room: Room, claimed: Claimed, execute: Execute) -> None:
    """Settle a message as sent, in a transaction that stays open."""
    steps = room.deliveries.settlements.settle([Sent(claimed)])
    if room.driver.kind == "postgresql":  # where it is one statement
        execute(Query("BEGIN"))
        run(steps, execute)
    else:
        until_commit(steps, execute)


def add_with(names: Names, execute: Execute, **fields: Any) -> None:
    """Record a message on a connection of the test's own, in the transaction that is open on it."""
    run(WRITERS[names.dialect](names).add([Message.new("meanwhile", {"number": 1}, **fields)]), execute)


def wait_until_blocked(execute: Execute) -> None:
    """Return when another session of this PostgreSQL database waits for a lock."""
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    deadline = time.monotonic() + 30
    while not execute(Query(waiting)).rows:
        assert time.monotonic() < deadline, "nobody waits"
        # Inside a transaction the statistics would stay as they were when they were first read.
        execute(Query("SELECT pg_stat_clear_snapshot()"))
