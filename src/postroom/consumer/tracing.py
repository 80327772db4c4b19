"""The sender's trace, continued while a handler runs: what it adds to the outbox belongs to it too."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.incoming import Incoming


@contextmanager
def continued(messages: Sequence[Incoming]) -> Iterator[None]:
    """Make the W3C trace context of the message the current one. Several messages have no trace in common.

    An application that never loaded OpenTelemetry has no traces.
    """
    if "opentelemetry.trace" not in sys.modules or len(messages) != 1:
        yield
        return
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers = {name.lower(): value for name, value in messages[0].headers.items()}
    token = context.attach(TraceContextTextMapPropagator().extract(headers))
    try:
        yield
    finally:
        context.detach(token)
