from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.brokers.cloudevents import AMQP, HTTP, KAFKA, NATS, REDIS, Envelope, HeaderFormat, Mode, decode, incoming
from postroom.errors import InvalidMessage
from postroom.incoming import Incoming
from postroom.message import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

WIRES = {"kafka": KAFKA, "redis": REDIS, "amqp": AMQP, "nats": NATS, "http": HTTP}
NOW = datetime(2026, 3, 1, 12, 30, 0, 250, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40)
NAMES = TEXT | st.sampled_from(
    ["traceparent", "ce-id", "ce_id", "CE-id", "Content-Type", "Nats-Msg-Id", "data", "a%20b"]
)
VALUES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=40) | st.sampled_from(
    ["UTF-8''a", " a ", "50%", 'a "b"', "userId=al%20ice", ""]
)
PAYLOADS = st.none() | st.binary(max_size=50) | TEXT | st.dictionaries(TEXT, st.integers() | TEXT, max_size=3)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    message = Message.new(
        draw(TEXT),
        draw(PAYLOADS),
        key=draw(st.none() | TEXT),
        type=draw(st.none() | TEXT),
        aggregate_type=draw(st.none() | TEXT),
        aggregate_id=draw(st.none() | TEXT),
        headers=draw(st.dictionaries(NAMES, VALUES, max_size=4)),
        expires_at=draw(st.none() | st.just(NOW)),
    )
    position = draw(st.none() | st.integers(1, 2**63 - 1))
    return msgspec.structs.replace(message, position=position, created_at=NOW)


def as_received(message: Message, source: str, headers: Mapping[str, str]) -> Incoming:
    return Incoming(
        id=str(message.id),
        source=source,
        type=message.type or message.topic,
        payload=message.payload,
        content_type="application/octet-stream" if message.payload is None else message.content_type,
        topic=message.topic,
        key=message.key,
        aggregate_id=message.aggregate_id,
        aggregate_type=message.aggregate_type,
        position=message.position,
        created_at=message.created_at,
        expires_at=message.expires_at,
        headers=headers,
    )


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize("protocol", WIRES.values(), ids=WIRES)
@given(message=messages(), source=TEXT)
def test_R_3_what_is_sealed_is_what_is_opened(
    protocol: HeaderFormat, mode: Mode, message: Message, source: str
) -> None:
    headers, body = Envelope(protocol, source, mode).seal(message)
    sent = {name.lower() if protocol.any_case else name: value for name, value in message.headers.items()}
    assert decode(protocol, headers, body) == as_received(message, source, sent)


@pytest.mark.parametrize("protocol", [NATS, HTTP], ids=["nats", "http"])
@given(message=messages(), source=TEXT)
def test_headers_are_what_the_protocol_can_hold(protocol: HeaderFormat, message: Message, source: str) -> None:
    headers, _ = Envelope(protocol, source).seal(message)
    for name, value in headers.items():
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set(' ":()<>@,;')
        assert value.isascii()
        assert value == value.strip()
        assert value.isprintable()


def test_R_3_the_table_of_attributes() -> None:
    message = Message.new(
        "orders",
        {"order_id": 7},
        key="c 1",
        type="OrderCreated",
        aggregate_type="order",
        aggregate_id=7,
        headers={"tenant": "Köln", "traceparent": "00-1-2-01", "ce-id": "mine"},
        expires_at=NOW,
    )
    message = msgspec.structs.replace(message, position=42, created_at=NOW)
    headers, body = Envelope(HTTP, "/shop").seal(message)
    assert headers == {
        "content-type": "application/json",
        "ce-specversion": "1.0",
        "ce-id": str(message.id),
        "ce-source": "/shop",
        "ce-type": "OrderCreated",
        "ce-topic": "orders",
        "ce-time": "2026-03-01T12:30:00.000250Z",
        "ce-subject": "7",
        "ce-aggregatetype": "order",
        "ce-partitionkey": "c%201",
        "ce-sequence": "0000000000000000042",
        "ce-expirytime": "2026-03-01T12:30:00.000250Z",
        "tenant": "UTF-8''K%C3%B6ln",
        "traceparent": "00-1-2-01",
        "%63e-id": "mine",
    }
    assert body == b'{"order_id":7}'
    assert "ce_partitionkey" in Envelope(KAFKA).seal(message)[0]


def test_a_structured_event_is_one_json_object() -> None:
    message = Message.new("orders", {"order_id": 7}, type="OrderCreated", headers={"tenant": "acme"})
    headers, body = Envelope(KAFKA, "/shop", "structured").seal(message)
    assert headers == {"content-type": "application/cloudevents+json", "tenant": "acme"}
    assert json.loads(body or b"") == {
        "specversion": "1.0",
        "id": str(message.id),
        "source": "/shop",
        "type": "OrderCreated",
        "topic": "orders",
        "datacontenttype": "application/json",
        "data": {"order_id": 7},
    }


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_what_only_claims_to_be_json_or_text_arrives_as_it_is(content_type: str) -> None:
    message = Message.new("t", b"\xff{", content_type=content_type)
    headers, body = Envelope(KAFKA, mode="structured").seal(message)
    assert b"data_base64" in (body or b"")
    assert decode(KAFKA, headers, body).payload == b"\xff{"


