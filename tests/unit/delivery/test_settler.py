from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.delivery.options import Options
from postroom.delivery.queue_state import Office
from postroom.delivery.settler import Settler
from postroom.message import Message
from postroom.rules.lifecycle import Outcome
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.deliveries import Deliveries
from postroom.store.outbox.leases import Claimed, GivenBack, Lane, Retry
from postroom.store.outbox.settling import Written
from postroom.store.sql.names import Names
from postroom.telemetry.events import Event, NotSettled


def claimed(position: int) -> Claimed:
    return Claimed(position, 3, 7, 0, 0, Message.new("t", position, key="k"))


class ReconnectingConnection:
    """A line to a database that settles everything, and does something meanwhile."""

    connections = 1

    def __init__(self, meanwhile: Any) -> None:
        self._meanwhile = meanwhile

    async def attempt(self, steps: Any, _on: int | None = None) -> Written:
        steps.close()
        self._meanwhile()
        return Written([], {})


async def test_L_16_a_key_is_not_trusted_while_a_failure_on_it_waits_to_be_written() -> None:
    """The second was dropped when the first failed, and while that is written the first fails again."""
    office = Office(Options("w"), MemoryBroker(), Deliveries(Names.of("sqlite", None, None)), lambda _: None)
    office.flight.hold_lane(Lane(3, 7), 1e9)
    first, second = claimed(1), claimed(2)
    office.flight.take_off([first, second], 1e9)

    def fail_again() -> None:
        office.failed_keys.fail("k", 1)
        office.settle([Retry(first, 0.0, "NO", "no")])

    settler = Settler(office, ReconnectingConnection(fail_again))  # type: ignore[arg-type]  # what it needs of a line
    office.failed_keys.fail("k", 1)
    office.settle([GivenBack(second)])
    await settler.flush()
    assert office.failed_keys.must_drop("k", 2, office.failed_keys.next_read()), "the first is not settled"
    settler = Settler(office, ReconnectingConnection(lambda: None))  # type: ignore[arg-type]
    await settler.flush()
    assert not office.failed_keys.must_drop("k", 2, office.failed_keys.next_read())


class Refusing:
    """A line to a database that answers, but will not settle."""

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
        (ValueError("no"), Outcome.DB_ERROR),
        (TimeoutError("late"), Outcome.DB_TIMEOUT),
        (sqlite3.OperationalError("database is locked"), Outcome.DB_TIMEOUT),
    ],
    ids=["refused", "hangs", "locked"],
)
async def test_L_13_what_the_database_refuses_is_told_from_what_it_does_not_come_to(
    why: Exception, outcome: Outcome
) -> None:
    told: list[Event] = []
    office = Office(Options("w"), MemoryBroker(), Deliveries(Names.of("sqlite", None, None)), told.append)
    one = claimed(1)
    office.flight.hold_lane(Lane(3, 7), 1e9)
    office.flight.take_off([one], 1e9)
    office.settle([Retry(one, 0.0, "NO", "no")])
    await Settler(office, Refusing(why)).flush()  # type: ignore[arg-type]  # what it needs of a line
    assert [event.outcome for event in told if isinstance(event, NotSettled)] == [outcome]
