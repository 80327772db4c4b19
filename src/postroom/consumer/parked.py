"""Parked messages: received, not handled yet, and kept in the service's own outbox until their handler is retried."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from postroom.incoming import Incoming
from postroom.message import Message
from postroom.rules.failures import MESSAGE_LENGTH, Reason
from postroom.rules.naming import LEDGER, parked_key, storable_header, storable_id, storable_label
from postroom.rules.ordering import key_hash
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.parking import Failed
from postroom.store.sql.db_errors import is_refused_value, is_unwritable_value

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.parking import Parked, Parking

ASKED_AGAIN = 100
"""Keys that every question to the database repeats, so that those with nothing parked any more are forgotten."""
REFUSALS = 2
"""How often the database refuses a message until it is kept without its payload, which is then lost."""

_ID = "postroom-received-id"
_SOURCE = "postroom-received-from"
_POSITION = "postroom-received-position"
_CREATED = "postroom-received-created"
_EXPIRES = "postroom-received-expires"
_PROBLEM = "postroom-received-problem"
_DEDUP_ID = "postroom-received-known-as"
_OURS = frozenset({LEDGER, _ID, _DEDUP_ID, _SOURCE, _POSITION, _CREATED, _EXPIRES, _PROBLEM})


class ParkedMessages:
    """Parks messages, and knows which keys have one parked: others of those keys must be parked too."""

    def __init__(self, consumer: str, connection: Connection, parking: Parking, wake: Callable[[], None]) -> None:
        """`wake` is called after a message was parked that will be retried."""
        self._consumer = consumer
        self._connection = connection
        self._parking = parking
        self._wake = wake
        self._keys = ParkedKeys()

    def blocks(self, message: Incoming) -> bool:
        """Whether an earlier message of its key is parked."""
        return message.key is not None and self._keys.holds(hash_of(message.key))

    async def learn(self, messages: Sequence[Incoming]) -> None:
        """Ask the database which keys of these messages have one parked. Raises `Outage`."""
        keys = {hash_of(one.key) for one in messages if one.key is not None}
        if keys:
            question, wanted = self._keys.ask(keys)
            parked = await self._connection.attempt(self._parking.parked(wanted))
            self._keys.answer(question, wanted, parked)

    async def park(self, message: Incoming, failed: Failed | None) -> tuple[UUID, Failed | None]:
        """Keep a message after a failure, or behind another of its key (None).

        Returns the id by which the outbox has it, and the failure that was recorded. Raises `Outage`.
        """
        parked, failed = await self._keep(as_parked(self._consumer, message), failed)
        if message.key is not None:
            self._keys.add(hash_of(message.key))
        if failed is None or failed.delay is not None:
            self._wake()
        return parked.id, failed

    async def _keep(self, message: Message, failed: Failed | None) -> tuple[Parked, Failed | None]:
        """Keep a message. What the database will never take is kept without its payload, as a dead letter."""
        attempt = self._connection.attempt
        for _ in range(REFUSALS):
            try:
                return await attempt(self._parking.park(message, failed)), failed
            except Outage as outage:
                error = outage.__cause__ or outage
                is_refused = is_refused_value(error) or is_unwritable_value(error)
                if not is_refused and not await attempt(self._parking.is_too_large(message)):
                    raise
        dead = Failed(Reason.MESSAGE_TOO_LARGE, not_kept(message, failed.message if failed else None), None)
        return await attempt(self._parking.park(without_payload(message), dead)), dead


class ParkedKeys:
    """The keys of parked messages: what the database said when messages were received, and what was parked since.

    Nothing is overlooked. This process parks a message before it begins the next of its key; what another process has
    parked, the database knows when it is asked, which is after the next message of the key was received.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._since: dict[int, int] = {}

    def ask(self, keys: Collection[int]) -> tuple[int, set[int]]:
        """Begin a question to the database; returns its number, and the keys to ask for."""
        self._asked += 1
        return self._asked, {*keys, *islice(self._since, ASKED_AGAIN)}

    def answer(self, question: int, asked: Collection[int], parked: Collection[int]) -> None:
        """Record which of the keys have messages parked. The database may have missed what was parked meanwhile."""
        for one in asked:
            if one in parked:
                self._since[one] = max(
                    question, self._since.pop(one, 0)
                )  # to the end: the others are asked for before it
            elif self._since.get(one, question) < question:
                del self._since[one]

    def add(self, hashed: int) -> None:
        """A message of this key was parked."""
        self._since[hashed] = self._asked

    def holds(self, hashed: int) -> bool:
        """Whether a message of this key is parked."""
        return hashed in self._since


def as_parked(consumer: str, message: Incoming) -> Message:
    """The message as it is kept: under an id of its own, once for each consumer.

    What no database can hold, such as control characters in a header, is left out; a key that is too long is kept as a
    hash.
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
    """Why a message is kept without its payload, and how it had failed before."""
    reason = f"its payload and headers of {message.size:,} bytes are not kept: the database does not take them"
    return f"{reason}; before that: {failure}" if failure else reason


def without_payload(message: Message) -> Message:
    """As much of a message as every database takes. It can no longer be handled, and says why."""
    ours = {name: value for name, value in message.headers.items() if name in _OURS and len(value) <= MESSAGE_LENGTH}
    return msgspec.structs.replace(message, payload=None, headers={**ours, _PROBLEM: not_kept(message, None)})


def ordering_key(key: str) -> str:
    """The key of the parked message: its own, or a hash if the database cannot hold it."""
    return storable_id(key)


def hash_of(key: str) -> int:
    """The hash by which a key's parked messages are found."""
    return key_hash(ordering_key(key))


def as_received(message: Message) -> Incoming:
    """A parked message as it was received."""
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
