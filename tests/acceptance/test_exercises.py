"""The exercises of the documents, from end to end."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, text

from postroom import Consumer, Message, Relay
from postroom.brokers.memory import MemoryBroker
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.incoming import Incoming
    from tests.conftest import FreshDatabase


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def service(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(request.param))) as service:
        service.execute("CREATE TABLE bill (number INTEGER)")
        yield service


async def test_E_3_an_exception_in_mid_send_leads_to_a_second_delivery_and_the_inbox_stops_the_second_effect(
    service: Service,
) -> None:
    broker = MemoryBroker()
    failures = iter([True])

    async def send(message: Message) -> None:
        await broker.publish([message], 1)
        if message.json()["number"] == 1 and next(failures, False):
            raise RuntimeError("in the middle of it")

    service.commit(*(Message.new("orders.created", {"number": number}, key=number) for number in range(3)))
    relay = Relay(service.url, send, backoff_sec=[0])
    report = await relay.run_until_empty()
    assert (report.sent, report.retried) == (3, 1)
    assert sorted(message.json()["number"] for message in broker.messages) == [0, 1, 1, 2]

    consumer = Consumer("billing", broker, database=service.url)

    @consumer.handler("orders.created")
    def bill(connection: Connection, message: Incoming) -> None:
        connection.execute(text("INSERT INTO bill VALUES (:number)"), message.json())

    handled = await consumer.run_once()
    assert (handled.handled, handled.duplicates) == (3, 1)
    assert service.rows("SELECT number FROM bill ORDER BY number") == [(0,), (1,), (2,)]
