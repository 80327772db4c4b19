"""Read rows as messages. A producer in plain SQL may have written anything: only the unreadable message goes dead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import msgspec

from postroom.errors import InvalidMessage
from postroom.message import MAX_TEXT, Message, check_stored
from postroom.rules.failures import Reason, cut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from postroom.store.sql.dialect import Dialect
    from postroom.store.sql.steps import Row

MESSAGE_COLUMNS = (
    "id",
    "topic",
    "payload",
    "content_type",
    "type",
    "ordering_key",
    "aggregate_type",
    "aggregate_id",
    "headers",
    "idempotency_key",
    "digest",
    "expires_at",
    "created_at",
)
MOST_KNOWN = 1000
"""Combinations of topic and type that are remembered as valid. Mostly few; if not, remembering them is no use."""
NO_ID = UUID(int=0)


def columns(alias: str, dialect: Dialect) -> str:
    """The message columns for a SELECT: headers as text, and moments that drivers can read."""
    special = {
        # As text, because SQLAlchemy makes asyncpg decode JSON in Python: a fifth of a relay's time.
        "headers": f"{alias}.headers::text" if dialect.name == "postgresql" else f"{alias}.headers",
        # An expiry beyond what Python can represent never comes; whether one has passed, the database says.
        "expires_at": dialect.readable(f"{alias}.expires_at"),
        "created_at": dialect.readable(f"{alias}.created_at"),
    }
    return ", ".join(special.get(column, f"{alias}.{column}") for column in MESSAGE_COLUMNS)


class Unreadable(Message, frozen=True, kw_only=True, gc=False):
    """Stands for a message that is missing or unreadable: what is known of it, and why it is dead."""

    code: str
    problem: str


GONE = Unreadable(
    id=NO_ID,
    topic="",
    payload=None,
    content_type="",
    code=Reason.MESSAGE_MISSING,
    problem="the message of this delivery is gone",
)


class Reader:
    """Turns rows into messages: position, five columns of the delivery, and `MESSAGE_COLUMNS` (NULL if missing).

    Checks cheaply what every publisher relies on, and closely only what is unusual.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._moment = dialect.read_moment
        self._is_sqlite = dialect.name == "sqlite"
        self._known: set[tuple[str | None, ...]] = set()

    def messages(self, rows: Sequence[Row]) -> list[Message]:
        """All messages of a batch. Reads row by row only if the quick way fails."""
        read = self._message
        try:
            return [read(row) for row in rows]
        except Exception:  # noqa: BLE001 - the row that causes it is found below
            return [self.message(row) for row in rows]

    def message(self, row: Row) -> Message:
        """The message, or an `Unreadable` in its place."""
        try:
            return self._message(row)
        except Exception as error:  # noqa: BLE001 - anyone may have written the row
            return self._unreadable(row, error)

    def _message(self, row: Row) -> Message:
        # fmt: off
        (
            position, _, _, _, _, _, id_, topic, payload, content_type, kind, key, aggregate_type, aggregate_id,
            headers, idempotency_key, digest, expires_at, created_at,
        ) = row
        # fmt: on
        if id_ is None:
            return msgspec.structs.replace(GONE, position=position)  # nothing else is known
        if headers == "{}":  # as mostly
            headers = None
        message = Message(
            position=position,
            id=id_ if isinstance(id_, UUID) else _read_uuid(id_),
            topic=topic,
            payload=payload if type(payload) is bytes or payload is None else as_bytes(payload),
            content_type=content_type,
            type=kind,
            key=key,
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            headers=_decode_headers(headers) if headers else {},
            idempotency_key=idempotency_key,
            digest=digest,
            expires_at=None if expires_at is None else self._moment(expires_at),
            created_at=self._moment(created_at),
        )
        if (
            (topic, content_type, kind, aggregate_type) not in self._known
            or (key is not None and not (0 < len(key) <= MAX_TEXT and key.isprintable()))
            or (aggregate_id is not None and not (0 < len(aggregate_id) <= MAX_TEXT and aggregate_id.isprintable()))
            or (headers and ("\\" in headers or "\x7f" in headers or not (headers.isascii() or headers.isprintable())))
            or (self._is_sqlite and not _typed_well(message, expires_at, created_at, (idempotency_key, digest)))
        ):
            self._look_closely(message, expires_at, created_at)
        return message

    def _look_closely(self, message: Message, expires_at: object, created_at: object) -> None:
        """Raise `InvalidMessage` for what `Message.new` would refuse."""
        check_stored(message)
        if self._is_sqlite:
            _check_moment("expires_at", expires_at, message.expires_at)
            _check_moment("created_at", created_at, message.created_at)
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        self._known.add((message.topic, message.content_type, message.type, message.aggregate_type))

    def _unreadable(self, row: Row, error: Exception) -> Unreadable:
        stored = dict(zip(MESSAGE_COLUMNS, row[-len(MESSAGE_COLUMNS) :], strict=True))
        return Unreadable(
            position=row[0],
            id=uuid_of(stored["id"]) or NO_ID,
            topic=shown(stored["topic"]) or "",
            payload=stored["payload"] if isinstance(stored["payload"], bytes) else None,
            content_type=shown(stored["content_type"]) or "",
            type=shown(stored["type"]),
            key=shown(stored["ordering_key"]),
            aggregate_type=shown(stored["aggregate_type"]),
            aggregate_id=shown(stored["aggregate_id"]),
            idempotency_key=shown(stored["idempotency_key"]),
            digest=shown(stored["digest"]),
            expires_at=self._moment(stored["expires_at"]),
            created_at=self._moment(stored["created_at"]),
            code=Reason.UNDECODABLE,
            problem=_problem(stored, error),
        )


