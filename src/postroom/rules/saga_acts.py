"""What an operator may do to a saga: which step can be skipped, and from which step a new saga can take over."""

from collections.abc import Sequence
from dataclasses import dataclass

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Direction, Outcomes, Plan, Run, StepOutcome, Undo, next_move
from postroom.rules.saga_state import STEP_MISSING, SagaState

FORKABLE = frozenset({SagaState.PARKED, SagaState.COMPLETED, SagaState.COMPENSATED})


def can_skip(stored: Stored | None, error_code: str) -> bool:
    """Whether what comes next has failed, and no worker has it: the saga is parked, stranded or waits for a retry.

    One that was just resumed has not: otherwise a skip that is repeated would skip the next step as well.
    """
    match stored:
        case Stored.DEAD:
            return True
        case Stored.RETRY:
            return bool(error_code)
        case Stored.SCHEDULED:
            return error_code == STEP_MISSING
        case _:
            return False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why it cannot be done, and what can be done instead."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """Put this step on record as skipped, in this direction."""

    direction: Direction
    step: str


@dataclass(frozen=True, slots=True)
class Fork:
    """What the new saga takes over."""

    kept: tuple[str, ...]
    """Steps whose record it takes over, in the order of the plan."""
    not_undone: tuple[str, ...]
    """Those among them that it must never undo: they belong to the old saga."""


def step_to_skip(plan: Plan, direction: Direction, outcomes: Outcomes, step: str | None) -> Skip | Refusal:
    """Decide which step is skipped: the one that comes next, or the named one of a group that comes next."""
    match next_move(plan, direction, outcomes):
        case Run(steps=steps):
            names = [one.name for one in steps]
        case Undo(step=one):
            names = [one.name]
        case _:
            return Refusal("all its steps are on record: nothing is left to skip; resume it")
    if step is None:
        if len(names) == 1:
            return Skip(direction, names[0])
        return Refusal(f"several steps come next: say which one to skip, {_or(names)}")
    if step in names:
        return Skip(direction, step)
    if not any(one.name == step for one in plan):
        return Refusal(f"its plan has no step {step!r}: the steps are {', '.join(one.name for one in plan)}")
    what = "step" if direction is Direction.FORWARD else "compensation"
    return Refusal(f"{what} {step!r} does not come next: only {_or(names)} can be skipped now")


def fork_from(plan: Plan, outcomes: Outcomes, step: str) -> Fork | Refusal:
    """Decide what a new saga takes over that begins at this step, or at the group that the step is in."""
    at = next((index for index, one in enumerate(plan) if one.name == step), None)
    if at is None:
        return Refusal(f"its plan has no step {step!r}: the steps are {', '.join(one.name for one in plan)}")
    before = _before(plan, at)
    for one in before:
        if outcomes.get((Direction.BACK, one.name)) is StepOutcome.DONE:
            return Refusal(f"step {one.name!r} before it was undone: fork from {one.name!r} or an earlier step")
        if outcomes.get((Direction.FORWARD, one.name)) not in (StepOutcome.DONE, StepOutcome.SKIPPED):
            return Refusal(f"step {one.name!r} before it was not done: fork from {one.name!r} or an earlier step")
    done = [one for one in before if outcomes[Direction.FORWARD, one.name] is StepOutcome.DONE]
    return Fork(tuple(one.name for one in before), tuple(one.name for one in done if one.compensated))


def _before(plan: Plan, at: int) -> Plan:
    """The steps before the one at this place; before its whole group, if it has one."""
    group = plan[at].group
    while group and at and plan[at - 1].group == group:
        at -= 1
    return plan[:at]


def _or(names: Sequence[str]) -> str:
    return " or ".join(map(repr, names))
