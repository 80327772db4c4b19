"""Events in Avro and Protobuf from `publish` to the handler, with a schema registry that may be away."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.api_pb2 import Mixin

from postroom import Consumer, Message, Outbox, Relay, event
from postroom.brokers.memory import MemoryBroker
from postroom.consumer import handler_attempts
from postroom.formats import AvroSerializer, ProtobufSerializer, SchemaRegistry
from postroom.rules.wire_format import framed
from tests.acceptance.service import Service
from tests.services.databases import KINDS
from tests.services.schema_registry import Registry, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase


@dataclass
class Placed:
    order_id: int


@dataclass
class Noted:
    name: str
    root: str = ""


@dataclass
class Plain:
    order_id: int


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


AVRO = "application/vnd.confluent.avro"


@pytest.fixture
def server() -> Iterator[Registry]:
    with running() as registry:
        yield registry


@pytest.mark.parametrize("kind", KINDS)
async def test_formats_reach_their_handlers_and_an_absent_registry_delays_only_what_needs_it(
    kind: str, ready_database: FreshDatabase, server: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_attempts, "REGISTRY_DELAY", 0.01)
    producer, clock = SchemaRegistry(server.url), Clock()
    placed: Any = event("orders.placed", serializer=AvroSerializer(producer))(type("Placed", (Placed,), {}))
    noted: Any = event("orders.noted", serializer=ProtobufSerializer(producer, Mixin))(type("Noted", (Noted,), {}))
    plain: Any = event("orders.plain")(type("Plain", (Plain,), {}))
    broker, outbox = MemoryBroker(), Outbox()
    outbox.prepare(placed, noted, plain)
    with closing(Service(ready_database(kind))) as service:
        with service.engine.begin() as connection:
            for one in (placed(1), noted("new"), plain(2)):
                outbox.publish(connection, one)
            good = outbox.message_of(placed(1)).payload or b""
            for payload in (framed(999, b"\x02"), good + b"\x00"):
                message = Message.new("orders.placed", payload, type="Placed", content_type=AVRO)
                outbox.add_many(connection, [message])
        await Relay(service.url, broker).run_until_empty()
        registry = SchemaRegistry(server.url, pause=10, clock=clock)
        reading: Any = event("orders.placed", type="Placed", serializer=AvroSerializer(registry))(
            type("Placed", (Placed,), {})
        )
        consumer = Consumer("billing", broker, database=service.url)
        got: list[object] = []

        def place(one: object) -> None:
            got.append(one)

        async def note(one: object) -> None:
            got.append(one)

        def take(one: object) -> None:
            got.append(one)

        for function, its in ((place, reading), (note, noted), (take, plain)):
            function.__annotations__ = {"one": its}
            consumer.handler(attempts=1)(function)
        server.status = 503
        await consumer.run_once()
        assert sorted(map(repr, got)) == sorted(map(repr, [noted("new"), plain(2)]))
        assert service.dead() == []
        assert server.requests[-2:] == ["POST /subjects/orders.noted-value/versions", "GET /schemas/ids/1"]
        server.status = None
        clock.now = 10
        got.clear()
        asked = len(server.requests)
        async with asyncio.timeout(30):
            while len(got) + len(service.dead()) < 3:
                await consumer.run_once()  # what is parked, as soon as it is due
        assert got == [reading(1)]
        assert sorted(server.requests[asked:]) == ["GET /schemas/ids/1", "GET /schemas/ids/999"]
        letters = {letter.error_code: letter.error_message for letter in service.dead()}
        assert letters.keys() == {"UNKNOWN_SCHEMA", "UNDECODABLE_PAYLOAD"}
        assert "bytes are left over" in letters["UNDECODABLE_PAYLOAD"]
        assert "no schema 999" in letters["UNKNOWN_SCHEMA"]
