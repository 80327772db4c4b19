"""Encoding: which payloads become which bytes, and the canonical form that a digest is taken of."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import re
import uuid
from typing import Any

import msgspec
import pydantic
import pytest
import uuid_utils
from hypothesis import given
from hypothesis import strategies as st

from postroom.encoding import BINARY, JSON, TEXT, digest, encode
from postroom.errors import PayloadNotEncodable

SECRET = "4111-1111"  # noqa: S105 - what must not be in an error


class Item(msgspec.Struct):
    sku: str
    quantity: int = 1


@dataclasses.dataclass
class Line:
    item: Item
    price: decimal.Decimal


class Order(pydantic.BaseModel):
    order_id: int
    total: decimal.Decimal
    placed_at: dt.datetime
    children: list[Order] = []
    anything: Any = None


class Measured(pydantic.BaseModel):
    value: float


class Colour(enum.Enum):
    RED = "red"


MOMENT = dt.datetime(2030, 1, 2, 3, 4, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("payload", "body", "content_type"),
    [
        (None, None, BINARY),
        (b"\x00\xff", b"\x00\xff", BINARY),
        (bytearray(b"ab"), b"ab", BINARY),
        (memoryview(b"ab"), b"ab", BINARY),
        (b"", b"", BINARY),
        ("é", "é".encode(), TEXT),
        ("", b"", TEXT),
        ({"b": 1, "a": None}, b'{"b":1,"a":null}', JSON),
        ([1, 2.5, True, "x"], b'[1,2.5,true,"x"]', JSON),
        ((1, 2), b"[1,2]", JSON),
        (7, b"7", JSON),
        (2**70, b"1180591620717411303424", JSON),
        (False, b"false", JSON),
        ({}, b"{}", JSON),
        ({7: "a"}, b'{"7":"a"}', JSON),
        ({uuid.UUID(int=1): 1}, b'{"00000000-0000-0000-0000-000000000001":1}', JSON),
        (Item("a"), b'{"sku":"a","quantity":1}', JSON),
        (Line(Item("a", 2), decimal.Decimal("1.50")), b'{"item":{"sku":"a","quantity":2},"price":"1.50"}', JSON),
        (
            {"at": MOMENT, "day": MOMENT.date(), "id": uuid.UUID(int=1), "sum": decimal.Decimal("0.10")},
            b'{"at":"2030-01-02T03:04:05Z","day":"2030-01-02","id":"00000000-0000-0000-0000-000000000001","sum":"0.10"}',
            JSON,
        ),
        (uuid_utils.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"', JSON),
        ({"colour": Colour.RED}, b'{"colour":"red"}', JSON),
        (
            Order(order_id=1, total=decimal.Decimal("9.90"), placed_at=MOMENT),
            b'{"order_id":1,"total":"9.90","placed_at":"2030-01-02T03:04:05Z","children":[],"anything":null}',
            JSON,
        ),
    ],
)
def test_payloads_become_bytes(payload: object, body: bytes | None, content_type: str) -> None:
    encoded = encode(payload)
    assert (encoded.body, encoded.content_type) == (body, content_type)


def test_models_may_hold_one_another() -> None:
    order = Order(order_id=2, total=decimal.Decimal(1), placed_at=MOMENT, anything={"deep": [Colour.RED]})
    nested = Order(order_id=1, total=decimal.Decimal(1), placed_at=MOMENT, children=[order])
    inside = {"order": nested, "lines": [Line(Item("a"), decimal.Decimal(1))]}
    found = msgspec.json.decode(encode(inside).body or b"")
    assert found["order"]["children"][0]["anything"] == {"deep": ["red"]}
    assert found["lines"] == [{"item": {"sku": "a", "quantity": 1}, "price": "1"}]


def test_the_callers_content_type_wins() -> None:
    assert encode({"a": 1}, "application/cloudevents+json").content_type == "application/cloudevents+json"
    assert encode(b"a", "image/png").content_type == "image/png"
    assert encode("a", "text/csv").content_type == "text/csv"
    assert encode(None, "application/json").content_type == "application/json"


def test_the_canonical_form_does_not_depend_on_what_held_the_values() -> None:
    class Model(pydantic.BaseModel):
        sku: str
        quantity: int

    forms: list[object] = [
        {"sku": "a", "quantity": 1},
        {"quantity": 1, "sku": "a"},
        Item("a"),
        Model(sku="a", quantity=1),
        dataclasses.make_dataclass("Data", ["quantity", "sku"])(1, "a"),
    ]
    assert {encode(form).canonical for form in forms} == {b'{"quantity":1,"sku":"a"}'}
    assert {encode([{"inner": form}]).canonical for form in forms} == {b'[{"inner":{"quantity":1,"sku":"a"}}]'}


def test_the_canonical_form_sorts_sets_and_keys_that_are_no_texts() -> None:
    assert encode({"b", "a"}).canonical == b'["a","b"]'
    assert encode({10: 1, 9: 2}).canonical == encode({9: 2, 10: 1}).canonical == b'{"10":1,"9":2}'
    assert encode([{10: {"b", "a"}, "1": None}, Item("a")]).canonical == (
        b'[{"1":null,"10":["a","b"]},{"quantity":1,"sku":"a"}]'
    )


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (object(), "objects of type object have no JSON form"),
        ({"a": object()}, "objects of type object have no JSON form"),
        ({object(): SECRET}, "objects of type object have no JSON form"),
        (complex(1), "objects of type complex have no JSON form"),
        (lambda: SECRET, "objects of type function have no JSON form"),
        (ValueError(SECRET), "objects of type ValueError have no JSON form"),
        (Item, "objects of type StructMeta have no JSON form"),
        (Order, "it holds a value that has no JSON form"),
        (float("nan"), "NaN or infinite"),
        ({"a": float("inf"), "b": SECRET}, "NaN or infinite"),
        ([[float("-inf")]], "NaN or infinite"),
        (dataclasses.make_dataclass("Data", ["x"])(float("nan")), "NaN or infinite"),
        (Measured(value=float("nan")), "NaN or infinite"),
        ({"deep": [Order(order_id=1, total=decimal.Decimal(1), placed_at=MOMENT, anything=object())]}, "no JSON form"),
        (f"{SECRET}\ud800", "lone surrogate"),
        ({"a": f"{SECRET}\udc80"}, "lone surrogate"),
        ({f"{SECRET}\udc80": 1}, "lone surrogate"),
    ],
    ids=lambda value: re.sub(r" at 0x\w+", "", repr(value)),  # the same in every worker of a run
)
def test_O_4_what_has_no_json_form_is_refused_without_being_quoted(payload: object, reason: str) -> None:
    with pytest.raises(PayloadNotEncodable, match=reason) as refused:
        encode(payload)
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_O_4_what_refers_to_itself_is_refused() -> None:
    endless_list: list[Any] = []
    endless_list.append(endless_list)
    endless_dict: dict[str, Any] = {}
    endless_dict["a"] = [endless_dict]
    for payload in (endless_list, endless_dict):
        with pytest.raises(PayloadNotEncodable, match="nested too deeply or refers to itself"):
            encode(payload)


def test_O_4_what_is_nested_deeply_is_encoded_or_refused() -> None:
    for depth in (10, 100, 1_000, 10_000, 100_000):
        payload: list[Any] = [None]
        for _ in range(depth):
            payload = [payload]
        try:
            encode(payload)
        except PayloadNotEncodable as refused:
            assert "nested too deeply" in str(refused)  # noqa: PT017 - which depth is refused depends on the interpreter
        while payload and payload[0] is not None:
            payload = payload[0]  # by hand: taking it apart in one go would overflow the interpreter's own stack


def test_O_4_an_error_in_a_models_own_code_is_not_quoted() -> None:
    class Careless(pydantic.BaseModel):
        @pydantic.model_serializer
        def fail(self) -> dict[str, Any]:
            raise TypeError(SECRET)

    class Hostile:
        def model_dump(self, mode: str) -> object:
            raise TypeError(SECRET + mode)

    for payload in (Careless(), Hostile(), {"inside": Hostile()}):
        with pytest.raises(PayloadNotEncodable, match="no JSON form") as refused:
            encode(payload)
        assert SECRET not in str(refused.value)


def test_null_and_the_word_null_are_no_nan() -> None:
    assert encode({"null": None, "x": ["null", 1.5]}).body == b'{"null":null,"x":["null",1.5]}'


@given(st.lists(st.none() | st.text(max_size=5) | st.binary(max_size=5), max_size=4))
def test_no_two_lists_of_parts_have_the_same_digest(parts: list[str | bytes | None]) -> None:
    framed = [part.encode() if isinstance(part, str) else part for part in parts]
    joined = b"".join(part for part in framed if part is not None)
    for other in ([], [None], [joined], [*framed, None], [*framed, b""], framed[:-1], [None, *framed]):
        assert (digest(*other) == digest(*framed)) == (other == framed)


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_a_digest_is_asked_for_texts_that_were_checked(text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        digest(text)
