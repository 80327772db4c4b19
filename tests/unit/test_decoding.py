"""Decoding: which classes a payload can become, and what is said of one that cannot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from postroom import Incoming, Message
from postroom.errors import PayloadNotDecodable

SECRET = "s3cr3t"  # noqa: S105 - a made-up value, which no error may quote


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    article: str
    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"{self.article} is missing")


class LineStruct(msgspec.Struct):
    article: str
    count: int = 1


class LineDict(TypedDict):
    article: str
    count: int


class Point(NamedTuple):
    x: int
    y: int = 1


class LineModel(pydantic.BaseModel):
    article: str
    count: int = pydantic.Field(default=1, ge=1)

    @pydantic.field_validator("article")
    @classmethod
    def known(cls, article: str) -> str:
        if article.startswith("no"):
            raise ValueError(f"{article} is not sold")
        return article


@pydantic.dataclasses.dataclass
class LinePydantic:
    article: str
    count: int = pydantic.Field(default=1, ge=1)


class Order(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    id: int
    at: datetime
    price: Decimal
    lines: list[LineModel]


@dataclass
class Basket:
    lines: list[LineModel]


def received(payload: bytes | None) -> Incoming:
    return Incoming(id="1", topic="orders", payload=payload, content_type="application/json")


KINDS: list[Any] = [Line, LineStruct, LineModel, LinePydantic]


@pytest.mark.parametrize("kind", KINDS)
def test_what_add_takes_decode_gives_back(kind: Any) -> None:
    line = kind(article="kettle", count=2)
    sent = Message.new("orders", line)
    assert sent.decode(kind) == line
    assert received(sent.payload).decode(kind) == line


def test_a_named_tuple_is_an_array() -> None:
    assert received(Message.new("points", Point(1, 2)).payload).decode(Point) == Point(1, 2)


def test_a_typed_dict_is_a_dict_that_is_checked() -> None:
    assert received(b'{"article":"kettle","count":2}').decode(LineDict) == {"article": "kettle", "count": 2}
    with pytest.raises(PayloadNotDecodable, match="LineDict: Object missing required field `count`"):
        received(b'{"article":"kettle"}').decode(LineDict)


def test_pydantic_models_have_json_s_types_also_where_they_are_strict_and_below_others() -> None:
    order = Order(id=7, at=datetime(2026, 1, 2, tzinfo=UTC), price=Decimal("12.340"), lines=[LineModel(article="cup")])
    message = received(Message.new("orders", order).payload)
    assert message.decode(Order) == order
    assert received(b'[{"article":"cup"}]').decode(list[LineModel]) == [LineModel(article="cup")]
    assert received(b'{"a":{"article":"cup"}}').decode(dict[str, LineModel]) == {"a": LineModel(article="cup")}
    for _ in range(2):
        assert received(b'{"lines":[{"article":"cup"}]}').decode(Basket) == Basket([LineModel(article="cup")])
    assert received(None).decode(LineModel | None) is None  # type: ignore[arg-type]  # mypy knows no unions as classes
    assert received(b'"2026-01-02"').decode(date) == date(2026, 1, 2)


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        (Line, '{"count":1}', "the payload is not a valid Line: Object missing required field `article`"),
        (
            Line,
            '{"article":"x","count":"s3cr3t"}',
            "the payload is not a valid Line: Expected `int`, got `str`, at $.count",
        ),
        (Line, '{"article":"s3cr3t","count":0}', "the payload is not a valid Line: the class refuses it"),
        (LineStruct, "[]", "the payload is not a valid LineStruct: Expected `object`, got `array`"),
        (Colour, '"s3cr3t"', "the payload is not a valid Colour: Invalid enum value"),
        (list[Literal["a"]], '["s3cr3t"]', "Invalid enum value, at $[0]"),
        (Line, "s3cr3t", "the payload is not a valid Line: JSON is malformed"),
        (Any, "s3cr3t", "the payload is not valid JSON: JSON is malformed"),
        (LineModel, "{}", "the payload is not a valid LineModel: Field required, at $.article"),
        (LineModel, '{"article":1,"count":"s3cr3t"}', "at $.article; Input should be a valid integer"),
        (LineModel, '{"article":"no s3cr3t"}', "the payload is not a valid LineModel: value_error, at $.article"),
        (LineModel, '{"article":"x","count":-1}', "greater_than_equal, at $.count"),
        (LinePydantic, '{"article":"x","count":-1}', "greater_than_equal, at $.count"),
        (list[LineModel], '[{"article":"x"},{}]', "Field required, at $[1].article"),
        (LineModel, "s3cr3t", "the payload is not a valid LineModel: Invalid JSON"),
        (Basket, '{"lines":[{}]}', "the payload is not a valid Basket: Field required, at $.lines[0].article"),
    ],
)
def test_what_is_wrong_is_named_with_its_place_and_without_values(kind: Any, payload: str, said: str) -> None:
    with pytest.raises(PayloadNotDecodable) as raised:
        received(payload.encode()).decode(kind)
    assert said in str(raised.value)
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_of_many_faults_a_few_are_named() -> None:
    with pytest.raises(PayloadNotDecodable, match=r"at \$\[4\]\.article; and 15 more$"):
        received(b"[" + b",".join([b"{}"] * 20) + b"]").decode(list[LineModel])


class Plain:
    pass


@pytest.mark.parametrize("kind", [Plain, list[Plain], lambda: None])
def test_a_class_that_nothing_can_become_is_a_mistake_of_the_program(kind: Any) -> None:
    with pytest.raises((TypeError, PayloadNotDecodable), match=r"decode cannot make|Expected `Plain`"):
        received(b"[{}]" if kind == list[Plain] else b"{}").decode(kind)


def test_json_that_is_none_says_so() -> None:
    with pytest.raises(PayloadNotDecodable, match="the payload is not valid JSON"):
        received(b"not JSON").json()
    with pytest.raises(PayloadNotDecodable, match="the payload is not valid JSON"):
        Message.new("orders", b"not JSON").json()
    assert received(None).json() is None


@pytest.mark.parametrize("payload", [b"[" * 100_000, b'"\xff"'])
@pytest.mark.parametrize("kind", [Any, Line, LineModel])
def test_no_bytes_make_it_fail_in_another_way(payload: bytes, kind: Any) -> None:
    with pytest.raises(PayloadNotDecodable):
        received(payload).decode(kind)
