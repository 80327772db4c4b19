"""A received message as a parked one, in the service's own outbox, and back."""

from __future__ import annotations

from datetime import datetime

import msgspec

from postroom.incoming import Incoming
from postroom.message import Message
from postroom.rules.failures import MESSAGE_LENGTH
from postroom.rules.naming import LEDGER, parked_key, storable_header, storable_id, storable_label

_ID = "postroom-received-id"
_SOURCE = "postroom-received-from"
_POSITION = "postroom-received-position"
_CREATED = "postroom-received-created"
_EXPIRES = "postroom-received-expires"
_PROBLEM = "postroom-received-problem"
_DEDUP_ID = "postroom-received-known-as"
_OURS = frozenset({LEDGER, _ID, _DEDUP_ID, _SOURCE, _POSITION, _CREATED, _EXPIRES, _PROBLEM})


def as_parked(consumer: str, message: Incoming) -> Message:
    """The message as it is kept: under an id of its own, once for each consumer.

    What no database could hold of a stranger's message, as control characters in a header, is left out; a key that is
    too long is kept as a hash.
    """
    kept = {
        name: storable_header(value)
        for raw, value in message.headers.items()
        if (name := storable_label(raw)) and name not in _OURS
    }
    received: dict[str, str | None] = {
        _ID: message.id if storable_id(message.id) == message.id else storable_id(message.id),
        _DEDUP_ID: message.dedup_id,
        _SOURCE: None if message.source is None else storable_header(message.source),
        _POSITION: None if message.position is None else str(message.position),
        _CREATED: None if message.created_at is None else message.created_at.isoformat(),
        _EXPIRES: None if message.expires_at is None else message.expires_at.isoformat(),
        _PROBLEM: None if message.problem is None else storable_header(message.problem),
    }
    parked = Message.new(
        storable_label(message.topic) or "unnamed",
        message.payload,
        key=None if message.key is None else ordering_key(message.key),
        type=None if message.type is None else storable_label(message.type),
        aggregate_type=None if message.aggregate_type is None else storable_label(message.aggregate_type),
        aggregate_id=None if message.aggregate_id is None else storable_label(message.aggregate_id),
        headers={**kept, **{name: value for name, value in received.items() if value is not None}},
        content_type=storable_label(message.content_type),
    )
    return msgspec.structs.replace(parked, idempotency_key=parked_key(consumer, message.dedup_id))


def not_kept(message: Message, failure: str | None) -> str:
    """Why a message is kept without its payload, and what had come of it before."""
    reason = f"its payload and headers of {message.size:,} bytes are not kept: the database does not take them"
    return f"{reason}; before that: {failure}" if failure else reason


def without_payload(message: Message) -> Message:
    """As much of a message as every database takes. It cannot be handled any more, and says why."""
    ours = {name: value for name, value in message.headers.items() if name in _OURS and len(value) <= MESSAGE_LENGTH}
    return msgspec.structs.replace(message, payload=None, headers={**ours, _PROBLEM: not_kept(message, None)})


def ordering_key(key: str) -> str:
    """The key by which a message is parked: its own, or a hash of one that cannot be kept."""
    return storable_id(key)


def as_received(message: Message) -> Incoming:
    """The message that was parked."""
    headers = message.headers
    position = headers.get(_POSITION)
    return Incoming(
        id=headers.get(_ID) or str(message.id),
        topic=message.topic,
        payload=message.payload,
        content_type=message.content_type,
        type=message.type,
        key=message.key,
        source=headers.get(_SOURCE),
        aggregate_type=message.aggregate_type,
        aggregate_id=message.aggregate_id,
        position=int(position) if position and position.isdecimal() else None,
        created_at=_moment(headers.get(_CREATED)),
        expires_at=_moment(headers.get(_EXPIRES)),
        headers={name: value for name, value in headers.items() if name not in _OURS},
        problem=headers.get(_PROBLEM),
        assigned_dedup_id=headers.get(_DEDUP_ID),
    )


def _moment(written: str | None) -> datetime | None:
    return None if written is None else datetime.fromisoformat(written)