_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
_decode_headers = msgspec.json.Decoder(dict[_Name, str]).decode


def headers_of(value: Any) -> dict[str, str]:
    """A message's headers as the database returns them; empty if unreadable."""
    try:
        return msgspec.convert(value, dict[str, str]) if isinstance(value, dict) else _decode_headers(value)
    except (msgspec.DecodeError, TypeError, RecursionError, UnicodeError):
        return {}


def as_bytes(payload: Any) -> bytes:
    """A payload as some drivers return it, or as text, which SQLite stores if given."""
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidMessage(f"payload is a number ({type(payload).__name__}), not bytes: write it as a BLOB")


def _read_uuid(value: object) -> UUID:
    try:
        return msgspec.convert(value, UUID)  # twice as fast
    except msgspec.ValidationError:
        return UUID(str(value))


def uuid_of(value: object) -> UUID | None:
    """The id of a message; None if what is stored is not a UUID."""
    try:
        return value if isinstance(value, UUID) else UUID(str(value))
    except ValueError:
        return None


def shown(value: object) -> str | None:
    """A value as text that can be shown and stored, whatever it was."""
    if value is None:
        return None
    return cut(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value), MAX_TEXT)


def _typed_well(message: Message, expires_at: object, created_at: object, texts: tuple[object, ...]) -> bool:
    """SQLite stores bytes in text columns, and anything as a moment."""
    return (
        (message.expires_at is not None or not expires_at)
        and (message.created_at is not None or not created_at)
        and bytes not in map(type, texts)
    )


def _check_moment(name: str, stored: object, read: datetime | None) -> None:
    if stored and read is None:
        raise InvalidMessage(f"{name} {shown(stored)!r} is not a time: write it like 2030-01-02 03:04:05.678")


def _problem(stored: dict[str, Any], error: Exception) -> str:
    """Why it cannot be read, without quoting its contents."""
    if isinstance(error, InvalidMessage):
        return str(error)
    if uuid_of(stored["id"]) is None:
        return f"id {shown(stored['id'])!r} is not a UUID"
    if isinstance(error, msgspec.DecodeError):
        return f"headers are not a JSON object of strings: {error}"
    wrong = [name for name, value in stored.items() if isinstance(value, bytes) and name != "payload"]
    return f"{wrong[0]} is bytes, not text" if wrong else f"it cannot be read ({type(error).__name__})"
