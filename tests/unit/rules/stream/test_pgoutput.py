"""What PostgreSQL sends is decoded as it was written. That a server sends this is shown by the acceptance tests."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.ordering import NO_LANE, key_hash, lane_of
from postroom.rules.stream import stream_rows
from postroom.rules.stream.pgoutput import (
    Begin,
    Commit,
    Decoder,
    Keepalive,
    LogMessage,
    NotUnderstood,
    Relation,
    acknowledgement,
)
from postroom.rules.stream.stream_rows import StreamRow

COLUMNS = (
    *("position", "id", "queue", "topic", "type", "aggregate_type", "aggregate_id", "ordering_key", "payload"),
    *("content_type", "headers", "idempotency_key", "digest", "created_at", "expires_at"),
)
ID = UUID("0199a0d2-0000-7000-8000-000000000001")
PAYLOAD = COLUMNS.index("payload")
SINCE_2000 = 800_000_000_123_456
AT = datetime(2025, 5, 8, 6, 13, 20, 123456, tzinfo=UTC)


def logged(change: bytes) -> bytes:
    return b"w" + bytes(24) + change


def relation(columns: tuple[str, ...] = COLUMNS) -> bytes:
    described = b"".join(b"\0" + name.encode() + b"\0" + struct.pack(">Ii", 25, -1) for name in columns)
    return logged(b"R" + struct.pack(">I", 1) + b"postroom\0outbox\0d" + struct.pack(">H", len(columns)) + described)


def insert(values: list[bytes | None]) -> bytes:
    written = b"".join(b"n" if one is None else b"b" + struct.pack(">i", len(one)) + one for one in values)
    return logged(b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">H", len(values)) + written)


def row(**changed: bytes | None) -> list[bytes | None]:
    values: dict[str, bytes | None] = dict.fromkeys(COLUMNS)
    values |= {
        "position": struct.pack(">q", 7),
        "id": ID.bytes,
        "queue": b"default",
        "topic": b"orders",
        "content_type": b"application/json",
        "created_at": struct.pack(">q", SINCE_2000),
    }
    return [*(values | changed).values()]


def decoded(values: list[bytes | None], columns: tuple[str, ...] = COLUMNS) -> StreamRow:
    decoder = Decoder()
    assert decoder.decode(relation(columns)) == Relation(columns)
    change = decoder.decode(insert(values))
    assert isinstance(change, StreamRow)
    return change


def test_a_message_without_a_key() -> None:
    assert decoded(row(payload=b"{}")) == StreamRow(
        position=7,
        lane=NO_LANE,
        key_hash=None,
        size=2,
        queue="default",
        columns=(
            *(7, 0, 0, 0, 0, False, ID, "orders", b"{}", "application/json", None, None, None, None, None, None),
            *(None, None, AT),
        ),
    )


@given(st.text(min_size=1, max_size=50).filter(lambda key: "\0" not in key), st.binary(max_size=200))
def test_a_message_with_everything(key: str, payload: bytes) -> None:
    headers = '{"name": "välue"}'
    found = decoded(
        row(
            payload=payload,
            ordering_key=key.encode(),
            headers=b"\x01" + headers.encode(),
            type=b"Created",
            aggregate_type=b"order",
            aggregate_id=b"9",
            idempotency_key=b"once",
            digest=b"d" * 64,
            expires_at=struct.pack(">q", SINCE_2000),
        )
    )
    hashed = key_hash(key)
    assert (found.key_hash, found.lane) == (hashed, lane_of(hashed))
    assert found.size == len(payload) + len(headers.encode())
    columns: tuple[Any, ...] = found.columns
    assert columns[8:] == (
        *(payload, "application/json", "Created", key, "order", "9", headers, "once", "d" * 64, AT, AT),
    )


def test_the_columns_may_come_in_any_order_and_with_others() -> None:
    backwards = tuple(reversed(COLUMNS))
    assert decoded([*reversed(row(payload=b"1"))], backwards) == decoded(row(payload=b"1"))
    assert decoded([b"other", *row(payload=b"1"), None], ("a", *COLUMNS, "b")) == decoded(row(payload=b"1"))


TEXT = st.sampled_from(["", "a", "b", "topic", "ü" * 200, "x" * 255, "x" * 254 + "y"])
ROWS = st.builds(
    row,
    queue=TEXT.map(str.encode),
    topic=TEXT.map(str.encode),
    type=st.none() | TEXT.map(str.encode),
    aggregate_type=st.none() | TEXT.map(str.encode),
    payload=st.none() | st.binary(max_size=70),
    content_type=TEXT.map(str.encode),
    idempotency_key=st.none() | TEXT.map(str.encode),
    digest=st.sampled_from([None, b"d" * 64, b"d" * 63, "ü".encode() * 64]),
    created_at=st.sampled_from([None, struct.pack(">q", SINCE_2000)]),
    expires_at=st.sampled_from([None, struct.pack(">q", SINCE_2000)]),
)


@given(st.lists(ROWS, max_size=12))
def test_what_came_before_a_row_makes_no_difference(rows: list[list[bytes | None]]) -> None:
    decoder = Decoder()
    decoder.decode(relation())
    assert [decoder.decode(insert(one)) for one in rows] == [decoded(one) for one in rows]
    for one, values in zip(rows, (decoded(one).columns for one in rows), strict=True):
        _, _, queue, topic, kind, aggregate, _, _, payload, content_type, _, idempotency_key, digest, _, _ = (
            value if number == PAYLOAD or value is None else value.decode(errors="replace")
            for number, value in enumerate(one)
        )
        assert decoded(one).queue == queue
        assert values[7:11] == (topic, payload, content_type, kind)
        assert (values[12], *values[15:17]) == (aggregate, idempotency_key, digest)


def test_rows_with_the_same_names_follow_each_other() -> None:
    decoder = Decoder()
    decoder.decode(relation())
    rows = [row(payload=b"1"), row(payload=b"2"), row(payload=b"3", topic=b"bills"), row(payload=b"4")]
    assert [decoder.decode(insert(one)) for one in rows] == [decoded(one) for one in rows]


def test_names_are_forgotten_if_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_rows, "MOST_NAMES", 2)
    decoder = Decoder()
    decoder.decode(relation())
    for topic in ("a", "b", "c", "d", "a", "b"):
        change = decoder.decode(insert(row(topic=topic.encode())))
        assert isinstance(change, StreamRow)
        assert change.columns[7] == topic


@pytest.mark.parametrize("never", [2**63 - 1, -(2**63), 2**62])
def test_a_moment_that_cannot_be_told_is_none(never: int) -> None:
    assert decoded(row(expires_at=struct.pack(">q", never))).columns[17] is None


def test_what_surrounds_the_rows() -> None:
    decoder = Decoder()
    assert decoder.decode(logged(b"B" + struct.pack(">QqI", 77, 0, 1))) == Begin(77)
    assert decoder.decode(logged(b"C\0" + struct.pack(">QQq", 77, 99, SINCE_2000))) == Commit(99, AT.timestamp())
    assert decoder.decode(b"k" + struct.pack(">QqB", 5, 0, 1)) == Keepalive(5, reply=True)
    assert decoder.decode(b"k" + struct.pack(">QqB", 5, 0, 0)) == Keepalive(5, reply=False)
    assert decoder.decode(logged(b"O" + bytes(8) + b"origin\0")) is None


def test_what_was_not_asked_for_is_refused() -> None:
    with pytest.raises(NotUnderstood, match="kind 120"):
        Decoder().decode(b"x")
    with pytest.raises(NotUnderstood, match="before its table"):
        Decoder().decode(insert(row()))
    with pytest.raises(NotUnderstood, match="lacks digest, headers"):
        Decoder().decode(relation(tuple(name for name in COLUMNS if name not in {"headers", "digest"})))


def test_an_acknowledgement_names_the_place_three_times() -> None:
    written, flushed, applied, clock, reply = struct.unpack(">QQQqB", acknowledgement(9, AT.timestamp())[1:])
    assert (written, flushed, applied, reply) == (9, 9, 9, 0)
    assert abs(clock - SINCE_2000) < 2
    assert acknowledgement(9, 0.0, reply=True)[-1] == 1


def test_a_message_of_the_log_counts_if_its_transaction_does() -> None:
    written = struct.pack(">Q", 77) + b"postroom:x\0" + struct.pack(">i", 2) + b"hi"
    assert Decoder().decode(logged(b"M\x01" + written)) == LogMessage(77, "postroom:x", b"hi")
    assert Decoder().decode(logged(b"M\x00" + written)) is None
