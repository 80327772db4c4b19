"""Message: an outgoing message, validated and immutable."""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypedDict, TypeVar

import msgspec
import uuid_utils.compat

from postroom import encoding
from postroom.decoding import decode
from postroom.errors import InvalidMessage
from postroom.rules.naming import LEDGER, RESERVED, is_ledger_header
from postroom.rules.replay import Entry

MAX_TEXT = 255
"""The longest topic, type, key, aggregate or idempotency key, in characters."""

Key = str | int | uuid.UUID

T = TypeVar("T")
Class: TypeAlias = type[T]
"""A class, where `type` is the name of a field."""


class Fields(TypedDict, total=False):
    """The optional fields of a message."""

    key: Key | None
    type: str | None
    aggregate_type: str | None
    aggregate_id: Key | None
    headers: Mapping[str, str] | None
    id: uuid.UUID | str | None
    idempotency_key: str | None
    deliver_at: datetime | None
    expires_at: datetime | None
    content_type: str | None
    ledger: Entry | None


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An immutable message. Make one with `Message.new`, which validates; the bare constructor does not."""

    id: uuid.UUID
    topic: str
    payload: bytes | None
    content_type: str
    type: str | None = None
    key: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    headers: Mapping[str, str] = {}
    idempotency_key: str | None = None
    digest: str | None = None
    deliver_at: datetime | None = None
    """Earliest delivery; None in a message that was read back, because its delivery row holds it."""
    expires_at: datetime | None = None
    position: int | None = None
    """Its position in the outbox; None until it is read back."""
    created_at: datetime | None = None
    """When it was recorded, by the database's clock; None until it is read back."""
    ledger: Entry | None = None
    """The keyed request that `add` hands to it; None in a message that was read back, where a header holds it."""
    duplicate: bool = False
    """True if `add` found the idempotency key in use by this same message, and wrote nothing."""

    @classmethod
    def new(  # noqa: PLR0913 - a message has that many fields, all but two by name
        cls,
        topic: str,
        payload: object = None,
        *,
        key: Key | None = None,
        type: str | None = None,
        aggregate_type: str | None = None,
        aggregate_id: Key | None = None,
        headers: Mapping[str, str] | None = None,
        id: uuid.UUID | str | None = None,
        idempotency_key: str | None = None,
        deliver_at: datetime | None = None,
        expires_at: datetime | None = None,
        content_type: str | None = None,
        ledger: Entry | None = None,
    ) -> Message:
        """Make a validated message with id, digest and trace context. Raises `InvalidMessage`, naming the field.

        ``payload``: see `postroom.encoding.encode`. ``key``: messages with the same key leave in the order in which
        they were added. ``idempotency_key``: a message with this key is recorded once. ``deliver_at``: do not send
        before then. ``expires_at``: do not send after then. ``ledger``: the entry of a keyed request whose work this
        message does. `add` hands the request to the message: its run can no longer finish it, and the relay confirms it
        when the message is sent. A request can be handed to one message only.
        """
        # Most messages have few of the fields: what is None need not be looked at by a function of its own.
        content_type = None if content_type is None else _text("content_type", content_type)
        body, content_type, canonical = encoding.encode(payload, content_type)
        topic = _text("topic", topic)
        kind = None if type is None else _text("type", type)
        key = None if key is None else _key("key", key)
        aggregate_type = None if aggregate_type is None else _text("aggregate_type", aggregate_type)
        aggregate_id = None if aggregate_id is None else _key("aggregate_id", aggregate_id)
        given = {} if headers is None else _headers(headers)
        if ledger is not None:
            given[LEDGER] = _place(ledger)
        if deliver_at is not None or expires_at is not None:
            deliver_at, expires_at = _span(deliver_at, expires_at)
        return cls(
            id=_id(id),
            topic=topic,
            payload=body,
            content_type=content_type,
            type=kind,
            key=key,
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            headers=_with_trace_context(given),
            idempotency_key=None if idempotency_key is None else _idempotency_key(idempotency_key),
            # What tells messages apart: where they go and what they say, without id and headers.
            digest=encoding.digest(topic, kind, aggregate_type, aggregate_id, key, content_type, canonical),
            deliver_at=deliver_at,
            expires_at=expires_at,
            ledger=ledger,
        )

    @property
    def size(self) -> int:
        """Bytes of payload and headers."""
        size = 0 if self.payload is None else len(self.payload)
        if self.headers:
            for name, value in self.headers.items():
                size += len(name.encode()) + len(value.encode())
        return size

    def json(self) -> Any:
        """Decode the payload from JSON. Raises `PayloadNotDecodable`."""
        return decode(self.payload)

    def decode(self, kind: Class[T]) -> T:
        """Decode the payload from JSON to this type, and validate it, like `Incoming.decode`."""
        decoded: T = decode(self.payload, kind)
        return decoded

    def __hash__(self) -> int:
        """Hash by id, because headers are a dict, which has no hash."""
        return hash(self.id)

    def __repr__(self) -> str:
        """Leave out payload and headers, which do not belong in logs."""
        return f"Message(id={self.id!s}, topic={self.topic!r}, key={self.key!r}, {self.size} bytes)"


def _text(name: str, value: object, *, control_characters: bool = False) -> str:
    """A non-empty, storable text of at most 255 characters."""
    if type(value) is str and 0 < len(value) <= MAX_TEXT and value.isprintable():  # almost all: nothing to refuse
        return value
    if not isinstance(value, str):
        raise InvalidMessage(f"{name} must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidMessage(f"{name} is empty: give it at least one character, or omit it if it is optional")
    if len(value) > MAX_TEXT:
        raise InvalidMessage(f"{name} has {len(value)} characters ({value[:20]!r}…): at most {MAX_TEXT} are allowed")
    return _storable(name, value, control_characters=control_characters)


def _optional(name: str, value: object) -> str | None:
    return None if value is None else _text(name, value)


_UNSTORABLE = {
    False: re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]"),  # topics and headers end up in protocol headers
    True: re.compile("[\x00\ud800-\udfff]"),
}


