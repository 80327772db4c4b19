"""Calls of a saga's functions, each with a context of its own."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from postroom.runtime.call import Call
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


class StepCall(Call):
    """One call of a function of a saga. It may be made again, with a new context, if what it did before is undone."""

    def __init__(  # noqa: PLR0913 - what is optional comes by its name
        self,
        claimed: Claimed,
        action: Action[..., Any],
        step: str,
        direction: Direction,
        *,
        timeout: float,
        context: Callable[[str, Direction, Any], SagaContext[Any]],
        value: Any = None,
        tracer: Tracer | None = None,
        progress: list[bool] | None = None,
    ) -> None:
        """`context` makes one for a step, a direction and a connection.

        `value` is an event or a result, for a function that takes one. `tracer` makes the span that the function
        runs in, in the trace of who started the saga.
        """
        super().__init__(
            is_async=action.is_async, timeout=timeout, subjects=frozenset({(claimed.position, step, direction)})
        )
        self.claimed = claimed
        self.action = action
        self.step = step
        self.direction = direction
        self._context = context
        self._value = value
        self._tracer = tracer
        self._may_be_committed = [False] if progress is None else progress
        """Shared with the calls that repeat this one."""

    def again(self) -> Self:
        """The same call once more, after this one has failed."""
        return type(self)(
            *(self.claimed, self.action, self.step, self.direction),
            timeout=self.timeout,
            context=self._context,
            value=self._value,
            tracer=self._tracer,
            progress=self._may_be_committed,
        )

    @property
    def may_be_repeated(self) -> bool:
        """Whether it is called again at once if it has lost its connection: only if it cannot have committed."""
        return not self.is_in_function and not self.has_returned

    @property
    def may_be_committed(self) -> bool:
        """Whether this call or one before it came so far that its transaction may have been committed."""
        return self._may_be_committed[0]

    def note_logged(self) -> None:
        """Note that all is written, and only the commit is left."""
        self._may_be_committed[0] = True

    def run(self, connection: Any) -> Returned:
        """Call a sync function."""
        context, started = self._context(self.step, self.direction, connection), time.monotonic()
        with self._span(context), self.in_function():
            value = self.action.call(context, self._value)
        return Returned(context, value, time.monotonic() - started)

    async def arun(self, connection: Any) -> Returned:
        """Call an async function."""
        context, started = self._context(self.step, self.direction, connection), time.monotonic()
        with self._span(context), self.in_function():
            value = await self.action.call(context, self._value)
        return Returned(context, value, time.monotonic() - started)

    def _span(self, context: SagaContext[Any]) -> AbstractContextManager[None]:
        return step_span(
            *(context.name, self.step, self.direction, self.claimed.message.headers),
            id=context.id,
            attempt=context.attempt,
            tracer=self._tracer,
        )
