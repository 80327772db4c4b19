"""Attempts at the functions of an instance: call, log, and say what came of it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from postroom.errors import SagaNotDecodable
from postroom.rules.saga_failures import time_allowed
from postroom.rules.saga_plan import Direction, Kind
from postroom.saga.context import SagaContext
from postroom.saga.running.journal import NotBegun
from postroom.saga.running.step_calls import StepCall
from postroom.saga.running.step_failures import Failed, failed
from postroom.saga.running.stranded import Stranded
from postroom.store.saga.values import Logged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.rules.saga_failures import Position
    from postroom.rules.saga_plan import PlannedStep
    from postroom.saga.running.journal import Record
    from postroom.saga.running.recorder import Recorder
    from postroom.saga.running.running import Running
    from postroom.saga.running.state import InstanceState
    from postroom.saga.running.step_calls import Returned
    from postroom.saga.steps import Action
    from postroom.store.saga.values import Event

Attempted: TypeAlias = Logged | Failed | NotBegun | Stranded


class _DataNotDecodable(SagaNotDecodable):
    """The saga's data cannot be decoded, and so the function was not called."""


class Attempts:
    """Makes attempts at the functions of one instance."""

    def __init__(self, running: Running, state: InstanceState, recorder: Recorder) -> None:
        self._running = running
        self._state = state
        self._recorder = recorder

    async def make(
        self,
        planned: PlannedStep,
        action: Action[..., Any],
        before: Position,
        *,
        value: Any = None,
        event: Event | None = None,
        ends: bool = True,
    ) -> Attempted:
        """Call a function, log it, and note what is written.

        `before` is where the instance stood, `value` what the function gets beside its context, `event` what the log
        removes. `ends`: nothing runs beside it, so that the instance may end with it.
        """
        journal, record = self._running.journal, None
        call = self._call(planned, action, before, value)
        started = journal.monotonic()
        try:
            if planned.kind is Kind.CALL:
                record = self._record(planned, await journal.run_call(call), event, ends=ends)
                logged = await journal.log(self._state.claimed, record)
            else:
                logged, record = await self._run_step(planned, call, event, ends=ends)
        except NotBegun as problem:
            return problem
        except _DataNotDecodable as error:
            return Stranded(planned.name, str(error))
        except SagaNotDecodable as error:
            return Stranded(planned.name, str(error), tried=planned.kind is Kind.CALL)  # it may have had its effect
        except Exception as error:  # noqa: BLE001 - whatever a function raises is a failed attempt
            seconds = journal.monotonic() - started
            return failed(planned, action, error, self._running.classifier, seconds, call.timeout)
        if logged is Logged.WRITTEN and record is not None:
            self._recorder.written(record)
        return logged

    async def make_all(
        self, steps: Sequence[tuple[PlannedStep, Action[..., Any]]], before: Position
    ) -> list[Attempted]:
        """Call all functions of a group at the same time. Returns when all have ended."""
        runs = [self.make(planned, action, before, ends=False) for planned, action in steps]
        return await asyncio.gather(*runs)

    async def _run_step(
        self, planned: PlannedStep, call: StepCall, event: Event | None, *, ends: bool
    ) -> tuple[Logged, Record | None]:
        """Call a function in a transaction. Returns what became of its record, and the record, if there is one."""
        made: Record | None = None

        def record(returned: Returned) -> Record:
            nonlocal made
            made = self._record(planned, returned, event, ends=ends)
            return made

        return await self._running.journal.run_step(call, record), made

    def _call(self, planned: PlannedStep, action: Action[..., Any], before: Position, value: Any) -> StepCall:
        direction, timeout = before.direction, action.timeout
        if direction is Direction.FORWARD and before.remaining is not None:
            timeout = time_allowed(before, timeout)
        return StepCall(
            *(self._state.claimed, action, planned.name, direction),
            timeout=timeout,
            context=self._context,
            value=value,
            tracer=self._running.tracer,
        )

    def _context(self, step: str, direction: Direction, connection: Any) -> SagaContext[Any]:
        saga, state, journal = self._running.saga, self._state, self._running.journal
        now, monotonic = journal.now(), journal.monotonic()
        remaining = state.remaining(monotonic)
        return SagaContext(
            name=saga.name,
            id=state.id,
            step=step,
            direction=direction,
            attempt=state.claimed.attempts + 1,
            data=self._data(),
            connection=connection,
            started_at=now - timedelta(seconds=state.age(monotonic)),
            deadline=None if remaining is None else now + timedelta(seconds=remaining),
            steps=saga.steps,
            results=state.results,
            failure=state.failure,
        )

    def _data(self) -> Any:
        try:
            return self._running.saga.decode(self._state.data)
        except SagaNotDecodable as error:
            raise _DataNotDecodable(str(error)) from None

    def _record(self, planned: PlannedStep, returned: Returned, event: Event | None, *, ends: bool) -> Record:
        """What is written for a function that has returned. Raises if what it returned or changed cannot be kept."""
        saga, context = self._running.saga, returned.context
        data = saga.changed_data(self._state.data, context)
        result = saga.encode_result(planned.name, returned.value)
        entry = self._recorder.done(planned.name, context.direction, returned.seconds, result, data)
        if not ends:
            return self._recorder.record([entry], None, event)._replace(keeps_attempts=True)
        return self._recorder.record([entry], self._state.end_after([entry]), event)
