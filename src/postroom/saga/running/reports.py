"""Reports what instances of a saga do: events go to the hook in batches, as they happen together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.telemetry.saga_events import EndedSaga, EndedStep, SagasEnded, StepEnd, StepsEnded

if TYPE_CHECKING:
    from postroom.rules.saga_plan import Direction, SagaOutcome
    from postroom.telemetry.events import Hook
    from postroom.telemetry.saga_events import SagaEvent


class Reports:
    """Events of one saga. What ends in the same moment is one event."""

    def __init__(self, saga: str, hook: Hook) -> None:
        self._saga = saga
        self._hook = hook
        self._steps: list[EndedStep] = []
        self._ended: list[EndedSaga] = []
        self._is_due = False

    def step(
        self,
        id: str,
        step: str,
        direction: Direction,
        end: StepEnd,
        seconds: float = 0.0,
        attempts: int = 1,
        code: str = "",
        error: BaseException | None = None,
    ) -> None:
        """An attempt at a step has ended."""
        self._steps.append(EndedStep(id, step, direction, end, seconds, attempts, code, error))
        self._soon()

    def ended(self, id: str, outcome: SagaOutcome, seconds: float) -> None:
        """An instance has ended."""
        self._ended.append(EndedSaga(id, outcome, seconds))
        self._soon()

    def event(self, event: SagaEvent) -> None:
        """Something rarer has happened. What happened before it is reported first."""
        self.flush()
        self._hook(event)

    def flush(self) -> None:
        """Report what has been collected."""
        self._is_due = False
        if self._steps:
            steps, self._steps = self._steps, []
            self._hook(StepsEnded(self._saga, steps))
        if self._ended:
            ended, self._ended = self._ended, []
            self._hook(SagasEnded(self._saga, ended))

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.flush)
