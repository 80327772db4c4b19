"""Values of other outboxes, as every driver returns them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from postroom.rules.importing import values
from postroom.rules.importing.values import NotMappable

ID = UUID("0190f3f4-5a5b-7c4d-8e9f-0a1b2c3d4e5f")
AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def test_texts_may_come_as_bytes_but_must_be_utf8() -> None:
    assert [values.text("x", one) for one in ("é", "é".encode(), bytearray(b"a"), 7)] == ["é", "é", "a", "7"]
    assert (values.optional_text("x", None), values.optional_text("x", b"a")) == (None, "a")
    with pytest.raises(NotMappable, match="key is not valid UTF-8"):
        values.text("key", b"\xff")
    with pytest.raises(NotMappable, match="topic is NULL"):
        values.text("topic", None)


def test_a_payload_keeps_its_bytes() -> None:
    assert [values.payload(one) for one in (None, b"\xff", memoryview(b"m"), "é")] == [
        None,
        b"\xff",
        b"m",
        "é".encode(),
    ]


@pytest.mark.parametrize("body", [b"{}", b" [1]", b'{"a": "\xc3\xa9"}'])
def test_objects_and_arrays_are_json(body: bytes) -> None:
    assert values.is_json(body)


@pytest.mark.parametrize("body", [None, b"", b"1", b"[hello]", b"{\xff}", b"[" * 100_000])
def test_nothing_else_is_taken_for_json(body: bytes | None) -> None:
    assert not values.is_json(body)


def test_a_uuid_is_recognised_however_it_is_stored() -> None:
    for stored in (ID, str(ID), ID.hex, ID.hex.encode(), str(ID).encode(), ID.bytes, memoryview(ID.bytes)):
        assert values.uuid("id", stored) == ID


@pytest.mark.parametrize("stored", ["7", b"\xff", None])
def test_what_is_no_uuid_is_refused(stored: object) -> None:
    assert values.as_uuid(stored) is None
    with pytest.raises(NotMappable, match="id is no UUID"):
        values.uuid("id", stored)


@pytest.mark.parametrize(
    "stored",
    [
        AT,
        AT.replace(tzinfo=None),
        AT.astimezone(timezone(timedelta(hours=5))),
        "2026-01-02 03:04:05.678",
        b"2026-01-02T03:04:05.678+00:00",
        AT.timestamp(),
        int(AT.timestamp() * 1000),
        int(AT.timestamp() * 1_000_000),
    ],
)
def test_a_moment_is_in_utc_however_it_is_stored(stored: object) -> None:
    assert values.moment("at", stored) == AT


def test_what_is_no_moment_is_refused() -> None:
    assert values.moment("at", None) is None
    for stored in ("yesterday", b"\xff", float("nan"), float("inf"), 10**30):
        with pytest.raises(NotMappable, match="added is no moment"):
            values.moment("added", stored)


def test_headers_become_texts() -> None:
    stored = '{"a": "x", "n": 1, "yes": true, "none": null, "deep": {"b": [1]}}'
    expected = {"a": "x", "n": "1", "yes": "true", "deep": '{"b": [1]}'}
    assert values.headers("headers", stored) == values.headers("headers", stored.encode()) == expected
    assert values.headers("headers", None) == {}
    for wrong in ("[]", "{", "[" * 100_000, b"\xff"):
        with pytest.raises(NotMappable, match="headers is no"):
            values.headers("headers", wrong)


def test_java_properties_are_read() -> None:
    written = "#Mon Jan 01\n!note\n\ntraceparent=00-a-b-01\nurl=http\\://x\nnonsense\n"
    assert values.properties(written) == {"traceparent": "00-a-b-01", "url": "http://x"}
