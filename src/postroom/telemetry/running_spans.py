"""Spans around the user's functions: they continue a sender's trace, including what the function sends itself."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from postroom.rules.saga_plan import Direction
from postroom.telemetry.traces import SCOPE, context_of, mark_failed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.trace import SpanKind, Tracer

_NO_SPAN = nullcontext()


def tracing() -> bool:
    """Whether OpenTelemetry is loaded: if not, no span is worth its preparation."""
    return "opentelemetry.trace" in sys.modules


@contextmanager
def running(
    name: str,
    origins: Sequence[Mapping[str, str]],
    attributes: Mapping[str, Any],
    kind: SpanKind | None = None,
    tracer: Tracer | None = None,
) -> Iterator[None]:
    """Run the block in a span, of this tracer or of the provider in force. OpenTelemetry must be loaded.

    `origins` are the headers of the messages. The span is a child of the span that one message names as its origin; for
    several messages, it has links to each origin instead. If OpenTelemetry is not configured, there is no span, and the
    sender's context is the current one. What the block raises marks the span as failed, without its text.
    """
    from opentelemetry import context, trace

    tracer = tracer or trace.get_tracer(SCOPE)
    contexts = [context_of(headers) for headers in origins]
    alone = len(contexts) == 1
    links = [] if alone else [trace.get_current_span(context).get_span_context() for context in contexts]
    token = context.attach(contexts[0] if alone else context.Context())
    try:
        with tracer.start_as_current_span(
            name,
            kind=trace.SpanKind.INTERNAL if kind is None else kind,
            attributes=attributes,
            links=[trace.Link(origin) for origin in links if origin.is_valid],
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


def step_span(
    saga: str,
    step: str,
    direction: Direction,
    headers: Mapping[str, str],
    *,
    id: str,
    attempt: int = 1,
    tracer: Tracer | None = None,
) -> AbstractContextManager[None]:
    """A span around one attempt at a step or compensation, in the trace of who started the saga.

    `headers` are those of the start message; `tracer` is `tracer_of(hook)`. Enter it in the thread or task that runs
    the function. Costs nothing where OpenTelemetry is not loaded.
    """
    if not tracing():
        return _NO_SPAN
    what = "step" if direction is Direction.FORWARD else "compensation"
    attributes = {
        "postroom.saga.name": saga,
        "postroom.saga.id": id,
        "postroom.saga.step": step,
        "postroom.saga.direction": direction.name.lower(),
        "postroom.saga.attempt": attempt,
    }
    return running(f"{what} {saga}.{step}", [headers], attributes, tracer=tracer)
