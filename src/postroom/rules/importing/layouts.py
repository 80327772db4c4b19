"""Layouts: the tables of other outboxes, column by column, and which message a row becomes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from postroom.rules.importing import values
from postroom.rules.importing.values import NotMappable
from postroom.rules.naming import RESERVED_HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

JSON, TEXT, BINARY = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
IMPORTED_FROM = f"{RESERVED_HEADERS}imported-from"
"""Header of an imported message whose row had no UUID: the table and the row's id."""
RECORDED_AT = f"{RESERVED_HEADERS}recorded-at"
"""Header of an imported message: when its row was written."""
TOPIC = "{topic}"
"""In a template: the topic, queue or destination that the row names."""
CONTENT_TYPE = "content-type"
_NAMESPACE = UUID("6f0c6d5e-8a43-5d0e-9b43-3f7c6c1f1f52")


class Format(StrEnum):
    """An outbox that messages can be imported from."""

    DJANGO_OUTBOX_PATTERN = "django-outbox-pattern"
    FASTSTREAM_OUTBOX = "faststream-outbox"
    TXOUTBOX = "txoutbox"
    DEBEZIUM = "debezium"


class Kind(StrEnum):
    """What a column holds."""

    ID = "id"
    TEXT = "text"
    BYTES = "bytes"
    MOMENT = "moment"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of another outbox, by the name that it has there by default."""

    kind: Kind
    becomes: str
    """What of the message it becomes, for people; empty for a column that only says where a row stands."""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a row says, as the fields of a message."""

    id: UUID
    topic: str
    payload: bytes | None
    content_type: str
    key: str | None = None
    type: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    deliver_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """A row that stays where it is."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """How rows of a table become messages."""

    table: str
    """Its name: with it, rows that have no UUID get one of their own."""
    topic: str = TOPIC
    """The topic, made from the one that the row names."""
    content_type: str | None = None
    """Of all payloads; None to go by what they are."""
    headers: tuple[str, ...] = ()
    """Headers that come from columns of their own, called ``header:NAME`` in a row."""


@dataclass(frozen=True, slots=True)
class Layout:
    """A table of another outbox."""

    table: str
    """Its name by default."""
    databases: tuple[str, ...]
    columns: Mapping[str, Column]
    order: tuple[str, ...]
    """The columns in whose order rows were written; optional ones only count if they are there."""
    addressed: str
    """The column that says where a row goes."""
    sized: str
    """The column that holds the payload."""
    held: str
    """Why a row is not taken, for people; empty if every row is."""
    has_leases: bool
    beside: str
    """Who sends what while the other outbox still runs, for people."""
    read: Callable[[Mapping[str, Any], Wanted], Mapped]
    topic: str = TOPIC

    def mapped(self, row: Mapping[str, Any], wanted: Wanted) -> Mapped | Left:
        """The message that a row becomes, or why it stays."""
        try:
            found = self.read(row, wanted)
            given = {name: values.optional_text(name, row.get(f"header:{name}")) for name in wanted.headers}
        except NotMappable as reason:
            return Left(shown_id(row["id"]), str(reason))
        extra = {name: value for name, value in given.items() if value is not None}
        return replace(
            found,
            topic=wanted.topic.replace(TOPIC, found.topic),
            content_type=wanted.content_type or found.content_type,
            headers={**found.headers, **extra},
        )


def shown_id(identifier: object) -> str:
    """A row's id for people."""
    found = values.as_uuid(identifier)
    return str(identifier) if found is None else str(found)


def _recorded(at: datetime | None) -> dict[str, str]:
    return {} if at is None else {RECORDED_AT: at.isoformat()}


def _own_id(table: str, identifier: object, at: datetime | None) -> UUID:
    """Always the same for the same row, and another one in a table that was made anew."""
    return uuid5(_NAMESPACE, f"{table}\n{identifier}\n{'' if at is None else at.isoformat()}")


def _content_type(headers: dict[str, str]) -> str | None:
    """The content type that headers name, which it is taken out of."""
    named = next((name for name in headers if name.lower() == CONTENT_TYPE), None)
    return None if named is None else headers.pop(named) or None


def _of_django_outbox_pattern(row: Mapping[str, Any], wanted: Wanted) -> Mapped:
    del wanted
    return Mapped(
        id=values.uuid("id", row["id"]),
        topic=values.text("destination", row["destination"]),
        payload=values.payload(values.text("body", row["body"])),
        content_type=JSON,
        headers={
            **values.headers("headers", row.get("headers")),
            **_recorded(values.moment("added", row["added"])),
        },
        expires_at=values.moment("expires_at", row["expires_at"]),
    )


def _of_faststream_outbox(row: Mapping[str, Any], wanted: Wanted) -> Mapped:
    at, due = values.moment("created_at", row["created_at"]), values.moment("next_attempt_at", row["next_attempt_at"])
    headers = values.headers("headers", row["headers"])
    content_type = _content_type(headers)
    timer = values.optional_text("timer_id", row.get("timer_id"))
    return Mapped(
        id=_own_id(wanted.table, row["id"], at),
        topic=values.text("queue", row["queue"]),
        payload=values.payload(row["payload"]),
        content_type=content_type or BINARY,
        headers={
            **headers,
            **({} if timer is None else {"timer-id": timer}),
            **_recorded(at),
            IMPORTED_FROM: f"{wanted.table}/{row['id']}",
        },
        deliver_at=due if at is not None and due is not None and due > at else None,
    )


