"""Avro payloads without bounds are found before the decoder gets them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import msgspec
import pytest

from postroom.errors import PayloadNotDecodable
from postroom.rules.avro_limits import MOST_DEEP, MOST_EMPTY, check_payload, needs_check

NODE = {"type": "record", "name": "a.Node", "fields": [{"name": "next", "type": ["null", "a.Node"]}]}
EMPTY = {"type": "record", "name": "record", "fields": [{"name": "n", "type": "null"}]}
ALL = {
    "type": "record",
    "name": "All",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "real", "type": "double"},
        {"name": "text", "type": "string"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
        {"name": "codes", "type": {"type": "map", "values": "Code"}},
        {"name": "nothing", "type": {"type": "array", "items": "null"}},
        {"name": "inner", "type": {"type": "array", "items": "All"}},
    ],
}


def parsed(schema: Any) -> tuple[Any, dict[str, Any]]:
    names: dict[str, Any] = {}
    return fastavro.parse_schema(schema, named_schemas=names), names


def long(value: int) -> bytes:
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, parsed("long")[0], value)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("schema", "is_unbounded"),
    [
        ("string", False),
        (["null", {"type": "map", "values": "long"}], False),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, False),
        ({**EMPTY, "fields": [{"name": "a", "type": EMPTY | {"name": "b"}}, {"name": "c", "type": "b"}]}, False),
        ({"type": "array", "items": "null"}, True),
        ({"type": "array", "items": EMPTY}, True),
        ({"type": "map", "values": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}}, True),
        (NODE, True),
        (ALL, True),
    ],
)
def test_few_schemas_need_a_check(schema: Any, *, is_unbounded: bool) -> None:
    assert needs_check(*parsed(schema)) is is_unbounded


def test_types_that_use_others_twice_are_looked_at_once() -> None:
    schema: Any = {"type": "array", "items": EMPTY}
    for number in range(40):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{number - 1}" if number else "null"}]
        schema = {"type": "record", "name": f"R{number}", "fields": fields}
    assert needs_check(*parsed(schema))
    assert not needs_check(
        *parsed(
            msgspec.json.decode(msgspec.json.encode(schema).replace(b'"array"', b'"map"').replace(b"items", b"values"))
        )
    )


def test_a_valid_payload_passes() -> None:
    one = {"flag": True, "real": 1.5, "text": "é", "kind": "B", "at": 1, "code": b"abc", "codes": {"x": b"123"}}
    order = one | {"nothing": [None] * 9, "inner": [one | {"nothing": [], "inner": []}]}
    schema, names = parsed(ALL)
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, schema, order)
    check_payload(buffer.getvalue(), schema, names)
    for end in range(len(buffer.getvalue())):
        with pytest.raises(PayloadNotDecodable, match="ends too soon"):
            check_payload(buffer.getvalue()[:end], schema, names)


@pytest.mark.parametrize(
    ("schema", "data", "text"),
    [
        (NODE, b"\x02" * 1_000_000 + b"\x00", f"nested more than {MOST_DEEP} deep"),
        (NODE, b"\x04", "part of a union that there is not"),
        (NODE, b"\xff" * 10 + b"\x01", "more than 64 bits"),
        ({"type": "array", "items": "null"}, long(2**40) + b"\x00", "65,536 items that take no bytes"),
        ({"type": "array", "items": EMPTY}, (long(-MOST_EMPTY) + long(0)) * 2 + b"\x00", "items that take no bytes"),
        ({"type": "array", "items": "int"}, long(2**40) + b"\x00", "ends too soon"),
        ("bytes", long(2**62), "ends too soon"),
        ("bytes", long(-1), "ends too soon"),
    ],
)
def test_a_payload_without_bounds_is_refused(schema: Any, data: bytes, text: str) -> None:
    with pytest.raises(PayloadNotDecodable, match=text):
        check_payload(data, *parsed(schema))
