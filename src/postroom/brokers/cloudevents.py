"""Messages as CloudEvents 1.0, and back: which field is which attribute."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import unquote

import msgspec

from postroom.brokers.wires import AMQP, CONTENT_TYPE, HTTP, KAFKA, NATS, PLAIN, REDIS, Wire
from postroom.encoding import BINARY
from postroom.errors import InvalidMessage
from postroom.incoming import Incoming
from postroom.rules.naming import LEDGER, OURS, readable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postroom.message import Message

__all__ = [
    "AMQP",
    "CONTENT_TYPE",
    "HTTP",
    "KAFKA",
    "NATS",
    "REDIS",
    "Envelope",
    "Mode",
    "Wire",
    "attributes",
    "decode",
    "incoming",
    "is_structured",
]

Mode = Literal["binary", "structured"]
SPECVERSION = "1.0"
STRUCTURED = "application/cloudevents+json"
POSITION_DIGITS = 19
"""A position as text of this length sorts as the number does."""
MOST_KEPT = 1000
"""Of a cache."""

K = TypeVar("K")
V = TypeVar("V")
_Kind = tuple[str, str | None, str | Literal[False]]
"""Topic, type, and the content type unless it is a tombstone: what decides on the headers that are kept."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Puts messages in the form in which a protocol carries them.

    What many messages have in common, and the names of user headers, are brought into that form once.
    """

    wire: Wire
    source: str = OURS
    mode: Mode = "binary"
    _common: dict[_Kind, dict[str, str]] = field(default_factory=dict, init=False, repr=False, compare=False)
    _names: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def seal(self, message: Message) -> tuple[dict[str, str], bytes | None]:
        """Headers and body. In binary mode the body is the payload as it is, None for a tombstone.

        A tombstone goes in binary mode where only a message without a body is one.
        """
        if self.mode == "structured" and not (message.payload is None and self.wire.tombstones):
            headers = {CONTENT_TYPE: STRUCTURED}
            body: bytes | None = _structured(attributes(message, self.source), message)
        else:
            headers, body = self._attributes(message), message.payload
        if message.headers:
            wire = self.wire
            for name, value in message.headers.items():
                if name != LEDGER:
                    headers[self._names.get(name) or self._named(name)] = wire.header_value(value)
        return headers, body

    def _attributes(self, message: Message) -> dict[str, str]:
        kind = (message.topic, message.type, message.payload is not None and message.content_type)
        headers = (self._common.get(kind) or self._in_common(message, kind)).copy()
        _add_own(headers, message, self.wire)
        return headers

    def _in_common(self, message: Message, kind: _Kind) -> dict[str, str]:
        wire = self.wire
        headers = {}
        if kind[2]:
            headers[CONTENT_TYPE] = wire.header_value(message.content_type)
        for name, value in _common(message, self.source).items():
            headers[wire.prefix + name] = wire.attribute_value(value)
        return _kept(self._common, kind, headers)

    def _named(self, name: str) -> str:
        return _kept(self._names, name, self.wire.header_name(name))


def _kept(cache: dict[K, V], key: K, value: V) -> V:
    """Topics and names are few; where they are not, it is no use to keep them."""
    if len(cache) >= MOST_KEPT:
        cache.clear()
    cache[key] = value
    return value


def attributes(message: Message, source: str) -> dict[str, str]:
    """The CloudEvents attributes of a message; what it does not have is left out."""
    event = _common(message, source)
    _add_own(event, message, PLAIN)
    if message.payload is not None:
        event["datacontenttype"] = message.content_type
    return event


def _common(message: Message, source: str) -> dict[str, str]:
    """What all messages of a topic and type have in common."""
    kind = message.type or message.topic
    return {"specversion": SPECVERSION, "source": source, "type": kind, "topic": message.topic}


def _add_own(event: dict[str, str], message: Message, wire: Wire) -> None:
    """What differs from message to message."""
    prefix = wire.prefix
    event[prefix + "id"] = str(message.id)
    if message.created_at is not None:
        event[prefix + "time"] = _timestamp(message.created_at)
    if message.aggregate_id is not None:
        event[prefix + "subject"] = wire.attribute_value(message.aggregate_id)
    if message.aggregate_type is not None:
        event[prefix + "aggregatetype"] = wire.attribute_value(message.aggregate_type)
    if message.key is not None:
        event[prefix + "partitionkey"] = wire.attribute_value(message.key)
    if message.position is not None:
        event[prefix + "sequence"] = f"{message.position:0{POSITION_DIGITS}d}"
    if message.expires_at is not None:
        event[prefix + "expirytime"] = _timestamp(message.expires_at)


def incoming(
    wire: Wire,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    id: str | Callable[[], str],
    topic: str,
    key: str | None = None,
) -> Incoming:
    """What a protocol carried as a message: a CloudEvent in either mode, or a plain one.

    `id`, `topic` and `key` are what the protocol itself says; a CloudEvent's own attributes come before them. Bytes of
    header values that are no UTF-8 are lone surrogates in them.
    """
    try:
        return decode(wire, headers, body, topic=topic, key=key)
    except InvalidMessage as error:
        users = _users(wire, headers)
        lower = {name.lower(): value for name, value in headers.items()}
        content_type = lower.get(CONTENT_TYPE)
        meant = f"{wire.prefix}specversion" in lower or _is_structured(content_type)
        return Incoming(
            id=readable(lower.get(f"{wire.prefix}id") or (id if isinstance(id, str) else id())),
            topic=topic,
            payload=body,
            content_type=readable(content_type or BINARY),
            key=key,
            headers=users,
            problem=readable(str(error)) if meant else None,
        )


def decode(
    wire: Wire, headers: Mapping[str, str], body: bytes | None, *, topic: str = "", key: str | None = None
) -> Incoming:
    """The event in what a protocol carried, whichever mode it was sent in. Raises `InvalidMessage` if there is none."""
    if wire.any_case:
        headers = {name.lower(): value for name, value in headers.items()}
    content_type = headers.get(CONTENT_TYPE)
    users = _users(wire, headers)
    if _is_structured(content_type):
        return _event(*_opened(body or b""), users, topic, key)
    event = {
        name[len(wire.prefix) :]: _attribute(name, value, wire)
        for name, value in headers.items()
        if name.lower().startswith(wire.prefix)
    }
    if content_type is not None:
        event["datacontenttype"] = wire.user_header("", readable(content_type))[1]
    return _event(event, (body or b"") if content_type is not None else body or None, users, topic, key)


def _attribute(name: str, value: str, wire: Wire) -> str:
    """Two ids, or two sources, that are no text must not become the same."""
    try:
        found = unquote(value, errors="strict") if wire.ascii_only else value
        found.encode()
    except UnicodeError:
        raise InvalidMessage(f"this is not a CloudEvent: {name} is not UTF-8") from None
    return found


def _users(wire: Wire, headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that are neither the protocol's nor ours: a stranger could name an entry of our ledger."""
    users = dict(
        wire.user_header(name, readable(value)) for name, value in headers.items() if not wire.is_reserved(name)
    )
    users.pop(LEDGER, None)
    return users