def _of_txoutbox(row: Mapping[str, Any], wanted: Wanted) -> Mapped:
    at = values.moment("created_at", row["created_at"])
    headers, body = values.headers("headers", row["headers"]), values.payload(row["payload"])
    content_type = _content_type(headers)
    return Mapped(
        id=_own_id(wanted.table, row["id"], at),
        topic=values.text("topic", row["topic"]),
        payload=body,
        content_type=content_type or (JSON if values.is_json(body) else BINARY),
        key=values.optional_text("key", row["key"]) or None,
        headers={**headers, **_recorded(at), IMPORTED_FROM: f"{wanted.table}/{row['id']}"},
    )


def _of_debezium(row: Mapping[str, Any], wanted: Wanted) -> Mapped:
    at = values.moment("timestamp", row.get("timestamp"))
    body = values.payload(row["payload"])
    identifier, key = values.as_uuid(row["id"]), values.text("aggregateid", row["aggregateid"])
    aggregate = values.text("aggregatetype", row["aggregatetype"])
    by_content = JSON if values.is_json(body) else TEXT if isinstance(row["payload"], str) else BINARY
    traced = values.optional_text("tracingspancontext", row.get("tracingspancontext"))
    return Mapped(
        id=_own_id(wanted.table, row["id"], at) if identifier is None else identifier,
        topic=aggregate,
        payload=body,
        content_type=by_content,
        key=key,
        type=values.optional_text("type", row.get("type")) or None,
        aggregate_type=aggregate,
        aggregate_id=key,
        headers={**values.properties(traced or ""), "id": shown_id(row["id"]), **_recorded(at)},
    )


LAYOUTS: Mapping[Format, Layout] = {
    Format.DJANGO_OUTBOX_PATTERN: Layout(
        table="published",
        databases=("postgresql", "mysql", "sqlite"),
        columns={
            "id": Column(Kind.ID, "id"),
            "destination": Column(Kind.TEXT, "topic"),
            "body": Column(Kind.TEXT, "payload, as JSON"),
            "headers": Column(Kind.TEXT, "headers", optional=True),
            "added": Column(Kind.MOMENT, f"header {RECORDED_AT}; the order"),
            "expires_at": Column(Kind.MOMENT, "expires_at"),
            "status": Column(Kind.NUMBER, "2 when imported"),
        },
        order=("added", "id"),
        addressed="destination",
        sized="body",
        held="expired",
        has_leases=False,
        beside="rows that `manage.py publish` has locked are left to it; on SQLite, stop it first",
        read=_of_django_outbox_pattern,
    ),
    Format.FASTSTREAM_OUTBOX: Layout(
        table="outbox",
        databases=("postgresql",),
        columns={
            "id": Column(Kind.ID, f"id, derived; header {IMPORTED_FROM}; the order"),
            "queue": Column(Kind.TEXT, "topic"),
            "payload": Column(Kind.BYTES, "payload"),
            "headers": Column(Kind.TEXT, "headers, content type"),
            "created_at": Column(Kind.MOMENT, f"header {RECORDED_AT}"),
            "next_attempt_at": Column(Kind.MOMENT, "deliver_at, if it is after created_at"),
            "timer_id": Column(Kind.TEXT, "header timer-id", optional=True),
            "acquired_token": Column(Kind.TEXT, ""),
        },
        order=("id",),
        addressed="queue",
        sized="payload",
        held="leased by a subscriber",
        has_leases=True,
        beside="rows that a subscriber has leased are left to it",
        read=_of_faststream_outbox,
    ),
    Format.TXOUTBOX: Layout(
        table="outbox",
        databases=("postgresql", "sqlite"),
        columns={
            "id": Column(Kind.ID, f"id, derived; header {IMPORTED_FROM}; the order"),
            "topic": Column(Kind.TEXT, "topic"),
            "key": Column(Kind.TEXT, "key"),
            "payload": Column(Kind.BYTES, "payload"),
            "headers": Column(Kind.TEXT, "headers, content type"),
            "created_at": Column(Kind.MOMENT, f"header {RECORDED_AT}"),
            "status": Column(Kind.NUMBER, "done when imported"),
            "leased_by": Column(Kind.NUMBER, ""),
            "lease_until": Column(Kind.NUMBER, ""),
        },
        order=("id",),
        addressed="topic",
        sized="payload",
        held="leased by a relay, or behind such a row on their key",
        has_leases=True,
        beside="rows that a relay has leased, and those behind them on their keys, are left to it; stop it to keep "
        "the order of keys",
        read=_of_txoutbox,
    ),
    Format.DEBEZIUM: Layout(
        table="outboxevent",
        databases=("postgresql", "mysql"),
        columns={
            "id": Column(Kind.ID, "id, derived unless it is a UUID; header id"),
            "aggregatetype": Column(Kind.TEXT, "topic, aggregate_type"),
            "aggregateid": Column(Kind.TEXT, "key, aggregate_id"),
            "type": Column(Kind.TEXT, "type", optional=True),
            "payload": Column(Kind.BYTES, "payload"),
            "timestamp": Column(Kind.MOMENT, f"header {RECORDED_AT}; the order", optional=True),
            "tracingspancontext": Column(Kind.TEXT, "headers, such as traceparent", optional=True),
        },
        order=("timestamp", "id"),
        addressed="aggregatetype",
        sized="payload",
        held="",
        has_leases=False,
        beside="every row is taken: stop the connector first, or both send it",
        read=_of_debezium,
        topic=f"outbox.event.{TOPIC}",
    ),
}
