"""Which changes of Protobuf messages break something."""

from __future__ import annotations

from typing import Any

import pytest

from postroom.rules.protobuf_changes import protobuf_changes


def schema(*fields: tuple[int, str, str], message: str = "shop.Order", **enums: Any) -> Any:
    own = {str(number): {"name": name, "type": kind} for number, name, kind in fields}
    line = {"1": {"name": "count", "type": f"int{enums.pop('bits', 32)}"}}
    return {"message": message, "messages": {message: own, "shop.Line": line}, "enums": {"shop.E": enums}}


ORDER = schema((1, "id", "int64"), (2, "note", "string"), A=0)


@pytest.mark.parametrize(
    ("new", "changes"),
    [
        (ORDER, []),
        (schema((1, "id", "int64"), A=0), []),
        (schema((1, "number", "int64"), (3, "more", "string"), A=0, B=1), []),
        (schema((1, "id", "string"), A=0), ["id (number 1) was int64, and is string"]),
        (schema((1, "id", "int64"), (5, "note", "string"), A=0), ["note was number 2, and is 5"]),
        (
            schema((1, "id", "int64"), (9, "must", "required string"), A=0),
            ["must is required, and older messages may lack it"],
        ),
        (schema((1, "id", "int64"), A=3), ["shop.E.A was 0, and is 3"]),
        (schema((1, "id", "int64"), A=0, bits=64), ["shop.Line.count (number 1) was int32, and is int64"]),
        (schema(message="shop.Other"), ["the message was shop.Order, and is shop.Other"]),
    ],
)
def test_fields_may_come_and_go_and_keep_their_numbers_and_types(new: Any, changes: list[str]) -> None:
    assert list(protobuf_changes(ORDER, new)) == changes


def test_what_older_programs_require_must_stay() -> None:
    old = schema((1, "id", "required int64"))
    assert list(protobuf_changes(old, schema())) == ["id is gone, and older programs require it"]
