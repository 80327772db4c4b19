"""The wire format of Confluent's schema registries: which schema a payload was written with, in front of it.

A zero byte, the schema's id in four bytes, and the data. With Protobuf, the place of the message's type in its file
comes in between: the indexes of the types around it and its own, as zig-zag varints behind their number. The first
type of a file, which nearly all are, is written as a single zero.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, assert_never

from postroom.errors import PayloadNotDecodable

MAGIC = b"\x00"
_HEADER = 5
_MOST_ID = 2**31 - 1
"""Registries that are asked for a larger one answer as if the URL were wrong."""
_MOST_DEEP = 64
"""Types inside types; more than any program has, and few enough to read from any input."""
_VARINT_BITS = 32
_JSON = ("application/json", "text/json")


class Subject(StrEnum):
    """Under which name a registry keeps the schemas of an event."""

    TOPIC = "topic"
    """The topic's, as in ``orders.created-value``: all its messages have one schema."""
    RECORD = "record"
    """The record's own full name, wherever it is sent."""
    TOPIC_RECORD = "topic-record"
    """Both: several schemas in one topic, which change in each by themselves."""


class Framed(NamedTuple):
    """A payload, taken apart."""

    schema_id: int
    data: bytes


def subject_of(strategy: Subject, topic: str, record: str) -> str:
    """The subject of a record that is sent to a topic."""
    match strategy:
        case Subject.TOPIC:
            return f"{topic}-value"
        case Subject.RECORD:
            return record
        case Subject.TOPIC_RECORD:
            return f"{topic}-{record}"
        case _:
            assert_never(strategy)


def framed(schema_id: int, data: bytes) -> bytes:
    """Data that was written with this schema, as it is sent."""
    return MAGIC + schema_id.to_bytes(4) + data


def unframed(payload: bytes | None) -> Framed:
    """The parts of a payload. Raises `PayloadNotDecodable`."""
    if not payload:
        raise PayloadNotDecodable("the payload is empty: it names no schema")
    if payload[:1] != MAGIC:
        raise PayloadNotDecodable(
            "the payload does not begin with a zero byte and a schema's id, as a schema registry's serializers write it"
        )
    if len(payload) < _HEADER:
        raise PayloadNotDecodable(f"the payload has {len(payload)} bytes: it ends within the schema's id")
    schema_id = int.from_bytes(payload[1:_HEADER])
    if schema_id > _MOST_ID:
        raise PayloadNotDecodable(f"the payload names the schema {schema_id}: registries count to {_MOST_ID}")
    return Framed(schema_id, payload[_HEADER:])


def indexes_to_bytes(indexes: Sequence[int]) -> bytes:
    """The place of a message's type in its file, as it is sent."""
    if list(indexes) == [0]:
        return b"\x00"
    return b"".join(map(_varint, (len(indexes), *indexes)))


def without_indexes(data: bytes) -> tuple[list[int], bytes]:
    """The place of a message's type in its file, and the message. Raises `PayloadNotDecodable`."""
    count, at = _read(data, 0)
    if count == 0:
        return [0], data[at:]
    if not 0 < count <= _MOST_DEEP:
        raise PayloadNotDecodable("the payload does not say which message type of its schema it holds")
    indexes = []
    for _ in range(count):
        index, at = _read(data, at)
        indexes.append(index)
    return indexes, data[at:]


def is_json(content_type: str) -> bool:
    """Whether a content type is JSON's, so that no serializer but JSON's is needed."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind in _JSON or kind.endswith("+json")


def _varint(value: int) -> bytes:
    left = value << 1 if value >= 0 else ~(value << 1)
    found = bytearray()
    while left > 0x7F:  # noqa: PLR2004 - seven bits a byte
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _read(data: bytes, at: int) -> tuple[int, int]:
    """A zig-zag varint, and where the next thing begins."""
    found = 0
    for shift in range(0, _VARINT_BITS, 7):
        if at >= len(data):
            raise PayloadNotDecodable("the payload ends within the indexes of its message type")
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint
            return (found >> 1) ^ -(found & 1), at
    raise PayloadNotDecodable("the payload has an index of a message type that is no number of 32 bits")
