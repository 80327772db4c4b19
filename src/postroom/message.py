"""Message: the envelope of one fact that a service tells the world."""

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
    """What a message may carry beside its topic and payload."""

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
    """Not before then; None when it is read back, for then it is the delivery's matter."""
    expires_at: datetime | None = None
    position: int | None = None
    """Its place in the outbox; None until it is read back."""
    created_at: datetime | None = None
    """When the database recorded it, by the database's clock; None until it is read back."""
    ledger: Entry | None = None
    """The keyed request that is left to it by `add`; None when it is read back, for then a header has its place."""
    duplicate: bool = False
    """True where `add` found the idempotency key in use by this same message and wrote nothing."""

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
        """A validated message with its id, digest and trace context. Raises `InvalidMessage`, naming the field.

        ``key``: messages with the same key leave in the order they were added. ``idempotency_key``: recorded once.
        ``ledger``: the entry of a keyed request whose work this message does. `add` leaves the request to it: its run
        can end it no more, and it is confirmed when the message is sent. One message for a request.
        ``deliver_at``: not before then. ``expires_at``: not after then. ``payload``: see `postroom.encoding.encode`.
        """
        encoded = encoding.encode(payload, _optional("content_type", content_type))
        message = cls(
            id=_id(id),
            topic=_text("topic", topic),
            payload=encoded.body,
            content_type=encoded.content_type,
            type=_optional("type", type),
            key=_key("key", key),
            aggregate_type=_optional("aggregate_type", aggregate_type),
            aggregate_id=_key("aggregate_id", aggregate_id),
            headers=_with_trace_context({**_headers(headers), **({} if ledger is None else {LEDGER: _place(ledger)})}),
            idempotency_key=None if idempotency_key is None else _idempotency_key(idempotency_key),
            deliver_at=_moment("deliver_at", deliver_at),
            expires_at=_moment("expires_at", expires_at),
            ledger=ledger,
        )
        if message.deliver_at and message.expires_at and message.expires_at <= message.deliver_at:
            raise InvalidMessage(
                f"expires_at {message.expires_at} is not after deliver_at {message.deliver_at}: it could never leave"
            )
        return msgspec.structs.replace(message, digest=message._digest(encoded.canonical))

    def _digest(self, canonical_payload: bytes | None) -> str:
        """What makes two messages the same request: where they go and what they say, not their id or headers."""
        return encoding.digest(
            self.topic,
            self.type,
            self.aggregate_type,
            self.aggregate_id,
            self.key,
            self.content_type,
            canonical_payload,
        )

    @property
    def size(self) -> int:
        """Bytes of payload and headers."""
        headers = sum(len(name.encode()) + len(value.encode()) for name, value in self.headers.items())
        return len(self.payload or b"") + headers

    def json(self) -> Any:
        """The payload decoded from JSON. Raises `PayloadNotDecodable`."""
        return decode(self.payload)

    def decode(self, kind: Class[T]) -> T:
        """The payload decoded from JSON, and checked to be of this type, as `Incoming.decode` does."""
        decoded: T = decode(self.payload, kind)
        return decoded

    def __hash__(self) -> int:
        """By the id: headers are a dict, which has no hash."""
        return hash(self.id)

    def __repr__(self) -> str:
        """Without the payload and the headers, which do not belong in logs."""
        return f"Message(id={self.id!s}, topic={self.topic!r}, key={self.key!r}, {self.size} bytes)"


def _text(name: str, value: object, *, control_characters: bool = False) -> str:
    """A non-empty, storable text of at most 255 characters."""
    if not isinstance(value, str):
        raise InvalidMessage(f"{name} must be a str, not {type(value).__name__}")
    if not value:
        raise InvalidMessage(f"{name} is empty: give it at least one character, or leave it out where it is optional")
    if len(value) > MAX_TEXT:
        raise InvalidMessage(f"{name} has {len(value)} characters ({value[:20]!r}…): at most {MAX_TEXT} are allowed")
    return _storable(name, value, control_characters=control_characters)


def _optional(name: str, value: object) -> str | None:
    return None if value is None else _text(name, value)


_UNSTORABLE = {
    False: re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]"),  # topics and headers become part of protocols' heads
    True: re.compile("[\x00\ud800-\udfff]"),
}


def _storable(name: str, value: str, *, control_characters: bool) -> str:
    """Refuse NUL, lone surrogates, which UTF-8 cannot hold, and, unless allowed, other control characters."""
    wrong = _UNSTORABLE[control_characters].search(value)
    if wrong:
        raise InvalidMessage(f"{name} holds the character {wrong[0]!r}, which cannot be stored or sent: remove it")
    return str.__str__(value)  # plain text: drivers would write a member of a `(str, Enum)` each in its own way


def _key(name: str, value: object) -> str | None:
    """Ordering and idempotency keys: text, whole numbers and UUIDs, as text."""
    if value is None:
        return None
    is_key = isinstance(value, str | int | uuid.UUID) or type(value).__name__ == "UUID"  # uuid_utils has its own
    if isinstance(value, bool) or not is_key:
        raise InvalidMessage(f"{name} must be a str, int or UUID, not {type(value).__name__}")
    if isinstance(value, int):
        value = int(value)  # the number of an `(int, Enum)`
        if abs(value) >= 10**MAX_TEXT:  # Python may refuse to write it out
            raise InvalidMessage(f"{name} is a number of more than {MAX_TEXT} digits: at most {MAX_TEXT} are allowed")
    return _text(name, value if isinstance(value, str) else str(value), control_characters=True)


def _id(value: object) -> uuid.UUID:
    """A time-ordered id (UUIDv7), or the one given."""
    if value is None:
        return uuid_utils.compat.uuid7()
    try:
        return uuid.UUID(str(value))
    except ValueError:
        raise InvalidMessage(f"id must be a UUID, not {str(value)[:60]!r}: leave it out to have one made") from None


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
    if moment is None or not 1000 <= moment.year <= 9998:  # noqa: PLR2004 - what every database can hold
        raise InvalidMessage(f"{name} {value.isoformat()} is outside the years 1000 to 9998")
    return moment


def _place(entry: object) -> str:
    if not isinstance(entry, Entry):
        raise InvalidMessage(f"ledger must be the entry that ledger.begin gave, not {type(entry).__name__}")
    return msgspec.json.encode((entry.scope, entry.key, entry.digest)).decode()


def _headers(given: object) -> dict[str, str]:
    if given is None:
        given = {}
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
    """Raise `InvalidMessage` where a message that was read back is none that `new` would have made."""
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
    """W3C trace context of the current span. An application that never loaded OpenTelemetry has none."""
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
            f"idempotency_key {key[:40]!r} begins with {RESERVED!r}, as only Postroom's own do: give another"
        )
    return key


def unique_key(name: str, value: object) -> str:
    """A text, whole number or UUID as text of 1 to 255 characters that is unique in every database alike.

    Raises `InvalidMessage`.
    """
    key = _key(name, value)
    if key is None:
        raise InvalidMessage(f"{name} is None: give a str, int or UUID")
    if key.endswith(" "):
        raise InvalidMessage(f"{name} {key[-20:]!r} ends with a space, which MySQL would not tell from none: strip it")
    return key
