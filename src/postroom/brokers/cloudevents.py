"""Messages as CloudEvents 1.0, and back: which field is which attribute."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from urllib.parse import unquote

import msgspec

from postroom.brokers.header_formats import AMQP, CONTENT_TYPE, HTTP, KAFKA, NATS, PLAIN, REDIS, HeaderFormat
from postroom.encoding import BINARY
from postroom.errors import InvalidMessage
from postroom.incoming import Incoming
from postroom.rules.naming import ALL_HEADERS, LEDGER, OURS, readable

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
    "Header",
    "HeaderFormat",
    "Mode",
    "Sealer",
    "attributes",
    "decode",
    "incoming",
    "is_structured",
]

Mode = Literal["binary", "structured"]
"""Attributes as headers and the payload as the body, or both in one JSON document."""
SPECVERSION = "1.0"
STRUCTURED = "application/cloudevents+json"
POSITION_DIGITS = 19
"""Digits of a position: padded like this, it sorts as text in numeric order."""
POSITION = f"%0{POSITION_DIGITS}d"
MOST_KEPT = 1000
"""Entries of a cache."""

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
Header = tuple[str, str]
"""Name and value."""
_Kind = tuple[str, str | None, str | Literal[False]]
"""Topic, type, and content type (False for a tombstone): what the cached headers depend on."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Encodes messages for a protocol: as headers and body, or in parts for `Sealer`."""

    protocol: HeaderFormat
    source: str = OURS
    mode: Mode = "binary"
    _names: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def seal(self, message: Message) -> tuple[dict[str, str], bytes | None]:
        """Encode a message as headers and body."""
        return self.common(message) | dict(self.own(message, str(message.id))), self.body(message)

    def common(self, message: Message) -> dict[str, str]:
        """The headers that all messages of a topic, type and content type share, tombstones apart."""
        if self._is_structured(message):
            return {CONTENT_TYPE: STRUCTURED}
        protocol = self.protocol
        headers = {} if message.payload is None else {CONTENT_TYPE: protocol.header_value(message.content_type)}
        for name, value in _common(message, self.source).items():
            headers[protocol.prefix + name] = protocol.attribute_value(value)
        return headers

    def own(self, message: Message, name: str) -> list[Header]:
        """The headers that differ from message to message; `name` is its id as text."""
        headers = [] if self._is_structured(message) else _own(message, name, self.protocol)
        if message.headers:
            protocol = self.protocol
            for given, value in message.headers.items():
                if given != LEDGER:
                    headers.append((self._names.get(given) or self._named(given), protocol.header_value(value)))
        return headers

    def body(self, message: Message) -> bytes | None:
        """In binary mode the payload, None for a tombstone.

        In structured mode too, a tombstone has no body where the protocol recognises tombstones only by that.
        """
        if self._is_structured(message):
            return _structured(attributes(message, self.source), message)
        return message.payload

    def _is_structured(self, message: Message) -> bool:
        return self.mode == "structured" and not (message.payload is None and self.protocol.tombstones)

    def _named(self, name: str) -> str:
        return _kept(self._names, name, self.protocol.header_name(name))


class Sealer(Generic[T]):
    """Encodes messages for a broker. What many have in common is encoded only once, by `encode`."""

    def __init__(self, envelope: Envelope, encode: Callable[[Message, dict[str, str]], T]) -> None:
        self._envelope = envelope
        self._encode = encode
        self._common: dict[_Kind, T] = {}

    def seal(self, message: Message) -> tuple[str, T, list[Header], bytes | None]:
        """A message's id, the headers that it shares with others, its own headers, and its body."""
        kind = (message.topic, message.type, message.payload is not None and message.content_type)
        common = self._common.get(kind)
        if common is None:
            common = _kept(self._common, kind, self._encode(message, self._envelope.common(message)))
        name = str(message.id)
        return name, common, self._envelope.own(message, name), self._envelope.body(message)


def _kept(cache: dict[K, V], key: K, value: V) -> V:
    """Cache a value. Topics and names are few; if they are not, caching is of no use, and the cache starts over."""
    if len(cache) >= MOST_KEPT:
        cache.clear()
    cache[key] = value
    return value


def attributes(message: Message, source: str) -> dict[str, str]:
    """The CloudEvents attributes of a message; absent fields are left out."""
    event = _common(message, source) | dict(_own(message, str(message.id), PLAIN))
    if message.payload is not None:
        event["datacontenttype"] = message.content_type
    return event


def _common(message: Message, source: str) -> dict[str, str]:
    """The attributes that all messages of a topic and type share."""
    kind = message.type or message.topic
    return {"specversion": SPECVERSION, "source": source, "type": kind, "topic": message.topic}


def _own(message: Message, name: str, protocol: HeaderFormat) -> list[Header]:
    """The attributes that differ from message to message."""
    names = protocol.names
    found = [(names.id, name)]
    if message.created_at is not None:
        found.append((names.time, _timestamp(message.created_at)))
    if message.aggregate_id is not None:
        found.append((names.subject, protocol.attribute_value(message.aggregate_id)))
    if message.aggregate_type is not None:
        found.append((names.aggregatetype, protocol.attribute_value(message.aggregate_type)))
    if message.key is not None:
        found.append((names.partitionkey, protocol.attribute_value(message.key)))
    if message.position is not None:
        found.append((names.sequence, POSITION % message.position))
    if message.expires_at is not None:
        found.append((names.expirytime, _timestamp(message.expires_at)))
    return found


