"""Edit and replay: a new message made from an old one, validated as `Outbox.add` does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from postroom.encoding import JSON
from postroom.errors import InvalidMessage, ReplayRefused
from postroom.message import Message
from postroom.outbox import check_acceptable
from postroom.rules.naming import LEDGER, REPLAY_OF, RESERVED_HEADERS, TWOPHASE_QUEUE, is_saga_queue
from postroom.rules.routing import PREFIX
from postroom.runtime import wakeup
from postroom.store.admin.replaying import Replaying
from postroom.store.sql.operations import DEFAULT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from postroom.settings import Settings
    from postroom.store.admin.audit import Note
    from postroom.store.admin.message_lookup import FoundMessage
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""What is not given stays as it is in the original."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What is different in the copy."""

    payload: object = UNCHANGED
    headers: Mapping[str, str] | Unchanged = UNCHANGED
    topic: str | Unchanged = UNCHANGED
    id: UUID | str | None = None
    """The copy's; a new one by default."""

    @property
    def names(self) -> list[str]:
        """The fields that are given."""
        return [name for name in ("topic", "headers", "payload") if getattr(self, name) is not UNCHANGED]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A message that was added as a copy of another one."""

    id: UUID
    """The new message's."""
    original: UUID
    discarded: bool
    """Whether the original was removed."""


def replay(
    found: FoundMessage, changes: Changes, note: Note, names: Names, settings: Settings, *, discard: bool
) -> Steps[Replayed]:
    """Add the copy. Raises `InvalidMessage` or `ReplayRefused`; then nothing was written."""
    original = found.message
    if is_saga_queue(found.queue) or found.queue == TWOPHASE_QUEUE:
        raise ReplayRefused(
            f"message {original.id} belongs to {'a saga' if is_saga_queue(found.queue) else 'a two-phase commit'}: "
            "a copy would do its work twice. See `postroom sagas` and `postroom transactions`"
        )
    copy = copy_of(original, changes)
    check_acceptable(copy, settings)
    queue = DEFAULT_QUEUE if found.queue.startswith(PREFIX) else found.queue  # a relay routes it by its topic
    done = yield from Replaying(names, queue, notify=settings.notify).replay(
        found, copy, changes.names, note, discard=discard
    )
    if not done:
        raise ReplayRefused(f"message {original.id} is not dead, so it is not discarded: replay it without that")
    wakeup.notify()
    return Replayed(copy.id, original.id, discard)


def copy_of(original: Message, changes: Changes) -> Message:
    """A new message that says the same but for the changes, and which one it is a copy of.

    It has no idempotency key, no expiry and no keyed request: those are the original's. Raises `InvalidMessage`.
    """
    payload, content_type = original.payload, original.content_type
    if changes.payload is not UNCHANGED:
        payload, content_type = _payload(changes.payload, original.content_type)
    return Message.new(
        original.topic if isinstance(changes.topic, Unchanged) else changes.topic,
        payload,
        key=original.key,
        type=original.type,
        aggregate_type=original.aggregate_type,
        aggregate_id=original.aggregate_id,
        headers={**_headers(original, changes.headers), REPLAY_OF: str(original.id)},
        content_type=content_type,
        id=changes.id,
    )


def _payload(given: object, content_type: str) -> tuple[bytes | None, str]:
    """A text or bytes are of the original's type, and must be JSON if that is; anything else becomes JSON."""
    if given is None or not isinstance(given, str | bytes | bytearray | memoryview):
        made = Message.new("any", given)
        return made.payload, content_type if given is None else made.content_type
    body = Message.new("any", given).payload or b""
    if content_type.partition(";")[0].strip() == JSON:
        try:
            msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise InvalidMessage("the payload is not JSON, as the original's is: correct it, or give bytes") from None
    return body, content_type


def _headers(original: Message, given: Mapping[str, str] | Unchanged) -> dict[str, str]:
    """Those that are given, or the original's; of Postroom's own, those stay that say how it was received."""
    ours = {
        name: value
        for name, value in original.headers.items()
        if name.startswith(RESERVED_HEADERS) and name not in (LEDGER, REPLAY_OF)
    }
    if isinstance(given, Unchanged):
        return {**{name: value for name, value in original.headers.items() if name != LEDGER}, **ours}
    for name in given:
        if str(name).strip().casefold().replace("_", "-").startswith(RESERVED_HEADERS):
            raise InvalidMessage(f"header {name!r} is Postroom's own: leave it out")
    return {**given, **ours}
