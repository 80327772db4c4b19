"""Events in Protobuf: generated classes and plain ones, and what cannot be written or read."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import duration_pb2, struct_pb2, wrappers_pb2

from postroom import Outbox, event, upcaster
from postroom.errors import InvalidSetting, PayloadNotDecodable, PayloadNotEncodable
from postroom.events import read
from postroom.formats import ProtobufSerializer, SchemaRegistry, Subject
from postroom.formats.protobuf_schemas import indexes_of, proto_text
from postroom.formats.protobuf_values import fill, to_plain
from postroom.incoming import Incoming
from postroom.rules.wire_format import framed
from tests.services.schema_registry import Registry, running
from tests.unit.formats import order_files as files

if TYPE_CHECKING:
    from collections.abc import Iterator

AT = dt.datetime(2026, 11, 18, 5, 30, tzinfo=dt.UTC)


@dataclass
class Line:
    article: str


@dataclass
class Address:
    city: str


@dataclass
class Order:
    order_id: int
    reference: uuid.UUID
    lines: list[Line]
    prices: dict[str, int]
    state: str
    at: dt.datetime
    to: Address
    tags: list[str] = field(default_factory=list)
    note: str | None = None
    card: str | None = None
    voucher: bytes | None = None


@pytest.fixture
def server() -> Iterator[Registry]:
    with running() as registry:
        yield registry


def received(
    payload: bytes | None, content_type: str = "application/vnd.confluent.protobuf", **headers: str
) -> Incoming:
    return Incoming(id="1", topic="orders", payload=payload, content_type=content_type, headers=headers)


def declared(kind: type[Any], serializer: ProtobufSerializer, **options: Any) -> type[Any]:
    return event("orders.created", serializer=serializer, **options)(type(kind.__name__, (kind,), {}))


def test_a_plain_class_travels_as_its_message(server: Registry) -> None:
    kind = declared(Order, ProtobufSerializer(SchemaRegistry(server.url), files.OrderCreated), key="order_id")
    one = kind(7, uuid.UUID(int=7), [Line("pen")], {"b": 2, "a": 1}, "PAID", AT, Address("Ulm"), ["new"], voucher=b"x")
    message = Outbox().message_of(one)
    assert (message.key, message.content_type) == ("7", "application/vnd.confluent.protobuf")
    assert message.payload is not None
    assert message.payload[:7] == b"\x00\x00\x00\x00\x02\x02\x02"  # schema 2, the second message of its file
    assert read(received(message.payload), kind) == one
    assert list(server.subjects) == ["postroom/tests/common.proto", "orders.created-value"]
    [reference] = server.schemas[1]["references"]
    assert reference == {"name": "postroom/tests/common.proto", "subject": "postroom/tests/common.proto", "version": 1}


def test_a_generated_class_is_an_event_itself(server: Registry) -> None:
    serializer = ProtobufSerializer(SchemaRegistry(server.url), subject=Subject.RECORD)
    kind = event("orders.lost", key="order_id", version=2, serializer=serializer)(files.OrderLost)
    upcaster(kind, since=1)(lambda data: {"order_id": data["order_id"] + 1})
    message = Outbox().message_of(kind(order_id=7))
    assert (message.type, message.key) == ("OrderLost", "7")
    assert "postroom.tests.shop.OrderLost" in server.subjects
    server.status = 500  # reading needs no registry
    version = {"event-version": "2"}
    assert read(received(message.payload, **version), kind) == kind(order_id=7)
    assert read(received(message.payload), kind) == kind(order_id=8)
    assert read(received(b'{"orderId": "7"}', "application/json", **version), kind) == kind(order_id=7)
    with pytest.raises(PayloadNotDecodable, match="not OrderLost in JSON"):
        read(received(b'{"orderId": "x"}', "application/json", **version), kind)
    with pytest.raises(PayloadNotDecodable, match=r"no OrderLost \(AttributeError\)"):
        serializer.from_plain({"other": 1}, kind)


def test_what_does_not_fit_is_refused_without_its_values(server: Registry) -> None:
    serializer = ProtobufSerializer(SchemaRegistry(server.url), files.OrderCreated)
    kind = declared(Address, serializer)
    for wrong in (
        {"other": "secret"},
        {"order_id": "secret"},
        {"state": "secret"},
        {"lines": ["secret"]},
        {"at": "secret"},
        {"reference": AT.date(), "tags": [b"secret\xff"]},
        "secret",
        object(),
    ):
        with pytest.raises(PayloadNotEncodable) as raised:
            serializer.encode(wrong, kind)
        assert "secret" not in str(raised.value)
    for payload in (None, b"", b"{}", framed(1, b""), framed(1, b"\x00\xff\xff"), framed(1, b"\xff" * 9)):
        with pytest.raises(PayloadNotDecodable):
            serializer.decode(payload, kind)
    late = files.OrderCreated()
    late.at.seconds = 2**60
    with pytest.raises(PayloadNotDecodable, match=r"values that Python cannot hold \(ValueError\)"):
        serializer.decode(framed(1, b"\x00" + late.SerializeToString()), kind)
    with pytest.raises(PayloadNotDecodable, match="missing required field `city`"):
        serializer.decode(framed(1, b"\x00"), kind)
    with pytest.raises(InvalidSetting, match="Address has no Protobuf message"):
        Outbox(serializer=ProtobufSerializer(SchemaRegistry(server.url))).prepare(event("t")(Address))
    with pytest.raises(InvalidSetting, match="is no class that protoc generated"):
        ProtobufSerializer(SchemaRegistry(server.url), Order)  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidSetting, match="Line is no event"):
        serializer.prepare(Line)


def test_well_known_types_are_plain_values() -> None:
    for message, value in (
        (duration_pb2.Duration(), dt.timedelta(seconds=90)),
        (wrappers_pb2.Int64Value(), 7),
        (struct_pb2.Struct(), {"a": [1.0, None, {"b": "c"}]}),
    ):
        fill(message, value)
        assert to_plain(message) == value
    assert to_plain(files.OrderCreated(state=9))["state"] == 9  # of a newer sender


def test_the_file_is_written_out_and_its_types_are_found() -> None:
    descriptor = files.OrderCreated.DESCRIPTOR
    assert indexes_of(descriptor.nested_types_by_name["Line"]) == [1, 0]
    assert proto_text(files.FILE) == (
        """syntax = "proto3";
package postroom.tests.shop;
import "postroom/tests/common.proto";
import "google/protobuf/timestamp.proto";
message OrderLost {
  int64 order_id = 1;
}
message OrderCreated {
  message Line {
    string article = 1;
  }
  int64 order_id = 1;
  string reference = 2;
  repeated .postroom.tests.shop.OrderCreated.Line lines = 3;
  map<string, int64> prices = 4;
  .postroom.tests.shop.State state = 5;
  .google.protobuf.Timestamp at = 6;
  .postroom.tests.shop.Address to = 7;
  optional string note = 8;
  repeated string tags = 9;
  oneof payment {
    string card = 10;
    bytes voucher = 11;
  }
}
enum State {
  UNKNOWN = 0;
  PAID = 1;
}
"""
    )
