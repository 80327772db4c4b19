"""Messages that repeat another one's id or idempotency key: found among those of one call, and named in errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import DuplicateMessage, IdempotencyConflict

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroom.message import Message


def repeats_of(messages: Sequence[Message]) -> dict[UUID, UUID]:
    """Messages of one call that repeat an earlier one's idempotency key: repeat's id → first one's id.

    Raises `DuplicateMessage` for an id that comes twice, `IdempotencyConflict` for a key with two contents.
    """
    first: dict[str, Message] = {}
    repeats: dict[UUID, UUID] = {}
    seen: set[UUID] = set()
    for message in messages:
        if message.id in seen:
            raise DuplicateMessage(
                f"two messages of one call have the id {message.id}: leave id out to have one made for each"
            )
        seen.add(message.id)
        if message.idempotency_key is None:
            continue
        earlier = first.setdefault(message.idempotency_key, message)
        if earlier is message:
            continue
        if earlier.digest != message.digest:
            raise IdempotencyConflict(
                f"idempotency key {message.idempotency_key!r} is given to two different messages in one call: "
                "use a key of its own for each"
            )
        repeats[message.id] = earlier.id
    return repeats


def already_there(message: Message) -> str:
    return f"a message with id {message.id} is already in the outbox: leave id out to have a new one made"


def used_otherwise(message: Message, holder: UUID) -> str:
    return (
        f"idempotency key {message.idempotency_key!r} was used for another message ({holder}): "
        "the same key must come with the same topic, type, key and payload; use a new key for a new message"
    )
