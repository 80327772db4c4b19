"""Calls of a saga's functions, each with a context of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.telemetry.running_spans import step_span

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from opentelemetry.trace import Tracer

    from postroom.rules.saga_plan import Direction
    from postroom.saga.context import SagaContext
    from postroom.saga.steps import Action
    from postroom.store.outbox.leases import Claimed


class Returned(NamedTuple):
    """What a function returned, and the context that it was called with."""

    context: SagaContext[Any]
    value: Any
    seconds: float


class StepCall:
    """One call of a function of a saga. It may be made again, if what it did before is undone."""

    def __init__(
        self,
        claimed: Claimed,
        action: Action[..., Any],
        step: str,
        direction: Direction,
        *,
        timeout: float,
        context: Callable[[Any], SagaContext[Any]],
        value: Any = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`context` makes one for a connection; `value` is an event or a result, for a function that takes one.

        `tracer` makes the span that the function runs in, in the trace of who started the saga.
        """
        self.claimed = claimed
        self.action = action
        self.step = step
        self.direction = direction
        self.timeout = timeout
        self._context = context
        self._value = value
        self._tracer = tracer

    @property
    def is_async(self) -> bool:
        """Whether the function is."""
        return self.action.is_async

    def run(self, connection: Any) -> Returned:
        """Call a sync function."""
        context, started = self._context(connection), time.monotonic()
        with self._span(context):
            value = self.action.call(context, self._value)
        return Returned(context, value, time.monotonic() - started)

    async def arun(self, connection: Any) -> Returned:
        """Call an async function."""
        context, started = self._context(connection), time.monotonic()
        with self._span(context):
            value = await self.action.call(context, self._value)
        return Returned(context, value, time.monotonic() - started)

    def _span(self, context: SagaContext[Any]) -> AbstractContextManager[None]:
        return step_span(
            *(context.name, self.step, self.direction, self.claimed.message.headers),
            id=context.id,
            attempt=context.attempt,
            tracer=self._tracer,
        )
