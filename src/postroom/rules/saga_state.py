"""The state of a saga that people see. It is never stored: it follows from the saga's row and its delivery."""

from enum import StrEnum
from typing import assert_never

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Direction, SagaOutcome

STEP_MISSING = "STEP_MISSING"
"""The error code of a saga whose plan needs a function, or a form of data, that the code no longer has."""


class SagaState(StrEnum):
    """What a saga is, in the words that every view, command and page uses."""

    STARTED = "started"
    """No worker has taken it yet."""
    RUNNING = "running"
    WAITING = "waiting"
    """For an event or a time."""
    RETRYING = "retrying"
    """A step has failed and is due again later."""
    COMPENSATING = "compensating"
    PARKED = "parked"
    """Needs an operator, who finds the reason in it."""
    STRANDED = "stranded"
    """Needs code that a deploy has taken away."""
    COMPLETED = "completed"
    COMPENSATED = "compensated"


def saga_state(
    direction: Direction, outcome: SagaOutcome, stored: Stored | None, *, taken: bool, error_code: str
) -> SagaState:
    """Return the state that people see.

    `stored` is the number in its delivery, which an open saga has; `taken`: a worker holds it or has held it, or a step
    is on record; `error_code` is that of its delivery.
    """
    match outcome:
        case SagaOutcome.COMPLETED:
            return SagaState.COMPLETED
        case SagaOutcome.COMPENSATED:
            return SagaState.COMPENSATED
        case SagaOutcome.OPEN:
            return _of_open(direction, stored, taken=taken, error_code=error_code)
        case _:
            assert_never(outcome)


def _of_open(direction: Direction, stored: Stored | None, *, taken: bool, error_code: str) -> SagaState:
    """What needs somebody comes first, in either direction."""
    if stored is Stored.DEAD or stored is None:
        # Without a delivery nobody would ever run it again: that needs an operator too.
        return SagaState.PARKED
    if stored is not Stored.READY and error_code == STEP_MISSING:
        return SagaState.STRANDED
    if direction is Direction.BACK:
        return SagaState.COMPENSATING
    match stored:
        case Stored.SCHEDULED:
            return SagaState.WAITING
        case Stored.RETRY:
            return SagaState.RETRYING
        case Stored.READY:
            return SagaState.RUNNING if taken else SagaState.STARTED
        case _:
            assert_never(stored)
