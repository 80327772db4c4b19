"""Continues the sender's trace while a handler runs, including what the handler adds to the outbox."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from postroom.telemetry.running_spans import running, tracing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Tracer

    from postroom.incoming import Incoming


def continued(
    messages: Sequence[Incoming], consumer: str = "", tracer: Tracer | None = None
) -> AbstractContextManager[None]:
    """A span ``process <topic>`` to run a handler in; see `running`. Where OpenTelemetry is not loaded, nothing."""
    if not tracing():
        return nullcontext()
    from opentelemetry.trace import SpanKind

    topics = {message.topic for message in messages}
    name = f"process {topics.pop()}" if len(topics) == 1 else "process"
    origins = [message.headers for message in messages]
    return running(name, origins, _about(messages, consumer), SpanKind.CONSUMER, tracer)


def _about(messages: Sequence[Incoming], consumer: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": consumer,
    }
    first = messages[0]
    if all(message.topic == first.topic for message in messages):
        attributes["messaging.destination.name"] = first.topic
    if len(messages) == 1:
        attributes["messaging.message.id"] = first.id
    else:
        attributes["messaging.batch.message_count"] = len(messages)
    return attributes
