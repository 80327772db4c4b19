"""Which changes of Avro schemas break something. The same cases are put to fastavro: what we call fine, it reads."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import fastavro
import pytest

from postroom.rules.avro_changes import avro_changes


def record(*fields: Any, name: str = "Order", **more: Any) -> Any:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(type: Any, name: str = "x", **more: Any) -> Any:
    return {"name": name, "type": type, **more}


def fixed(size: int) -> Any:
    return {"type": "fixed", "name": "F", "size": size}


def enum(*symbols: str, **more: Any) -> Any:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


NODE = record(field(["null", "Order"], "next", default=None))
SPACED = record(
    field(record(field("long"), name="Line"), "a"), field("Line", "b"), field("shop.Line", "c"), namespace="shop"
)
LONG = record(field("long"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (NODE, NODE),
        (SPACED, SPACED),
        (LONG, record(field("long"), field("string", "note", default=""))),
        (record(field("string")), record(field("bytes"))),
        (record(field({"type": "array", "items": "int"})), record(field({"type": "array", "items": "int"}))),
        (record(field({"type": "map", "values": "int"})), record(field({"type": "map", "values": "int"}))),
        (record(field(enum("A", default="A"))), record(field(enum("A", "B", default="A")))),
        (record(field(fixed(4))), record(field(fixed(4)))),
        (record(field({"type": {"type": "long"}})), LONG),
        (record(field(["null", "long"])), record(field(["long", "null"]))),
    ],
)
def test_what_both_sides_read_is_no_change(old: Any, new: Any) -> None:
    assert list(avro_changes(old, new)) == []


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        (LONG, record(), ["x is missing and has no default, for older programs"]),
        (LONG, record(field("long"), field("int", "y")), ["y is missing and has no default, for older messages"]),
        (record(field("int")), LONG, ["x is written as long, and read as int, for older programs"]),
        (
            LONG,
            record(field("string")),
            [
                "x is written as long, and read as string, for older messages",
                "x is written as string, and read as long, for older programs",
            ],
        ),
        (
            LONG,
            record(field({"type": "long", "logicalType": "timestamp-micros"})),
            [
                "x is written as long, and read as timestamp-micros of another kind, for older messages",
                "x is written as timestamp-micros, and read as long of another kind, for older programs",
            ],
        ),
        (
            LONG,
            record(field(["null", "long"])),
            ["x is written as null, and read as long, for older programs"],
        ),
        (
            record(field(["null", "long"])),
            record(field(["null", record(field("long"), name="Line")])),
            [
                "x may be long, which is not in ['null', 'Line'], for older messages",
                "x may be Line, which is not in ['null', 'long'], for older programs",
            ],
        ),
        (
            record(field(enum("A", "B"))),
            record(field(enum("A"))),
            ["x may be B, which is not known and has no default, for older messages"],
        ),
        (
            record(field(fixed(4))),
            record(field(fixed(8))),
            ["x has 4 bytes, and 8 are read, for older messages", "x has 8 bytes, and 4 are read, for older programs"],
        ),
        (
            record(field({"type": "array", "items": "int"})),
            record(field({"type": "array", "items": "long"})),
            ["x[] is written as long, and read as int, for older programs"],
        ),
        (
            record(field({"type": "map", "values": "int"})),
            record(field({"type": "map", "values": "long"})),
            ["x.* is written as long, and read as int, for older programs"],
        ),
        (
            LONG,
            record(field("long"), name="Sale", aliases=["shop.Order"]),
            ["the event is Sale, and Order is read, for older programs"],
        ),
        (
            LONG,
            record(field("long"), name="Other"),
            [
                "the event is Order, and Other is read, for older messages",
                "the event is Other, and Order is read, for older programs",
            ],
        ),
    ],
)
def test_what_one_side_cannot_read_is_named(old: Any, new: Any, changes: list[str]) -> None:
    assert list(avro_changes(old, new)) == changes


def test_a_field_may_be_renamed_if_the_new_one_has_an_alias_and_old_programs_a_default() -> None:
    old = record(field("long", default=0))
    new = record(field("long", "y", aliases=["x"]))
    assert list(avro_changes(old, new)) == []
    buffer = BytesIO()
    fastavro.schemaless_writer(buffer, old, {"x": 7})
    buffer.seek(0)
    assert fastavro.schemaless_reader(buffer, old, new) == {"y": 7}


def test_a_type_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="the Avro schema has no type Line"):
        list(avro_changes(record(field("Line")), LONG))
