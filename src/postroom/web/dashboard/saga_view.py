"""How a saga is shown: every step of its plan, with what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.admin import Direction, SagaState, SagaStep, StepOutcome
from postroom.rules.saga_acts import FORKABLE, Fork, fork_from

if TYPE_CHECKING:
    from postroom.admin import NextStep, SagaDetails

_ENDED = (SagaState.COMPLETED, SagaState.COMPENSATED)


class TimelineStep(NamedTuple):
    """One step or compensation."""

    name: str
    kind: str
    """done, failed, waiting, skipped, next, later, undone."""
    text: str
    record: SagaStep | None
    next: NextStep | None


def timeline(saga: SagaDetails) -> list[TimelineStep]:
    """What is on record in its order, what comes next, and what the plan has after it."""
    found = [TimelineStep(one.step, _kind(one), _text(one), one, None) for one in saga.steps]
    waiting = {one.step for one in saga.steps if one.outcome is StepOutcome.WAITING}
    found += [
        TimelineStep(one.step, *_coming(saga.state, one), None, one) for one in saga.next if one.step not in waiting
    ]
    if saga.direction is not Direction.BACK and saga.state not in _ENDED:
        seen = {one.step for one in saga.steps} | {one.step for one in saga.next}
        later = [step.name for step in saga.plan if step.name not in seen]
        found += [TimelineStep(name, "later", "not yet", None, None) for name in later]
    return found


def acts_on(state: SagaState, direction: Direction) -> tuple[str, ...]:
    """What an operator may try."""
    back = direction is Direction.BACK
    return tuple(act for act in _acts_in(state) if act != "abort" or not back)


def acts_on_all(state: SagaState | None) -> tuple[str, ...]:
    """What an operator may try on everything that a filter shows."""
    match state:
        case None | SagaState.PARKED:
            return ("resume", "skip", "abort")
        case SagaState.STRANDED:
            return ("skip", "abort")
        case SagaState.COMPLETED | SagaState.COMPENSATED:
            return ()
        case _:
            return ("abort",)


def fork_steps(saga: SagaDetails) -> list[str]:
    """The steps from which a new saga can take over."""
    if saga.state not in FORKABLE:
        return []
    outcomes = {(one.direction, one.step): one.outcome for one in saga.steps}
    return [step.name for step in saga.plan if isinstance(fork_from(saga.plan, outcomes, step.name), Fork)]


def _acts_in(state: SagaState) -> tuple[str, ...]:
    match state:
        case SagaState.COMPLETED | SagaState.COMPENSATED:
            return ()
        case SagaState.PARKED:
            return ("resume", "skip", "abort")
        case SagaState.STRANDED | SagaState.RETRYING:
            return ("skip", "abort")
        case _:
            return ("abort",)


def _coming(state: SagaState, step: NextStep) -> tuple[str, str]:
    compensates = step.direction is Direction.BACK
    if state is SagaState.PARKED and step.error_code:
        return "failed", "compensation failed for good" if compensates else "failed for good"
    return "next", "compensates next" if compensates else "next"


def _kind(step: SagaStep) -> str:
    if step.outcome is StepOutcome.WAITING:
        return "waiting"
    name = step.outcome.name.lower()
    if name == "skipped":
        return "skipped"
    if step.error_code and name != "done":
        return "failed"
    return "undone" if step.direction is Direction.BACK else "done"


def _text(step: SagaStep) -> str:
    word = step.outcome.name.lower().replace("_", " ")
    return f"compensation {word}" if step.direction is Direction.BACK else word
