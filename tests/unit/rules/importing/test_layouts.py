"""Which message a row of another outbox becomes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from postroom.rules.importing.layouts import (
    IMPORTED_FROM,
    LAYOUTS,
    RECORDED_AT,
    Column,
    Format,
    Kind,
    Left,
    Mapped,
    Wanted,
)

ID = UUID("0190f3f4-5a5b-7c4d-8e9f-0a1b2c3d4e5f")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = AT + timedelta(hours=1)

ROWS: dict[Format, dict[str, Any]] = {
    Format.DJANGO_OUTBOX_PATTERN: {
        "id": ID.hex,
        "destination": "orders.v1",
        "body": '{"n": 1.10}',
        "headers": '{"dop-msg-id": "x"}',
        "added": AT,
        "expires_at": LATER,
        "status": 1,
    },
    Format.FASTSTREAM_OUTBOX: {
        "id": 7,
        "queue": "orders",
        "payload": b'{"n": 1}',
        "headers": '{"content-type": "application/json", "correlation_id": "c"}',
        "created_at": AT,
        "next_attempt_at": AT,
        "timer_id": None,
    },
    Format.TXOUTBOX: {
        "id": 7,
        "topic": "orders",
        "key": "o-7",
        "payload": b'{"n": 1}',
        "headers": '{"tenant": "7"}',
        "created_at": AT.timestamp(),
    },
    Format.DEBEZIUM: {
        "id": str(ID),
        "aggregatetype": "Order",
        "aggregateid": "7",
        "type": "OrderCreated",
        "payload": '{"n": 1}',
    },
}


def mapped(format: Format, wanted: Wanted | None = None, **changed: Any) -> Mapped:
    found = LAYOUTS[format].mapped({**ROWS[format], **changed}, wanted or Wanted("outbox"))
    assert isinstance(found, Mapped)
    return found


def test_django_outbox_pattern_keeps_id_destination_body_and_expiry() -> None:
    assert mapped(Format.DJANGO_OUTBOX_PATTERN) == Mapped(
        id=ID,
        topic="orders.v1",
        payload=b'{"n": 1.10}',  # not parsed on the way, so that no number changes
        content_type="application/json",
        headers={"dop-msg-id": "x", RECORDED_AT: AT.isoformat()},
        expires_at=LATER,
    )


def test_faststream_outbox_keeps_queue_headers_schedule_and_timer() -> None:
    found = mapped(Format.FASTSTREAM_OUTBOX)
    assert (found.topic, found.content_type, found.deliver_at) == ("orders", "application/json", None)
    assert dict(found.headers) == {
        "correlation_id": "c",
        RECORDED_AT: AT.isoformat(),
        IMPORTED_FROM: "outbox/7",
    }
    later = mapped(Format.FASTSTREAM_OUTBOX, next_attempt_at=LATER, timer_id="t-1", headers=None)
    assert (later.deliver_at, later.headers["timer-id"], later.content_type) == (
        *(LATER, "t-1", "application/octet-stream"),
    )
    assert mapped(Format.FASTSTREAM_OUTBOX, next_attempt_at=None).deliver_at is None
    assert mapped(Format.FASTSTREAM_OUTBOX, created_at=None).deliver_at is None


def test_txoutbox_keeps_topic_key_and_headers() -> None:
    found = mapped(Format.TXOUTBOX)
    assert (found.topic, found.key, found.content_type) == ("orders", "o-7", "application/json")
    assert dict(found.headers) == {"tenant": "7", RECORDED_AT: AT.isoformat(), IMPORTED_FROM: "outbox/7"}
    assert mapped(Format.TXOUTBOX, key="").key is None
    assert mapped(Format.TXOUTBOX, payload=b"\xff").content_type == "application/octet-stream"
    said = mapped(Format.TXOUTBOX, headers='{"Content-Type": "text/csv"}')
    assert (said.content_type, "Content-Type" in said.headers) == ("text/csv", False)
    assert mapped(Format.TXOUTBOX, headers='{"content-type": ""}').content_type == "application/json"


def test_debezium_keeps_aggregate_type_and_id() -> None:
    found = mapped(Format.DEBEZIUM, Wanted("outboxevent", LAYOUTS[Format.DEBEZIUM].topic))
    assert found == Mapped(
        id=ID,
        topic="outbox.event.Order",
        payload=b'{"n": 1}',
        content_type="application/json",
        key="7",
        type="OrderCreated",
        aggregate_type="Order",
        aggregate_id="7",
        headers={"id": str(ID)},
    )
    full = mapped(Format.DEBEZIUM, timestamp=AT, tracingspancontext="traceparent=00-a-b-01\n", type="", payload="plain")
    assert dict(full.headers) == {"traceparent": "00-a-b-01", "id": str(ID), RECORDED_AT: AT.isoformat()}
    assert (full.type, full.content_type) == (None, "text/plain; charset=utf-8")
    assert mapped(Format.DEBEZIUM, payload=b"\x00avro").content_type == "application/octet-stream"
    assert mapped(Format.DEBEZIUM, payload=None).payload is None


@pytest.mark.parametrize("format", [Format.FASTSTREAM_OUTBOX, Format.TXOUTBOX])
def test_a_row_without_a_uuid_gets_one_that_is_always_the_same(format: Format) -> None:
    first = mapped(format).id
    assert first == mapped(format).id
    others = [
        mapped(format, id=8).id,
        mapped(format, created_at=LATER).id,  # the table was made anew, and counts from 1 again
        mapped(format, Wanted("other")).id,
    ]
    assert len({first, *others}) == 4
    assert mapped(Format.DEBEZIUM, id=7).id not in (ID, first)


def test_topic_content_type_and_headers_can_be_chosen() -> None:
    wanted = Wanted("outbox", "legacy.{topic}", "application/avro", ("tenant", "region"))
    found = mapped(Format.TXOUTBOX, wanted, **{"header:tenant": 9, "header:region": None})
    assert (found.topic, found.content_type, found.headers["tenant"]) == ("legacy.orders", "application/avro", "9")
    assert "region" not in found.headers


@pytest.mark.parametrize(
    ("format", "changed", "reason"),
    [
        (Format.DJANGO_OUTBOX_PATTERN, {"id": "7"}, "id is no UUID"),
        (Format.DJANGO_OUTBOX_PATTERN, {"expires_at": "soon"}, "expires_at is no moment"),
        (Format.FASTSTREAM_OUTBOX, {"headers": "[1]"}, "headers is no JSON object"),
        (Format.TXOUTBOX, {"topic": b"\xff"}, "topic is not valid UTF-8"),
        (Format.DEBEZIUM, {"aggregateid": None}, "aggregateid is NULL"),
    ],
)
def test_a_row_that_cannot_be_mapped_stays_with_the_reason(
    format: Format, changed: dict[str, Any], reason: str
) -> None:
    row = {**ROWS[format], **changed}
    expected = str(ID) if format in (Format.DEBEZIUM, Format.DJANGO_OUTBOX_PATTERN) and "id" not in changed else "7"
    assert LAYOUTS[format].mapped(row, Wanted("outbox")) == Left(expected, reason)


def test_every_layout_says_what_it_needs() -> None:
    assert set(LAYOUTS) == set(Format)
    for layout in LAYOUTS.values():
        assert {*layout.order, layout.addressed, layout.sized} <= set(layout.columns)
        assert layout.order[-1] == "id"
        assert layout.columns["id"].kind is Kind.ID
    assert not Column(Kind.TEXT, "topic").optional
