"""Traces: OpenTelemetry spans of relays and consumers, in the trace in which the message was added."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from postroom.errors import DriverMissing
from postroom.rules.lifecycle import OutcomeCode
from postroom.telemetry.events import (
    NOT_TRIED,
    Expired,
    Lifecycle,
    NotSettled,
    Published,
    Settled,
    adapter,
    listeners,
    one_word,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from postroom.message import Message
    from postroom.telemetry.events import Event, Hook

SCOPE = "postroom"
MOST_OPEN = 100_000
"""Open spans of messages that are sent and not settled; beyond that, the oldest are ended."""
_SYSTEMS = {
    "amqp": "rabbitmq",
    "amqps": "rabbitmq",
    "kafka+ssl": "kafka",
    "nats+tls": "nats",
    "rediss": "redis",
    "https": "http",
}
"""OpenTelemetry's name of a system, if it is not the URL's scheme."""
_DONE = frozenset({OutcomeCode.SUCCESS, OutcomeCode.DEDUP_HIT})
_OUTCOMES = frozenset(outcome.value for outcome in OutcomeCode)


def opentelemetry(tracer_provider: TracerProvider | None = None) -> Traces:
    """A hook that creates spans with the given provider; default: the current one.

    A relay creates ``outbox.process``, and in it ``broker.send``, for each message in the trace that its
    ``traceparent`` names; messages of a batch without one share a pair. A consumer's handlers run in spans of the same
    provider. No span holds a payload, a header, a key or the text of an error. Raises `DriverMissing`.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        raise DriverMissing("traces need opentelemetry-api: pip install 'postroom[traces]'") from None
    return Traces(trace.get_tracer(SCOPE, tracer_provider=tracer_provider))


def tracer_of(hook: Hook | None) -> Tracer | None:
    """The tracer of the hook, if it includes traces."""
    found = [one.tracer for one in (listeners(hook) if hook else ()) if isinstance(one, Traces)]
    return found[0] if found else None


def context_of(headers: Mapping[str, str]) -> Context:
    """The W3C trace context of a message; empty if it has none."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({name.lower(): value for name, value in headers.items()}, Context())


class Traces:
    """A hook, made by `opentelemetry`. Spans are created, with their times, when what they describe is over."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self._open: dict[UUID, Span] = {}

    def __call__(self, event: Event) -> None:
        """Make spans of an event."""
        match event:
            case Published():
                self._published(event)
            case Settled():
                outcome = event.outcome.value
                failed = "" if event.outcome in _DONE else event.code or outcome
                for message in event.messages:
                    self._end(message, outcome, failed)
            case Expired():
                for message in event.messages:
                    self._end(message, "expired")
            case NotSettled():
                self._end(event.message, event.outcome.value, event.outcome.value)
            case Lifecycle(what="stopped"):
                self._forget(0)
            case _:
                pass

    def _published(self, event: Published) -> None:
        ended = time.time_ns()
        began = ended - int(event.seconds * 1e9)
        without_trace: list[int] = []
        for index, message in enumerate(event.messages):
            failed = event.failed.get(index)
            if failed == NOT_TRIED:
                continue
            context = context_of(message.headers) if message.headers else None
            if not context:
                without_trace.append(index)
                continue
            process = self._process(context, message, event.broker, began)
            if not process.is_recording():  # not sampled
                continue
            self._send(process, [message], event, failed, (began, ended))
            self._keep(message, process)
        if without_trace:
            self._batch(event, without_trace, (began, ended))
        self._forget(MOST_OPEN)

    def _batch(self, event: Published, indexes: Sequence[int], times: tuple[int, int]) -> None:
        """Start a new trace for messages that belong to none."""
        from opentelemetry.context import Context

        messages = [event.messages[index] for index in indexes]
        failed = next((event.failed[index] for index in indexes if index in event.failed), None)
        began, ended = times
        process = self.tracer.start_span(
            "outbox.process", Context(), attributes=_about(messages, event.broker), start_time=began
        )
        self._send(process, messages, event, failed, times)
        process.end(ended)

    def _process(self, context: Context, message: Message, broker: str, began: int) -> Span:
        attributes = _about([message], broker)
        if message.created_at is not None:
            waited = began / 1e9 - message.created_at.timestamp()
            attributes["postroom.outbox.waited_seconds"] = round(max(0.0, waited), 3)
        return self.tracer.start_span("outbox.process", context, attributes=attributes, start_time=began)

    def _send(
        self,
        process: Span,
        messages: Sequence[Message],
        event: Published,
        failed: str | None,
        times: tuple[int, int],
    ) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context

        attributes = {
            **_about(messages, event.broker),
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "postroom.round_trip_ms": round(event.seconds * 1000, 3),
        }
        began, ended = times
        send = self.tracer.start_span(
            "broker.send", set_span_in_context(process), SpanKind.PRODUCER, attributes, start_time=began
        )
        if failed:
            mark_failed(send, failed)
        send.end(ended)

    def _keep(self, message: Message, process: Span) -> None:
        """Keep the span open until the message is settled. A span from an earlier attempt ends now."""
        before = self._open.pop(message.id, None)
        if before is not None:
            before.end()
        self._open[message.id] = process

    def _end(self, message: Message, outcome: str, failed: str = "") -> None:
        process = self._open.pop(message.id, None)
        if process is None:
            return
        process.set_attribute("postroom.outcome", outcome)
        if failed:
            mark_failed(process, failed)
        process.end()

    def _forget(self, most: int) -> None:
        while len(self._open) > most:
            self._open.pop(next(iter(self._open))).end()


def mark_failed(span: Span, code: str) -> None:
    """Mark a span as failed, with a code of one word: error texts may quote anything."""
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, code if code in _OUTCOMES else None)
    span.set_attribute("error.type", one_word(code))


def _about(messages: Sequence[Message], broker: str) -> dict[str, Any]:
    name = adapter(broker)
    scheme = name.partition(":")[0]
    attributes: dict[str, Any] = {
        "messaging.system": _SYSTEMS.get(scheme, scheme),
        "postroom.adapter": name,
    }
    first = messages[0]
    if all(message.topic == first.topic for message in messages):
        attributes["messaging.destination.name"] = first.topic
    if len(messages) == 1:
        attributes["messaging.message.id"] = str(first.id)
    else:
        attributes["messaging.batch.message_count"] = len(messages)
    return attributes
