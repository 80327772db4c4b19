"""Dramatiq's actors: write a call's arguments with the encoder that is in use."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dramatiq
from dramatiq.encoder import JSONEncoder

from postroom.encoding import BINARY, JSON
from postroom.errors import InvalidMessage, PayloadNotEncodable
from postroom.tasks.calls import Arguments, TaskCall, topic_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.tasks.calls import Mask

LIBRARY = "dramatiq"
QUEUE = "queue_name"
"""Where the message goes, beside the actor's own options."""


def call_of(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any], mask: Mask | None
) -> TaskCall:
    """The call of an actor. Raises `InvalidMessage`.

    ``delay``, in milliseconds or as a timedelta, has the outbox keep the message for so long.
    """
    if not isinstance(task, dramatiq.Actor):
        hint = "write a task that starts it, and give that" if hasattr(task, "run") else "give an actor"
        raise InvalidMessage(f"task is a {type(task).__name__} of Dramatiq: {hint}")
    name = task.actor_name
    delay = options.pop("delay", None)
    given = Arguments(tuple(args), dict(kwargs)).masked(mask, topic_of(LIBRARY, name))
    try:
        message: Any = task.message_with_options(args=given.args, kwargs=given.kwargs, **options)
    except TypeError as error:
        raise InvalidMessage(f"the actor {name!r} cannot be sent like this: {error}") from None
    encoder = dramatiq.get_encoder()
    try:
        payload = encoder.encode({"args": list(message.args), "kwargs": message.kwargs})
    except Exception as error:  # noqa: BLE001 - whatever an encoder raises; its text may quote a value
        raise PayloadNotEncodable(
            f"the arguments of the actor {name!r} cannot be written by {type(encoder).__name__} "
            f"({type(error).__name__}): give values that it knows"
        ) from None
    return TaskCall(
        library=LIBRARY,
        name=name,
        payload=payload,
        content_type=JSON if isinstance(encoder, JSONEncoder) else BINARY,
        options={"options": message.options, QUEUE: message.queue_name},
        deliver_at=None if delay is None else datetime.now(UTC) + _span(name, delay),
    )


def _span(name: str, delay: object) -> timedelta:
    if isinstance(delay, timedelta):
        return delay
    if isinstance(delay, bool) or not isinstance(delay, int | float):
        raise InvalidMessage(f"the delay of the actor {name!r} is {delay!r}: give milliseconds or a timedelta")
    try:
        return timedelta(milliseconds=delay)
    except (OverflowError, ValueError):
        raise InvalidMessage(f"the delay of the actor {name!r} is {delay!r}: it is too long") from None
