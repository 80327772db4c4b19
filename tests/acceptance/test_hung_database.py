"""A database that hangs: it refuses nothing and answers nothing, and what was under way stays so."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Consumer, Message, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.compose import databases
from postroom.errors import DatabaseUnreachable
from postroom.telemetry.events import Event, Reachability, all_of
from postroom.telemetry.health import Health
from tests.acceptance.probing import started, wait_until
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.databases import need
from tests.services.mariadb import MariaDB
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services.service import DatabaseService

DRIVERS: dict[type[DatabaseService], list[str]] = {
    PostgreSQL: ["postgresql+asyncpg", "postgresql+psycopg"],
    MariaDB: ["mysql+asyncmy", "mysql+aiomysql"],
}
AWAY = ["the database cannot be reached"]
SOON = 40
"""Seconds, on a busy machine; it takes ten. Without limits of its own, a relay notices after ninety."""
COUNT = 100


@pytest.fixture(scope="module", params=[PostgreSQL, MariaDB], ids=["postgresql", "mariadb"])
def own_server(request: pytest.FixtureRequest) -> Iterator[DatabaseService]:
    """A server that tests may halt."""
    need(request.param)
    with closing(request.param()) as server:
        server.start()
        yield server


@pytest.fixture
def server(own_server: DatabaseService) -> Iterator[DatabaseService]:
    """The server, with an empty database."""
    own_server.create_database("shop")
    yield own_server
    own_server.drop_database("shop")


def urls(server: DatabaseService) -> list[str]:
    """The database's, for each driver that relays may connect with."""
    return [f"{driver}:{server.url('shop').partition(':')[2]}" for driver in DRIVERS[type(server)]]


def some(topic: str = "orders") -> list[Message]:
    return [Message.new(topic, {"n": n}, key=f"k{n % 7}" if n % 2 else None) for n in range(COUNT)]


def test_V_4_while_the_database_hangs_relays_live_are_not_ready_and_go_on_afterwards(
    server: DatabaseService, tmp_path: Path
) -> None:
    with closing(Service(server.url("shop"))) as service, ExitStack() as stack:
        relays = [
            stack.enter_context(started(tmp_path, "relay", "--database", url, "--broker", "stdout:"))
            for url in urls(server)
        ]
        service.commit(*some())
        wait_until(lambda: service.status().sent == COUNT)
        service.commit(*some())
        with server.hung():
            since = time.monotonic()
            for relay in relays:
                wait_until(lambda: relay.problems() == AWAY, relay.log)  # noqa: B023 - called at once
                assert time.monotonic() - since < SOON
                assert relay.get("/livez")[0] == 200
                assert relay.value("outbox_database_up") == 0
        for relay in relays:
            wait_until(lambda: relay.problems() == [], relay.log)  # noqa: B023 - as above
        wait_until(lambda: service.status().sent == 2 * COUNT)
        assert [relay.stop() for relay in relays] == [0, 0]
        sent = [line["id"] for relay in relays for line in logged(relay.log()) if "topic" in line and "id" in line]
        assert len(set(sent)) == len(sent) == 2 * COUNT
        for relay in relays:
            told = [line.get("event") for line in logged(relay.log())]
            assert (told.count("database_unreachable"), told.count("database_reachable")) == (1, 1)


def logged(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


async def test_C_5_messages_that_come_while_the_database_hangs_are_handled_afterwards(server: DatabaseService) -> None:
    said: list[bool] = []

    def listen(event: Event) -> None:
        if isinstance(event, Reachability):
            said.append(event.reachable)

    broker, health, handled = MemoryBroker(), Health(), list[str]()
    with closing(Service(server.url("shop"))):
        consumer = Consumer("billing", broker, database=urls(server)[0], hook=all_of(listen, health))

        @consumer.handler("sync")
        def bill(connection: object, message: Any) -> None:
            assert connection
            handled.append(message.id)

        @consumer.handler("async")
        async def send(connection: object, message: Any) -> None:
            assert connection
            handled.append(message.id)

        async with consumer:
            await broker.publish([*some("sync"), *some("async")], 5)
            await wait_for(lambda: len(handled) == 2 * COUNT)
            with server.hung():
                await broker.publish([*some("sync"), *some("async")], 5)
                await wait_for(lambda: health.not_ready() == AWAY)
                assert health.not_live() == []
            await wait_for(lambda: len(set(handled)) == 4 * COUNT and not health.not_ready())
            await wait_for(lambda: consumer.report.handled == 4 * COUNT)
    assert said == [False, True]
    assert (consumer.report.parked, consumer.report.dead) == (0, 0)


async def test_R_4_a_relay_stops_while_the_database_hangs(server: DatabaseService) -> None:
    brokers = [MemoryBroker() for _ in urls(server)]
    relays = [Relay(url, broker) for url, broker in zip(urls(server), brokers, strict=True)]
    with closing(Service(server.url("shop"))) as service:
        running = [asyncio.create_task(relay.run()) for relay in relays]
        await wait_for(lambda: len(service.status().workers) == len(relays))
        service.commit(*some())
        await wait_for(lambda: sum(len(broker.messages) for broker in brokers) == COUNT)
        with server.hung():
            for relay in relays:
                relay.stop()
            await asyncio.wait_for(asyncio.gather(*running), 30)


async def test_R_5_a_relay_does_not_start_with_a_database_that_hangs(
    server: DatabaseService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "STARTING", 0.5)
    with closing(Service(server.url("shop"))), server.hung():
        for url in urls(server):
            with pytest.raises(DatabaseUnreachable, match=r"cannot be reached: no answer within 0\.5 s"):
                await asyncio.wait_for(Relay(url, MemoryBroker()).run_once(), 20)