def incoming(
    protocol: HeaderFormat,
    headers: Mapping[str, str],
    body: bytes | None,
    *,
    id: str | Callable[[], str],
    topic: str,
    key: str | None = None,
) -> Incoming:
    """Decode a received message: a CloudEvent in either mode, or anything else.

    `id`, `topic` and `key` come from the protocol itself; a CloudEvent's own attributes take precedence. In header
    values, bytes that are not UTF-8 appear as lone surrogates.
    """
    try:
        return decode(protocol, headers, body, topic=topic, key=key)
    except InvalidMessage as error:
        users = _users(protocol, headers)
        lower = {name.lower(): value for name, value in headers.items()}
        content_type = lower.get(CONTENT_TYPE)
        meant = f"{protocol.prefix}specversion" in lower or _is_structured(content_type)
        return Incoming(
            id=readable(lower.get(f"{protocol.prefix}id") or (id if isinstance(id, str) else id())),
            topic=topic,
            payload=body,
            content_type=readable(content_type or BINARY),
            key=key,
            headers=users,
            problem=readable(str(error)) if meant else None,
        )


def decode(
    protocol: HeaderFormat, headers: Mapping[str, str], body: bytes | None, *, topic: str = "", key: str | None = None
) -> Incoming:
    """Decode a CloudEvent, whichever mode it was sent in. Raises `InvalidMessage` if it is none."""
    if protocol.any_case:
        headers = {name.lower(): value for name, value in headers.items()}
    content_type = headers.get(CONTENT_TYPE)
    users = _users(protocol, headers)
    if _is_structured(content_type):
        return _event(*_parsed(body or b""), users, topic, key)
    event = {
        attribute: _attribute(name, value, protocol)
        for name, value in headers.items()
        if (attribute := protocol.attribute_name(name))
    }
    if content_type is not None:
        event["datacontenttype"] = protocol.user_header("", readable(content_type))[1]
    has_data = content_type is not None and not (body is None and protocol.tombstones)
    return _event(event, (body or b"") if has_data else body or None, users, topic, key)


def _attribute(name: str, value: str, protocol: HeaderFormat) -> str:
    """Decode an attribute. Raises `InvalidMessage`: otherwise two different ids could become equal."""
    if value.isascii() and "%" not in value:
        return value
    try:
        found = unquote(value, errors="strict") if protocol.ascii_only else value
        found.encode()
    except UnicodeError:
        raise InvalidMessage(f"this is not a CloudEvent: {name} is not UTF-8") from None
    return found


def _users(protocol: HeaderFormat, headers: Mapping[str, str]) -> dict[str, str]:
    """The user's headers, without the protocol's and ours: a stranger could name an entry of our ledger."""
    users = dict(
        [
            protocol.user_header(name, readable(value))
            for name, value in headers.items()
            if protocol.attribute_name(name) is None
        ]
    )
    if ALL_HEADERS in users:
        users = _all_in_one(users.pop(ALL_HEADERS)) | users
    users.pop(LEDGER, None)
    return users


def _all_in_one(header: str) -> dict[str, str]:
    """The headers that Debezium sends as one, since it has them as one column."""
    try:
        return msgspec.json.decode(header, type=dict[str, str]) if header else {}
    except (msgspec.DecodeError, RecursionError):
        return {ALL_HEADERS: header}


def is_structured(headers: Mapping[str, str]) -> bool:
    """Whether the body holds the whole event, according to headers with names in lower case."""
    return _is_structured(headers.get(CONTENT_TYPE))


def _is_structured(content_type: str | None) -> bool:
    return content_type is not None and content_type.lower().startswith(STRUCTURED)


def _event(
    event: Mapping[str, str], data: bytes | None, headers: Mapping[str, str], topic: str, key: str | None
) -> Incoming:
    if not (event.get("specversion") and event.get("id") and event.get("source") and event.get("type")):
        missing = [name for name in ("specversion", "id", "source", "type") if not event.get(name)]
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
    """JSON as is, text as a string, anything else in base64, including invalid JSON or text."""
    try:
        if _is_json(content_type):
            msgspec.json.decode(payload)
            return {"data": msgspec.Raw(payload)}
        if content_type.startswith("text/"):
            return {"data": payload.decode()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return {"data_base64": base64.b64encode(payload).decode()}


def _parsed(body: bytes) -> tuple[dict[str, str], bytes | None]:
    """Parse a structured event into attributes and data."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        data, encoded = fields.pop("data", None), fields.pop("data_base64", None)
        event = {name: _text(raw) for name, raw in fields.items() if bytes(raw) != b"null"}  # null means: not set
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
    return msgspec.json.encode(moment)[1:-1].decode()  # much faster than `isoformat`


def _moment(event: Mapping[str, str], name: str) -> datetime | None:
    text = event.get(name)
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidMessage(f"the event's {name} {text[:60]!r} is not a time") from None
