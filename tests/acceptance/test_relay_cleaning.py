"""L-15: a relay removes what is old and done by itself, where it was asked to."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from postroom import Inbox, Message, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.store.connections.stores import Store
from postroom.telemetry.events import Cleaned, Event
from postroom.telemetry.logs import structured
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.contract import clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

DAY = 86_400


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def service(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(request.param))) as service:
        yield service


def pass_days(service: Service, days: int) -> None:
    with closing(Store(service.url)) as store:
        clock.advance(store, days * DAY)


async def test_L_15_a_relay_cleans_up_when_it_starts_and_again_and_again(service: Service) -> None:
    old, waiting = Message.new("orders", 1), Message.new("unknown", 2)
    service.commit(old, waiting)
    await Relay(service.url, send).run_once()
    with service.engine.begin() as connection:
        assert Inbox("billing").first_time(connection, "m-1")
    pass_days(service, 8)
    service.commit(Message.new("orders", 3))
    events: list[Event] = []
    async with Relay(service.url, send, cleanup_every_sec=1, hook=events.append):
        await wait_for(lambda: Cleaned(1, 1, 0) in events)
        await wait_for(lambda: service.status().sent == 1)
        await asyncio.to_thread(pass_days, service, 8)  # the relay's own transactions must be able to end
        await wait_for(lambda: Cleaned(1, 0, 0) in events)
    assert service.rows(f"SELECT topic FROM {service.table('outbox')}") == [("unknown",)]  # not sent: it stays


def send(message: Message) -> None:
    if message.topic == "unknown":
        raise ValueError(message.topic)


async def test_L_15_unless_it_is_asked_to_it_removes_nothing(service: Service) -> None:
    service.commit(Message.new("orders", 1))
    await Relay(service.url, MemoryBroker()).run_once()
    pass_days(service, 1000)
    events: list[Event] = []
    await Relay(service.url, MemoryBroker(), hook=events.append).run_once()
    assert service.status().sent == 1
    assert not [event for event in events if isinstance(event, Cleaned)]


def test_L_15_the_log_tells() -> None:
    log = io.StringIO()
    structured(log)(Cleaned(3, 2, 1))
    line = json.loads(log.getvalue())
    assert (line["event"], line["messages"], line["marks"], line["entries"]) == ("cleaned", 3, 2, 1)
