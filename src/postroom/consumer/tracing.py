"""Continues the sender's trace while a handler runs, including what the handler adds to the outbox."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroom.telemetry.traces import SCOPE, context_of, mark_failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.trace import Tracer

    from postroom.incoming import Incoming


@contextmanager
def continued(messages: Sequence[Incoming], consumer: str = "", tracer: Tracer | None = None) -> Iterator[None]:
    """Run a handler in a span ``process <topic>``, of this tracer or of the provider in force.

    The span is a child of the one that the message names as its origin; for several messages, it has links to each
    origin instead. If OpenTelemetry is loaded but not configured, there is no span, and the sender's context is the
    current one. If it is not loaded, nothing happens.
    """
    if "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry import context, trace

    tracer = tracer or trace.get_tracer(SCOPE)
    contexts = [context_of(message.headers) for message in messages]
    alone = len(messages) == 1
    origins = [] if alone else [trace.get_current_span(context).get_span_context() for context in contexts]
    topics = {message.topic for message in messages}
    token = context.attach(contexts[0] if alone else context.Context())
    try:
        with tracer.start_as_current_span(
            f"process {topics.pop()}" if len(topics) == 1 else "process",
            kind=trace.SpanKind.CONSUMER,
            attributes=_about(messages, consumer),
            links=[trace.Link(origin) for origin in origins if origin.is_valid],
            record_exception=False,  # its text may quote the payload
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except BaseException as error:
                mark_failed(span, type(error).__qualname__)
                raise
    finally:
        context.detach(token)


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
