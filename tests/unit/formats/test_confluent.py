"""Confluent's own serializers and ours read each other, over the same registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirAvro
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as TheirProtobuf
from confluent_kafka.serialization import MessageField, SerializationContext

from postroom import Outbox, event
from postroom.formats import AvroSerializer, ProtobufSerializer, SchemaRegistry
from tests.services.schema_registry import Registry, running
from tests.unit.formats import order_files as files

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "orders.created"
HERE = SerializationContext(TOPIC, MessageField.VALUE)
SCHEMA = (
    '{"type":"record","name":"Order","namespace":"shop","fields":['
    '{"name":"order_id","type":"long"},{"name":"note","type":["null","string"],"default":null}]}'
)


@dataclass
class Order:
    order_id: int
    note: str | None = None


@pytest.fixture
def server() -> Iterator[Registry]:
    with running() as registry:
        yield registry


def test_avro_is_the_same_byte_for_byte(server: Registry) -> None:
    ours = AvroSerializer(SchemaRegistry(server.url), SCHEMA)
    kind: Any = event(TOPIC, serializer=ours)(type("Order", (Order,), {}))
    theirs: Any = TheirAvro(SchemaRegistryClient({"url": server.url}), SCHEMA)
    payload = Outbox().message_of(kind(7, "new")).payload
    assert theirs({"order_id": 7, "note": "new"}, HERE) == payload
    assert server.subjects == {f"{TOPIC}-value": [1]}
    read: Any = AvroDeserializer(SchemaRegistryClient({"url": server.url}), SCHEMA)
    assert read(payload, HERE) == {"order_id": 7, "note": "new"}
    assert ours.decode(theirs({"order_id": 8}, HERE), kind) == kind(8)


@pytest.mark.parametrize("message", [files.OrderLost(order_id=7), files.OrderCreated(order_id=7, tags=["a"])])
def test_protobuf_is_the_same_byte_for_byte(server: Registry, message: Any) -> None:
    generated = type(message)
    ours = ProtobufSerializer(SchemaRegistry(server.url))
    kind: Any = event(TOPIC, serializer=ours)(generated)
    theirs: Any = TheirProtobuf(generated, SchemaRegistryClient({"url": server.url}), {"use.deprecated.format": False})
    written = theirs(message, HERE)
    assert Outbox().message_of(message).payload == written
    assert ours.decode(written, kind) == message
    read: Any = ProtobufDeserializer(generated, {"use.deprecated.format": False})
    assert read(ours.encode(message, kind), HERE) == message
    assert server.subjects[f"{TOPIC}-value"] == [2]  # one schema for both, behind the file that it imports