def is_structured(headers: Mapping[str, str]) -> bool:
    """Whether the body holds the whole event, by headers whose names are in lower case."""
    return _is_structured(headers.get(CONTENT_TYPE))


def _is_structured(content_type: str | None) -> bool:
    return content_type is not None and content_type.lower().startswith(STRUCTURED)


def _event(
    event: Mapping[str, str], data: bytes | None, headers: Mapping[str, str], topic: str, key: str | None
) -> Incoming:
    missing = [name for name in ("specversion", "id", "source", "type") if not event.get(name)]
    if missing:
        raise InvalidMessage(f"this is not a CloudEvent: it has no {', '.join(missing)}")
    sequence = event.get("sequence", "")
    is_position = len(sequence) <= POSITION_DIGITS and sequence.isdecimal()
    return Incoming(
        id=event["id"],
        source=event["source"],
        type=event["type"],
        payload=data,
        content_type=event.get("datacontenttype", BINARY),
        topic=event.get("topic") or topic,
        key=event.get("partitionkey") or key,
        aggregate_id=event.get("subject"),
        aggregate_type=event.get("aggregatetype"),
        position=int(sequence) if is_position else None,
        created_at=_moment(event, "time"),
        expires_at=_moment(event, "expirytime"),
        headers=headers,
    )


def _structured(event: Mapping[str, str], message: Message) -> bytes:
    fields: dict[str, Any] = dict(event)
    payload = message.payload
    if payload is not None:
        fields |= _data(payload, message.content_type)
    return msgspec.json.encode(fields)


def _data(payload: bytes, content_type: str) -> dict[str, Any]:
    """JSON as it is, text as a string, all else in base64; so is what only claims to be JSON or text."""
    try:
        if _is_json(content_type):
            msgspec.json.decode(payload)
            return {"data": msgspec.Raw(payload)}
        if content_type.startswith("text/"):
            return {"data": payload.decode()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return {"data_base64": base64.b64encode(payload).decode()}


def _opened(body: bytes) -> tuple[dict[str, str], bytes | None]:
    """Attributes and data of a structured event."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        data, encoded = fields.pop("data", None), fields.pop("data_base64", None)
        event = {name: _text(raw) for name, raw in fields.items() if bytes(raw) != b"null"}  # which is: not set
        if encoded is not None:
            return event, base64.b64decode(msgspec.json.decode(encoded, type=str), validate=True)
        if data is None or _is_json(event.get("datacontenttype", "application/json")):
            return event, None if data is None else bytes(data)
        return event, msgspec.json.decode(data, type=str).encode()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"this is not a structured CloudEvent: {error}") from None


def _text(raw: msgspec.Raw) -> str:
    value = msgspec.json.decode(raw)
    return value if isinstance(value, str) else bytes(raw).decode()


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind.endswith(("/json", "+json"))


def _timestamp(moment: datetime) -> str:
    if moment.tzinfo is not UTC:
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return msgspec.json.encode(moment)[1:-1].decode()  # several times faster than `isoformat`


def _moment(event: Mapping[str, str], name: str) -> datetime | None:
    text = event.get(name)
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidMessage(f"the event's {name} {text[:60]!r} is not a time") from None