def _storable(name: str, value: str, *, control_characters: bool) -> str:
    """Refuse NUL, lone surrogates (not valid UTF-8) and, unless allowed, other control characters."""
    wrong = _UNSTORABLE[control_characters].search(value)
    if wrong:
        raise InvalidMessage(f"{name} holds the character {wrong[0]!r}, which cannot be stored or sent: remove it")
    return str.__str__(value)  # plain text: drivers would each write a member of a `(str, Enum)` in their own way


def _key(name: str, value: object) -> str:
    """Normalise a key: text, whole numbers and UUIDs become text."""
    if type(value) is str:
        return _text(name, value, control_characters=True)
    is_key = isinstance(value, str | int | uuid.UUID) or type(value).__name__ == "UUID"  # uuid_utils has its own class
    if isinstance(value, bool) or not is_key:
        raise InvalidMessage(f"{name} must be a str, int or UUID, not {type(value).__name__}")
    if isinstance(value, int):
        value = int(value)  # the number of an `(int, Enum)`
        if abs(value) >= 10**MAX_TEXT:  # Python limits the conversion of huge numbers
            raise InvalidMessage(f"{name} is a number of more than {MAX_TEXT} digits: at most {MAX_TEXT} are allowed")
    return _text(name, value if isinstance(value, str) else str(value), control_characters=True)


def _id(value: object) -> uuid.UUID:
    """The given id, or a new time-ordered one (UUIDv7)."""
    if value is None:
        return uuid_utils.compat.uuid7()
    try:
        return uuid.UUID(str(value))
    except ValueError:
        raise InvalidMessage(f"id must be a UUID, not {str(value)[:60]!r}: leave it out to get a new one") from None


def _moment(name: str, value: object) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidMessage(f"{name} must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None:
        raise InvalidMessage(
            f"{name} {value.isoformat()} has no time zone: use datetime.now(UTC) or .replace(tzinfo=…)"
        )
    try:
        moment = value.astimezone(UTC)
    except OverflowError:
        moment = None
    if moment is None or not 1000 <= moment.year <= 9998:  # noqa: PLR2004 - the range of every database
        raise InvalidMessage(f"{name} {value.isoformat()} is outside the years 1000 to 9998")
    return moment


def _span(deliver_at: object, expires_at: object) -> tuple[datetime | None, datetime | None]:
    """When a message may leave: not before the one, not after the other."""
    deliver, expire = _moment("deliver_at", deliver_at), _moment("expires_at", expires_at)
    if deliver and expire and expire <= deliver:
        raise InvalidMessage(f"expires_at {expire} is not after deliver_at {deliver}: it could never be sent")
    return deliver, expire


def _place(entry: object) -> str:
    if not isinstance(entry, Entry):
        raise InvalidMessage(f"ledger must be the entry that ledger.begin returned, not {type(entry).__name__}")
    return msgspec.json.encode((entry.scope, entry.key, entry.digest)).decode()


def _headers(given: object) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidMessage(f"headers must be a mapping of str to str, not {type(given).__name__}")
    headers: dict[str, str] = {}
    for name, value in given.items():
        plain_name = _text("a header's name", name)
        if not isinstance(value, str):
            raise InvalidMessage(f"header {plain_name!r} must be a str, not {type(value).__name__}")
        if is_ledger_header(plain_name):
            raise InvalidMessage(f"header {plain_name!r} is Postroom's own: give the entry as ledger=… instead")
        headers[plain_name] = _storable(f"header {plain_name!r}", value, control_characters=False)
    return headers


def check_stored(message: Message) -> None:
    """Raise `InvalidMessage` if a message that was read back could not have been made by `new`."""
    _text("topic", message.topic)
    _text("content_type", message.content_type)
    _optional("type", message.type)
    _optional("aggregate_type", message.aggregate_type)
    for name in ("key", "aggregate_id", "idempotency_key", "digest"):
        value = getattr(message, name)
        if value is not None:
            _text(name, value, control_characters=True)
    _headers({name: value for name, value in message.headers.items() if name != LEDGER})


def _with_trace_context(headers: dict[str, str]) -> dict[str, str]:
    """Add the W3C trace context of the current span. An application that never imported OpenTelemetry has none."""
    if "opentelemetry.trace" not in sys.modules or "traceparent" in map(str.lower, headers):
        return headers
    from opentelemetry.trace.propagation.tracecontext import (
        TraceContextTextMapPropagator,
    )

    TraceContextTextMapPropagator().inject(headers)
    return headers


def _idempotency_key(value: object) -> str:
    key = unique_key("idempotency_key", value)
    if key.startswith(RESERVED):
        raise InvalidMessage(
            f"idempotency_key {key[:40]!r} starts with {RESERVED!r}, which is reserved for Postroom: choose another"
        )
    return key


def unique_key(name: str, value: object) -> str:
    """Normalise a text, whole number or UUID to text of 1 to 255 characters that is unique in every database.

    Raises `InvalidMessage`.
    """
    if value is None:
        raise InvalidMessage(f"{name} is None: give a str, int or UUID")
    key = _key(name, value)
    if key.endswith(" "):
        raise InvalidMessage(f"{name} {key[-20:]!r} ends with a space, which MySQL ignores: strip it")
    return key
