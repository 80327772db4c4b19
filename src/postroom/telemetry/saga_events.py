"""Events of sagas: what their workers report to the hook. Steps and ends come in batches, as they are recorded."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from postroom.telemetry.event_values import EventValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.rules.saga_plan import Direction, SagaOutcome


class StepEnd(StrEnum):
    """How an attempt at a step or a compensation ended."""

    DONE = "done"
    """It is on record."""
    SKIPPED = "skipped"
    """It did not run, and that is on record: its condition said no, or there was nothing to undo."""
    RETRY = "retry"
    """It failed, and is tried again."""
    FAILED = "failed"
    """It failed for good: `SagaTurned` or `SagaParked` follows."""
    LOST = "lost"
    """The lease was lost: what it did in a transaction is rolled back, and another worker decides."""


class SignalEnd(StrEnum):
    """What became of a signal."""

    DELIVERED = "delivered"
    LATE = "late"
    """Its saga had ended."""
    UNKNOWN = "unknown"
    """There is no such saga, or not yet: it is tried again."""
    DEAD = "dead"
    """There is still no such saga: it waits for an operator among the dead letters."""


class EndedStep(NamedTuple):
    """An attempt at a step (forward) or a compensation (back)."""

    id: str
    """The saga's id."""
    step: str
    direction: Direction
    end: StepEnd
    seconds: float = 0.0
    """How long it ran, with its transaction."""
    attempts: int = 1
    """Attempts so far, including this one."""
    code: str = ""
    """The reason, if it failed."""
    error: BaseException | None = None
    """What the function raised. Its text may quote the data: not for logs, unless tracebacks are enabled."""


class EndedSaga(NamedTuple):
    """An instance that came to its end."""

    id: str
    outcome: SagaOutcome
    """Completed or compensated."""
    seconds: float
    """From its start on."""


class StepsEnded(EventValue, frozen=True):
    """Attempts at steps of one saga ended; several if their records were written together."""

    saga: str
    steps: Sequence[EndedStep]


class SagasEnded(EventValue, frozen=True):
    """Instances of one saga ended, as recorded in the database."""

    saga: str
    ended: Sequence[EndedSaga]


class SagaTurned(EventValue, frozen=True):
    """A saga failed, and is compensated from now on."""

    hidden = frozenset({"text"})

    saga: str
    id: str
    step: str
    """The step that failed, or at which the deadline passed."""
    code: str
    text: str = ""
    """It may quote the data: not for logs."""


class SagaParked(EventValue, frozen=True):
    """A saga waits for an operator: a compensation, or a step after the pivot, kept failing."""

    hidden = frozenset({"text"})

    saga: str
    id: str
    step: str
    direction: Direction
    code: str
    text: str = ""
    """It may quote the data: not for logs."""
    attempts: int = 0


class SagaStranded(EventValue, frozen=True):
    """A saga cannot go on with the code of this worker. It is looked at again soon, and no attempt is counted."""

    saga: str
    id: str
    step: str
    code: str
    cure: str
    """What is missing, and how to bring it back. It quotes no data."""


class SagaSignalled(EventValue, frozen=True):
    """A signal was taken up."""

    saga: str
    id: str
    event: str
    end: SignalEnd


SagaEvent = SagaParked | SagaSignalled | SagaStranded | SagaTurned | SagasEnded | StepsEnded
