"""Events in Avro: schemas of classes, evolution, and what cannot be written or read."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from dataclasses import dataclass, field
from decimal import Decimal  # noqa: TC003 - annotations are resolved
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from pydantic import BaseModel

from postroom import Outbox, RetryPolicy, event, upcaster
from postroom.consumer.handler_attempts import AttemptFailed, HandlerAttempts
from postroom.consumer.handlers import handler_of
from postroom.errors import (
    InvalidSetting,
    PayloadNotDecodable,
    PayloadNotEncodable,
    PayloadTooLarge,
    RegistryUnavailable,
    UnknownSchema,
)
from postroom.events import read
from postroom.formats import AvroSerializer, SchemaRegistry, Serializer, Subject
from postroom.formats.avro_schemas import schema_of
from postroom.incoming import Incoming
from postroom.rules.failures import DEFAULT_CLASSIFIER
from postroom.rules.wire_format import framed, unframed
from postroom.testing import RecordingOutbox
from tests.services.schema_registry import Registry, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom import Message
    from postroom.telemetry.events import Event

AT = dt.datetime(2026, 11, 18, 5, 30, 0, 250, tzinfo=dt.UTC)


class State(enum.Enum):
    OPEN = "OPEN"
    PAID = "PAID"


@dataclass
class Line:
    article: str
    count: int = 1
    part_of: Line | None = None


@dataclass
class Order:
    order_id: int
    reference: uuid.UUID
    at: dt.datetime
    day: dt.date
    lines: list[Line]
    prices: dict[str, float]
    data: bytes
    state: State = State.OPEN
    note: str | None = None
    hint: str | None = "none"
    tags: list[str] = field(default_factory=list)
    made: uuid.UUID = field(default_factory=uuid.uuid4)


class OrderStruct(msgspec.Struct):
    order_id: int
    lines: list[Line]
    note: str | None = None


class Customer(BaseModel):
    city: str


class OrderModel(BaseModel):
    order_id: int
    to: Customer
    at: dt.datetime
    tags: list[str] = []
    note: str | None = None


ORDER = Order(7, uuid.UUID(int=7), AT, AT.date(), [Line("pen"), Line("ink", 2, Line("set"))], {"b": 1.5}, b"\xff")


@pytest.fixture
def server() -> Iterator[Registry]:
    with running() as registry:
        yield registry


@pytest.fixture
def registry(server: Registry) -> SchemaRegistry:
    return SchemaRegistry(server.url)


def received(message: Message) -> Incoming:
    return Incoming(
        id="1",
        topic=message.topic,
        payload=message.payload,
        content_type=message.content_type,
        headers=message.headers,
    )


def declared(kind: type[Any], serializer: AvroSerializer, **options: Any) -> type[Any]:
    """The class once more, as an event of this test."""
    return event("orders.created", serializer=serializer, **options)(type(kind.__name__, (kind,), {}))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Order, vars(ORDER)),
        (OrderStruct, {"order_id": 7, "lines": [Line("pen")]}),
        (OrderModel, {"order_id": 7, "to": Customer(city="Ulm"), "at": AT}),
    ],
)
def test_an_object_of_every_kind_of_class_comes_back_as_it_was(
    registry: SchemaRegistry, kind: type[Any], fields: dict[str, Any]
) -> None:
    kind = declared(kind, AvroSerializer(registry), key="order_id")
    message = Outbox().message_of(kind(**fields))
    assert (message.content_type, message.key) == ("application/vnd.confluent.avro", "7")
    assert read(received(message), kind) == kind(**fields)
    assert Outbox().message_of(kind(**fields)).digest == message.digest


def test_a_class_is_a_schema() -> None:
    schema = schema_of(Order)
    fields = {one["name"]: one for one in schema["fields"]}
    assert (schema["name"], schema["type"]) == ("Order", "record")
    assert fields["lines"]["type"]["items"]["fields"][2] == {
        "name": "part_of",
        "type": ["null", "Line"],
        "default": None,
    }
    assert fields["state"] == {
        "name": "state",
        "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]},
        "default": "OPEN",
    }
    assert fields["hint"] == {"name": "hint", "type": ["string", "null"], "default": "none"}
    assert fields["tags"]["default"] == []
    assert "default" not in fields["made"]
    assert [one["name"] for one in schema_of(OrderModel)["fields"] if "default" in one] == ["tags", "note"]


@dataclass
class Priced:
    price: Decimal


class Numbers(enum.Enum):
    ONE = 1


@dataclass
class Numbered:
    number: Numbers


@dataclass
class Mapped:
    names: dict[int, str]


class Unknown:
    pass


@dataclass
class Unresolved:
    name: Nowhere  # type: ignore[name-defined]  # noqa: F821 - that is the point


def test_what_avro_has_no_type_for_is_refused() -> None:
    for kind, text in (
        (Priced, "Priced.price is a Decimal"),
        (Numbered, "Enum whose values are no names"),
        (Mapped, "Mapped.names is a Dict"),
        (int, "int has no fields"),
        (Unknown, "is a Custom"),
        (Unresolved, "Unresolved has no Avro schema: name 'Nowhere' is not defined"),
    ):
        with pytest.raises(InvalidSetting, match=text):
            schema_of(kind)


OLD = {"type": "record", "name": "Order", "fields": [{"name": "order_id", "type": "int"}]}


@dataclass
class Grown:
    order_id: int
    note: str = "none"


@dataclass
class Small:
    order_id: int


def test_readers_and_writers_of_different_schemas_understand_each_other(registry: SchemaRegistry) -> None:
    old = declared(Small, AvroSerializer(registry, OLD))
    new = declared(Grown, AvroSerializer(registry, {**schema_of(Grown), "name": "Order"}))
    assert read(received(Outbox().message_of(old(7))), new) == new(7, "none")
    message = received(Outbox().message_of(new(7, "hi")))
    with pytest.raises(PayloadNotDecodable, match="not what schema 2 says"):  # a long is no int
        read(message, old)
    wide = {**OLD, "fields": [{"name": "order_id", "type": "long"}]}
    assert read(message, declared(Small, AvroSerializer(registry, wide))).order_id == 7


def test_messages_in_json_and_of_older_versions_are_read_too(registry: SchemaRegistry) -> None:
    serializer = AvroSerializer(registry)
    first: Any = event("orders.created", type="Order", serializer=serializer)(type("Order", (Small,), {}))
    kind: Any = event("orders.created", type="Order", version=2, serializer=serializer)(type("Order", (Grown,), {}))
    upcaster(kind, since=1)(lambda data: data | {"note": "old"})
    assert read(received(Outbox().message_of(first(7))), kind) == kind(7, "old")
    json = Incoming(id="1", topic="t", payload=b'{"order_id": 7}', content_type="application/json")
    assert read(json, kind) == kind(7, "old")
    current = {"event-version": "2"}
    assert read(msgspec.structs.replace(json, headers=current), kind) == kind(7)
    upcaster_of_nothing: Any = event("t", version=2, serializer=serializer)(type("Order", (Grown,), {}))
    upcaster(upcaster_of_nothing, since=1)(lambda _: {"order_id": "secret"})
    with pytest.raises(PayloadNotDecodable, match="Expected `int`, got `str`, at") as raised:
        read(json, upcaster_of_nothing)
    assert "secret" not in str(raised.value)


def test_the_registry_is_asked_once_and_not_for_what_needs_it_not(server: Registry) -> None:
    registry = SchemaRegistry(server.url)
    kind = declared(Small, AvroSerializer(registry, subject=Subject.RECORD))
    outbox = Outbox()
    outbox.prepare(kind)
    assert server.subjects == {"Small": [1]}
    for _ in range(3):
        outbox.message_of(kind(7))
    assert len(server.requests) == 1
    server.status = 500
    assert read(received(outbox.message_of(kind(7))), kind) == kind(7)
    unprepared = declared(Grown, AvroSerializer(registry))
    plain: Any = event("plain")(type("Plain", (Small,), {}))
    with pytest.raises(RegistryUnavailable):
        outbox.message_of(unprepared(7))
    assert outbox.message_of(plain(7)).json() == {"order_id": 7}


def test_a_message_without_a_type_goes_to_the_handler_of_its_topics_schema(registry: SchemaRegistry) -> None:
    def handle(one: Any) -> None: ...

    fitting = []
    message = Incoming(id="1", topic="orders.created", payload=b"", content_type="application/octet-stream")
    json = msgspec.structs.replace(message, content_type="application/json")
    for serializer in (AvroSerializer(registry), None):
        handle.__annotations__ = {"one": event("orders.created", type="Small", serializer=serializer)(Small)}
        handler = handler_of(handle, None, None, RetryPolicy(), 1)
        fitting += [handler.fits(message), handler.fits(json)]
        assert not handler.fits(msgspec.structs.replace(message, type="Other"))
    assert fitting == [True, False, False, False]


async def test_an_async_producer_prepares_beside_the_event_loop(server: Registry) -> None:
    outbox = RecordingOutbox(serializer=AvroSerializer(SchemaRegistry(server.url)))
    kind: Any = event("orders.created")(type("Order", (Small,), {}))
    for _ in range(2):
        await outbox.apublish(None, kind(7))
    assert [unframed(one.payload).schema_id for one in outbox.messages] == [1, 1]
    assert len(server.requests) == 1


def test_masks_and_limits_hold_for_encoded_events(registry: SchemaRegistry) -> None:
    kind = declared(Grown, AvroSerializer(registry))
    outbox = Outbox(mask=lambda _, one: {"order_id": one.order_id, "note": "***"}, max_payload_bytes=100)
    message = outbox.message_of(kind(7, "secret"))
    assert read(received(message), kind) == kind(7, "***")
    recorder = RecordingOutbox(Outbox(serializer=AvroSerializer(registry)))
    plain: Any = event("orders.created")(type("Order", (Grown,), {}))
    assert recorder.message_of(plain(7)).content_type == "application/vnd.confluent.avro"
    with pytest.raises(PayloadTooLarge):
        RecordingOutbox(max_payload_bytes=100).publish(None, kind(7, "x" * 200))


def test_what_does_not_fit_is_refused_without_its_values(server: Registry, registry: SchemaRegistry) -> None:
    serializer = AvroSerializer(registry)
    kind = declared(Small, serializer)
    for wrong in (kind("secret"), {"other": "secret"}, object()):
        with pytest.raises(PayloadNotEncodable) as raised:
            serializer.encode(wrong, kind)
        assert "secret" not in str(raised.value)
    good = Outbox().message_of(kind(7)).payload or b""
    server.schemas.append({"schema": "no schema", "schemaType": "AVRO", "references": []})
    server.schemas.append({"schema": "AA==", "schemaType": "PROTOBUF", "references": []})
    nulls = '{"type": "array", "items": "null"}'
    server.schemas.append({"schema": nulls, "schemaType": "AVRO", "references": []})
    for payload, error in (
        (good + b"\x00", PayloadNotDecodable),
        (good[:5], PayloadNotDecodable),
        (b"no frame", PayloadNotDecodable),
        (None, PayloadNotDecodable),
        (framed(2, b""), UnknownSchema),
        (framed(3, b""), PayloadNotDecodable),
        (framed(999, b""), UnknownSchema),
        (framed(4, b"\x80" * 6 + b"\x01\x00"), PayloadNotDecodable),  # 2**41 nulls
    ):
        assert serializer.lacks(payload) == (payload not in {None, b"no frame"} and framed(2, b"") <= (payload or b""))
        with pytest.raises(error):
            serializer.decode(payload, kind)
    serializer.fetch([framed(998, b""), b"no frame"])
    assert not serializer.lacks(framed(998, b""))


def test_a_writers_schema_may_use_others(server: Registry, registry: SchemaRegistry) -> None:
    line = {"type": "record", "name": "Line", "fields": [{"name": "article", "type": "string"}]}
    order = {"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]}
    as_text = msgspec.json.encode(line).decode(), msgspec.json.encode(order).decode()
    reference = {"name": "Line", "subject": "line", "version": 1}
    server.answer("POST", "/subjects/line/versions", {"schema": as_text[0]})
    server.answer("POST", "/subjects/order/versions", {"schema": as_text[1], "references": [reference, reference]})
    serializer = AvroSerializer(registry)
    assert serializer.decode_plain(framed(2, b"\x06pen"), Order) == {"line": {"article": "pen"}}
    server.schemas[0]["schema"] = "{}"
    with pytest.raises(UnknownSchema, match="schema 1 cannot be read"):
        AvroSerializer(SchemaRegistry(server.url)).decode_plain(framed(2, b"\x06pen"), Order)


def test_a_wrong_schema_is_refused(registry: SchemaRegistry) -> None:
    for schema, text in (
        ("{", "is not JSON"),
        ({"type": "no type"}, "the Avro schema of Small is not valid"),
        ({"type": "string"}, "must be a record"),
    ):
        with pytest.raises(InvalidSetting, match=text):
            Outbox().prepare(declared(Small, AvroSerializer(registry, schema)))
    with pytest.raises(InvalidSetting, match="the serializer is 'avro'"):
        event("t", serializer="avro")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidSetting, match="Line is no event"):
        AvroSerializer(registry).prepare(Line)


@pytest.mark.parametrize(
    ("error", "code", "reports"),
    [(ZeroDivisionError, "INTERNAL_ERROR", 2), (RegistryUnavailable, "REGISTRY_UNAVAILABLE", 1)],
)
async def test_a_serializer_that_fails_to_fetch_is_a_failed_attempt_of_its_message_alone(
    error: type[Exception], code: str, reports: int
) -> None:
    class Broken(Serializer):
        content_type = "application/x-broken"

        def encode(self, value: Any, kind: type[Any]) -> bytes:
            return repr((value, kind)).encode()

        def decode(self, payload: bytes | None, kind: type[Any]) -> Any:
            raise PayloadNotDecodable(repr((payload, kind)))

        def lacks(self, payload: bytes | None) -> bool:
            raise error(payload)

    def handle(one: Any) -> None: ...

    handle.__annotations__ = {"one": event("broken", serializer=Broken())(type("Small", (Small,), {}))}
    handler = handler_of(handle, None, None, RetryPolicy(), 1)
    message = Incoming(id="1", topic="broken", payload=b"", content_type="application/x-broken")
    told: list[Event] = []
    attempts = HandlerAttempts("c", [handler], cast("Any", None), DEFAULT_CLASSIFIER, told.append)
    failed = await attempts.make(handler, [message])
    assert isinstance(failed, AttemptFailed)
    each = await attempts.make_each(handler, [message], lambda: True, lambda _: None)
    assert isinstance(each, AttemptFailed)
    assert (failed.code, each.code) == (code, code)
    assert len(told) == reports  # an outage concerns any number of messages: one report is enough
    for unsupported in (Broken().decode_plain, Broken().from_plain):
        with pytest.raises(NotImplementedError, match="which upcasters of Small need"):
            unsupported(b"", Small)
