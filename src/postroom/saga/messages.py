"""The messages of a saga: what starts an instance, and what signals an event to one.

They stand in the saga's own queue. What identifies the instance is in headers, which the digest leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import uuid_utils.compat

from postroom.encoding import JSON
from postroom.errors import InvalidMessage, SagaNotDecodable
from postroom.message import Message, unique_key
from postroom.rules.naming import (
    SAGA_EVENT,
    SAGA_ID,
    SAGA_PLAN,
    SAGA_QUEUE,
    SAGA_SIGNAL,
    SAGA_START,
    SAGA_TELL,
    SAGA_TOLD_BY,
    saga_key,
    saga_signal_key,
)
from postroom.saga.data import MAX_DATA_BYTES, NO_VALUE, to_json
from postroom.saga.steps import checked_name
from postroom.store.saga.plan_header import plan_from_header, plan_to_header

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping

    from postroom.rules.saga_plan import Plan, SagaOutcome

LONGEST_ID = 180


class Tell(NamedTuple):
    """Whom to tell of an instance's end: an instance of another saga, by an event."""

    name: str
    id: str
    event: str


class Start(NamedTuple):
    """What the headers of a start say."""

    id: str
    plan: Plan
    tell: Tell | None


class Signal(NamedTuple):
    """What the headers of a signal say."""

    id: str
    event: str
    told_by: str
    """The child that tells of its end; empty for any other signal."""


def queue_of_saga(name: str) -> str:
    """The queue of a saga's messages, which is also their topic."""
    return f"{SAGA_QUEUE}{name}"


def checked_id(id: object) -> str:
    """An instance's id as text. Raises `InvalidMessage`."""
    text = id if isinstance(id, str) and len(id) > LONGEST_ID else unique_key("the saga's id", id)
    if len(text) > LONGEST_ID or not text.isprintable() or text != text.strip():
        raise InvalidMessage(
            f"the saga's id {text[:40]!r} is not valid: give 1 to {LONGEST_ID} printable characters without space at "
            "either end"
        )
    return text


def checked_tell(tell: Any) -> Tell | None:
    """Whom to tell, given as the context of the parent and the name of an event. Raises `InvalidMessage`."""
    if tell is None:
        return None
    match tell:
        case (parent, str(event)) if isinstance(getattr(parent, "id", None), str) and hasattr(parent, "name"):
            return Tell(parent.name, parent.id, checked_name("event", event, ""))
        case _:
            raise InvalidMessage(
                f"tell must be the context of the parent's step and an event, as in tell=(saga, 'shipped'), not "
                f"{type(tell).__name__}"
            )


def start_message(name: str, id: object, plan: Plan, data: bytes, tell: Tell | None) -> Message:
    """The message that starts an instance. Without id it gets a new one (UUIDv7)."""
    known_as = str(uuid_utils.compat.uuid7()) if id is None else checked_id(id)
    headers = {SAGA_ID: known_as, SAGA_PLAN: plan_to_header(plan)}
    if tell is not None:
        headers[SAGA_TELL] = msgspec.json.encode(tell).decode()
    message = Message.new(queue_of_saga(name), data, type=SAGA_START, headers=headers, content_type=JSON)
    return msgspec.structs.replace(message, idempotency_key=saga_key(name, known_as))


def signal_message(
    name: str,
    id: object,
    event: str,
    payload: object,
    *,
    message_id: uuid.UUID | str | None = None,
    limit: int = MAX_DATA_BYTES,
) -> Message:
    """The message that signals an event to an instance. With the same message id again it is the same signal."""
    known_as, event = checked_id(id), checked_name("event", event, "")
    message = Message.new(
        queue_of_saga(name),
        to_json(payload, f"the payload of event {event!r}", limit),
        type=SAGA_SIGNAL,
        headers={SAGA_ID: known_as, SAGA_EVENT: event},
        content_type=JSON,
    )
    if message_id is None:
        return message
    key = saga_signal_key(name, known_as, event, unique_key("message_id", message_id))
    return msgspec.structs.replace(message, idempotency_key=key)


def tell_message(tell: Tell, outcome: SagaOutcome, data: bytes | None, told_by: str) -> Message:
    """The signal that tells another instance how this one, `told_by`, ended, with its data as JSON."""
    payload = {"outcome": outcome.name.lower(), "data": msgspec.json.decode(data or NO_VALUE)}
    limit = len(data or NO_VALUE) + MAX_DATA_BYTES  # its data was accepted before: nothing to refuse here
    message = signal_message(tell.name, tell.id, tell.event, payload, limit=limit)
    return msgspec.structs.replace(message, headers={**message.headers, SAGA_TOLD_BY: told_by})


def read_start(headers: Mapping[str, str]) -> Start:
    """What the headers of a start say. Raises `SagaNotDecodable`."""
    try:
        tell = headers.get(SAGA_TELL)
        told = None if tell is None else msgspec.json.decode(tell, type=Tell)
        return Start(headers[SAGA_ID], plan_from_header(headers[SAGA_PLAN]), told)
    except KeyError as error:
        raise SagaNotDecodable(f"the message that started the saga lacks the header {error}") from None
    except msgspec.DecodeError as error:
        raise SagaNotDecodable(f"the header {SAGA_TELL} of the saga's start cannot be read: {error}") from None


def read_signal(headers: Mapping[str, Any]) -> Signal:
    """What the headers of a signal say. Raises `SagaNotDecodable`."""
    try:
        return Signal(headers[SAGA_ID], headers[SAGA_EVENT], headers.get(SAGA_TOLD_BY, ""))
    except KeyError as error:
        raise SagaNotDecodable(f"the signal lacks the header {error}") from None
