from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.delivery.destination import PublishToBroker
from postroom.delivery.queue import EngineOptions, Queue
from postroom.delivery.queue_worker import QueueWorker
from postroom.message import Message
from postroom.rules.lifecycle import OutcomeCode
from postroom.store.connections.reconnecting import Outage
from postroom.store.connections.shared import ConnectionSet, SteppedAside
from postroom.store.outbox.leases import Claimed, GivenBack, Lane, Retry
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.settlements import Written
from postroom.store.outbox.workers import Workers
from postroom.store.sql.names import Names
from postroom.telemetry.events import Event, NotSettled


def claimed(position: int) -> Claimed:
    return Claimed(position, 3, 7, 0, 0, Message.new("t", position, key="k"))


def worker_on(connection: Any, told: list[Event]) -> QueueWorker:
    """With what it needs of a connection."""
    names = Names.of("sqlite", None, None)
    return QueueWorker(
        queue=Queue(name="default", destination=PublishToBroker(MemoryBroker()), hook=told.append),
        options=EngineOptions(worker="w"),
        store=QueueStore(names),
        workers=Workers(names),
        connections=ConnectionSet(connection, connection, (connection, connection), (connection, connection)),
        stopping=asyncio.Event(),
        moved_to=lambda _: None,
    )


class Settling:
    """A connection to a database that settles everything, and does something meanwhile."""

    connections = 1

    def __init__(self) -> None:
        self.meanwhile: Any = lambda: None

    async def attempt(self, steps: Any, _on: int | None = None) -> Written:
        steps.close()
        self.meanwhile()
        return Written([], {})


async def test_L_16_a_key_is_not_trusted_while_a_failure_on_it_waits_to_be_written() -> None:
    """The second was dropped when the first failed, and while that is written the first fails again."""
    connection = Settling()
    worker = worker_on(connection, [])
    failed_keys = worker._failed_keys
    worker.in_flight.lanes.hold(Lane(3, 7), 1e9)
    first, second = claimed(1), claimed(2)
    worker.in_flight.take([first, second], 1e9)

    def fail_again() -> None:
        failed_keys.fail("k", 1)
        worker.pending.add([Retry(first, 0.0, "NO", "no")])

    connection.meanwhile = fail_again
    failed_keys.fail("k", 1)
    worker.pending.add([GivenBack(second)])
    await worker.settler.flush()
    assert failed_keys.must_drop("k", 2, failed_keys.next_read()), "the first is not settled"
    connection.meanwhile = lambda: None
    await worker.settler.flush()
    assert not failed_keys.must_drop("k", 2, failed_keys.next_read())


async def test_what_stepped_aside_is_written_whole_on_the_spare_connection() -> None:
    """Bisected, each part would wait for the lock in its turn, and a lease could end meanwhile."""
    connection = Settling()
    worker = worker_on(connection, [])
    worker.in_flight.lanes.hold(Lane(3, 7), 1e9)
    both = [claimed(1), claimed(2)]
    worker.in_flight.take(both, 1e9)
    writes = 0

    def step_aside_once() -> None:
        nonlocal writes
        writes += 1
        if writes == 1:
            raise SteppedAside("it waits for a lock")

    connection.meanwhile = step_aside_once
    worker.pending.add([Retry(one, 0.0, "NO", "no") for one in both])
    await worker.settler.flush()
    assert (writes, len(worker.in_flight)) == (2, 0)


class Refusing:
    """A connection to a database that answers, but will not settle."""

    connections = 1

    def __init__(self, why: Exception) -> None:
        self._why = why

    async def attempt(self, steps: Any, _on: int | None = None) -> Written:
        steps.close()
        raise Outage("not settled") from self._why

    async def answers(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("why", "outcome"),
    [
        (ValueError("no"), OutcomeCode.DB_ERROR),
        (TimeoutError("late"), OutcomeCode.DB_TIMEOUT),
        (sqlite3.OperationalError("database is locked"), OutcomeCode.DB_TIMEOUT),
    ],
    ids=["refused", "hangs", "locked"],
)
async def test_L_13_what_the_database_refuses_is_told_from_what_it_does_not_come_to(
    why: Exception, outcome: OutcomeCode
) -> None:
    told: list[Event] = []
    worker = worker_on(Refusing(why), told)
    one = claimed(1)
    worker.in_flight.lanes.hold(Lane(3, 7), 1e9)
    worker.in_flight.take([one], 1e9)
    worker.pending.add([Retry(one, 0.0, "NO", "no")])
    await worker.settler.flush()
    assert [event.outcome for event in told if isinstance(event, NotSettled)] == [outcome]
