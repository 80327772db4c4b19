"""Confluent's wire format: what is framed is read back, and no input does worse than be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.errors import PayloadNotDecodable
from postroom.rules.wire_format import (
    Subject,
    framed,
    indexes_to_bytes,
    is_json,
    subject_of,
    unframed,
    without_indexes,
)


@given(st.integers(0, 2**31 - 1), st.binary())
def test_what_is_framed_is_read_back(schema_id: int, data: bytes) -> None:
    assert unframed(framed(schema_id, data)) == (schema_id, data)


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=64), st.binary())
def test_the_place_of_a_message_type_is_read_back(indexes: list[int], data: bytes) -> None:
    assert without_indexes(indexes_to_bytes(indexes) + data) == (indexes, data)


@given(st.binary())
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (unframed, without_indexes):
        try:
            read(data)
        except PayloadNotDecodable as error:
            assert repr(data) not in str(error) or data == b""  # noqa: PT017 - that it raises is one way of two


def test_the_bytes_are_those_of_the_documentation() -> None:
    assert framed(258, b"x") == b"\x00\x00\x00\x01\x02x"
    assert indexes_to_bytes([0]) == b"\x00"
    assert indexes_to_bytes([1]) == b"\x02\x02"
    assert indexes_to_bytes([1, 0]) == b"\x04\x02\x00"
    assert indexes_to_bytes([100]) == b"\x02\xc8\x01"
    assert without_indexes(b"\x02\x00rest") == ([0], b"rest")  # the first type, written out in full


@pytest.mark.parametrize("payload", [None, b"", b"{}", b"\x00", b"\x00\x00\x00\x01", b"\x00\x80\x00\x00\x00x"])
def test_a_payload_without_a_schema_is_refused(payload: bytes | None) -> None:
    with pytest.raises(PayloadNotDecodable):
        unframed(payload)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\xff\xff\xff\xff\x0f", b"\x02", b"\x04\x02", b"\x80" * 9])
def test_a_payload_without_a_message_type_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadNotDecodable):
        without_indexes(data)


def test_subjects_are_named_as_confluents_are() -> None:
    subjects = {one: subject_of(one, "orders.created", "shop.Order") for one in Subject}
    assert subjects == {
        Subject.TOPIC: "orders.created-value",
        Subject.RECORD: "shop.Order",
        Subject.TOPIC_RECORD: "orders.created-shop.Order",
    }


def test_json_is_known_by_its_content_type() -> None:
    assert all(map(is_json, ["application/json", "Application/JSON; charset=utf-8", "application/cloudevents+json"]))
    assert not any(map(is_json, ["application/octet-stream", "application/vnd.confluent.avro", "", "json"]))
