"""Reading what strangers send."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, exceptions, frame

from postroom.brokers.cloudevents import AMQP, HTTP, KAFKA, NATS, REDIS, HeaderFormat, incoming
from postroom.consumer.parked import as_parked, hash_of
from postroom.sources.nats_frames import head_of
from postroom.sources.rabbitmq_frames import Properties, Start, unmarshal
from postroom.sources.reading import fingerprint, key_of, text

RAW = st.binary(max_size=30)


@given(RAW, RAW)
def test_different_keys_stay_different(one: bytes, other: bytes) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)
    key_of(one).encode()


PARTS = st.lists(st.none() | RAW | st.text(max_size=3), max_size=4)


@given(PARTS, PARTS)
def test_fingerprints_tell_what_differs(one: list[bytes | str | None], other: list[bytes | str | None]) -> None:
    def plain(parts: list[bytes | str | None]) -> list[bytes | None]:
        return [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts]

    assert (fingerprint(one) == fingerprint(other)) == (plain(one) == plain(other))


NAMES = st.sampled_from(["id", "source", "type", "specversion", "time", "partitionkey", "topic", "sequence"])


@pytest.mark.parametrize("protocol", [AMQP, HTTP, KAFKA, NATS, REDIS], ids=["amqp", "http", "kafka", "nats", "redis"])
@given(attributes=st.dictionaries(NAMES, RAW), users=st.dictionaries(st.text(max_size=5), RAW), body=st.none() | RAW)
def test_B_3_whatever_headers_hold_becomes_a_message_that_can_be_parked(
    protocol: HeaderFormat, attributes: dict[str, bytes], users: dict[str, bytes], body: bytes | None
) -> None:
    headers = {protocol.prefix + name: text(value) for name, value in attributes.items()}
    headers |= {name: text(value) for name, value in users.items()}
    message = incoming(protocol, headers, body, id=lambda: "place", topic="t")
    for told in (message.id, message.content_type, message.key or "", *message.headers, *message.headers.values()):
        told.encode()
    hash_of(message.key or "")
    as_parked("c", message)


@pytest.mark.parametrize("protocol", [KAFKA, NATS], ids=["bytes", "percent-encoded"])
def test_I_5_ids_that_are_no_text_do_not_become_the_same(protocol: HeaderFormat) -> None:
    event = {"specversion": "1.0", "source": "a", "type": "b"}
    value = text(b"\xff") if protocol is KAFKA else "%ff"
    headers = {f"{protocol.prefix}{name}": value for name, value in {**event, "id": value}.items()}
    message = incoming(protocol, headers, None, id="place", topic="t")
    assert message.problem == f"this is not a CloudEvent: {protocol.prefix}id is not UTF-8"


def test_nats_headers_are_read_as_the_server_sends_them() -> None:
    assert head_of(b"") == ("", "", {})
    assert head_of(b"NATS/1.0 404 No Messages\r\n\r\n") == ("404", "No Messages", {})
    assert head_of(b"NATS/1.0\r\na:1\r\nb: 2 \r\n\r\n").headers == {"a": "1", "b": "2"}
    for wrong in (b"X", b"NATS/1.0\r\nno colon", b"NATS/1.0\r\n: x", b"NATS/1.0\r\n\xff: x"):
        with pytest.raises(ValueError, match=r"begin with|no name|codec"):
            head_of(wrong)


def test_rabbitmq_routing_keys_that_are_no_text_are_read_all_the_same() -> None:
    deliver = commands.Basic.Deliver("c", 2**40, redelivered=True, exchange="e", routing_key="orders.X")
    raw = frame.marshal(deliver, 1)
    assert unmarshal(raw)[1].routing_key == "orders.X"
    channel, found = unmarshal(raw.replace(b"orders.X", b"orders.\xff"))
    assert isinstance(found, Start)
    assert (channel, found.tag, found.routing_key) == (1, 2**40, "orders.\udcff")
    assert "cannot be read" in str(found.problem)


def test_rabbitmq_frames_of_the_server_itself_are_not_guessed_at() -> None:
    content = struct.pack(">HHQ", 60, 0, 7) + b"\x80\0\1\xff"
    header = struct.pack(">BHI", 2, 1, len(content)) + content + b"\xce"
    channel, found = unmarshal(header)
    assert isinstance(found, Properties)
    assert (channel, found.size, found.raw) == (1, 7, b"\x80\0\1\xff")
    close = frame.marshal(commands.Channel.Close(404, "X", 0, 0), 1).replace(b"X", b"\xff")
    with pytest.raises(exceptions.UnmarshalingException):
        unmarshal(close)