def test_events_of_others_are_read_too() -> None:
    body = b'{"specversion": "1.0", "id": "a", "source": "/s", "type": "T", "sampledrate": 30, "data": [1]}'
    event = decode(HTTP, {"Content-Type": "application/cloudevents+json; charset=utf-8"}, body)
    assert (event.id, event.payload, event.created_at, event.position) == ("a", b"[1]", None, None)


def test_the_id_is_the_messages() -> None:
    message = Message.new("t")
    headers, body = Envelope(NATS).seal(message)
    assert decode(NATS, headers, body).id == str(message.id)


@pytest.mark.parametrize(
    ("headers", "body", "problem"),
    [
        ({"ce_id": "a", "ce_source": "b"}, b"", "it has no specversion, type"),
        ({"content-type": "application/cloudevents+json"}, b"{", "not a structured CloudEvent"),
        ({"content-type": "application/cloudevents+json"}, b'{"data_base64": "%"}', "not a structured CloudEvent"),
        ({"content-type": "application/cloudevents+json"}, None, "not a structured CloudEvent"),
        (
            {"ce_specversion": "1.0", "ce_id": "a", "ce_source": "b", "ce_type": "c", "ce_time": "noon"},
            b"",
            "not a time",
        ),
    ],
)
def test_what_is_no_event_is_refused(headers: dict[str, str], body: bytes | None, problem: str) -> None:
    with pytest.raises(InvalidMessage, match=problem):
        decode(KAFKA, headers, body)


def test_a_plain_message_has_what_its_protocol_says() -> None:
    plain = incoming(NATS, {"colour": "red"}, b"{}", id="7-1", topic="orders", key="k")
    assert (plain.id, plain.topic, plain.key, plain.payload, plain.headers) == (
        "7-1",
        "orders",
        "k",
        b"{}",
        {"colour": "red"},
    )
    assert (plain.type, plain.content_type, plain.problem) == (None, "application/octet-stream", None)


def test_what_says_that_it_is_an_event_and_is_none_says_why() -> None:
    broken = incoming(KAFKA, {"ce_specversion": "1.0", "ce_id": "a"}, b"x", id="7-1", topic="orders")
    assert (broken.id, broken.payload) == ("a", b"x")
    assert broken.problem == "this is not a CloudEvent: it has no source, type"
    torn = incoming(HTTP, {"Content-Type": "application/cloudevents+json"}, b"{", id="7-1", topic="orders")
    assert torn.id == "7-1"
    assert "not a structured CloudEvent" in str(torn.problem)


def test_debezium_sends_all_headers_in_one_and_tombstones_with_a_content_type() -> None:
    event = {"ce_specversion": "1.0", "ce_id": "a", "ce_source": "postroom", "ce_type": "t"}
    sent = {**event, "content-type": "application/json", "colour": "red"}
    one = {"postroom-headers": '{"traceparent": "00-1", "ce_id": "ä", "colour": "blue", "postroom-ledger": "{}"}'}
    found = decode(KAFKA, {**sent, **one}, None)
    assert (found.id, found.payload) == ("a", None)
    assert found.headers == {"traceparent": "00-1", "ce_id": "ä", "colour": "red"}
    assert decode(KAFKA, sent, b"").payload == b""
    for wrong in ("[1]", '{"n": 1}', "{"):
        assert decode(KAFKA, {**event, "postroom-headers": wrong}, b"x").headers == {"postroom-headers": wrong}


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("name", ["data", "other"])
def test_an_event_that_is_too_deep_is_received_with_a_problem(name: str) -> None:
    """An error that no source expects would end the consumer, and the next one at the same message."""
    body = b'{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "%s": %s}' % (name.encode(), DEEP)
    found = incoming(NATS, {"content-type": "application/cloudevents+json"}, body, id="1", topic="t")
    assert found.problem


def test_json_that_is_too_deep_to_be_looked_at_is_sent_as_it_is() -> None:
    message = Message.new("t", DEEP, content_type="application/json")
    headers, body = Envelope(KAFKA, mode="structured").seal(message)
    assert decode(KAFKA, headers, body).payload == DEEP


@pytest.mark.parametrize("sequence", ["9" * 5000, "9" * 20, "first", ""])
def test_a_sequence_of_others_that_is_no_position_is_none(sequence: str) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-sequence": sequence}
    found = incoming(AMQP, headers, b"", id="1", topic="t")
    assert (found.problem, found.position) == (None, None)


def test_an_attribute_that_is_null_is_not_set() -> None:
    """As the JSON format of CloudEvents says. The key of all such messages would be the same word."""
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "time": None, "partitionkey": None}
    headers = {"content-type": "application/cloudevents+json"}
    found = incoming(HTTP, headers, json.dumps(event).encode(), id="1", topic="t")
    assert (found.problem, found.created_at, found.key) == (None, None, None)


def test_headers_of_strangers_that_begin_with_x_are_the_users_but_for_rabbitmqs_own() -> None:
    sent = {"x-tenant": "7", "X-Request-Id": "r", "%78-old": "from a sender before", "x-death": "[]", "CC": "a"}
    received = incoming(AMQP, sent, b"{}", id="1", topic="t")
    assert received.headers == {"x-tenant": "7", "X-Request-Id": "r", "x-old": "from a sender before"}
