"""The plan of a saga: which step comes next, forward or back, given what is on record.

An instance follows the plan that it began with. Nothing else decides what runs: not a counter, not a pointer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TypeAlias


class Kind(StrEnum):
    """What a step does, and so how its log is kept."""

    STEP = "step"
    """Its effects are in the service's own database, and commit together with its log."""
    CALL = "call"
    """Its effects are elsewhere: it may have happened although no log says so."""
    WAIT = "wait"
    """Waits for an event; its function then runs as a step."""
    SLEEP = "sleep"
    """Waits for a time."""


class Direction(IntEnum):
    """The tables depend on these values."""

    FORWARD = 0
    BACK = 1


class StepOutcome(IntEnum):
    """What is on record for a step, in one direction. The tables depend on these values."""

    DONE = 1
    WAITING = 2
    SKIPPED = 3
    FAILED = 4


class SagaOutcome(IntEnum):
    """The tables depend on these values."""

    OPEN = 0
    COMPLETED = 1
    COMPENSATED = 2


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step as it was when the instance began."""

    name: str
    kind: Kind = Kind.STEP
    group: str = ""
    """Steps of one group stand together, and run at the same time."""
    pivot: bool = False
    """Once it is passed, the saga only goes forward."""
    compensated: bool = False
    """Whether there is a compensation."""
    event: str = ""
    """What a wait waits for."""
    attempts: int = 0
    """How many it had; 0: the default. For people alone: a worker goes by its own code."""
    undo_attempts: int = 0
    """The same of its compensation."""


Plan: TypeAlias = tuple[PlannedStep, ...]
Outcomes: TypeAlias = Mapping[tuple[Direction, str], StepOutcome]


@dataclass(frozen=True, slots=True)
class Run:
    """Run these forward, at the same time: one step, or all of a group that are not done."""

    steps: tuple[PlannedStep, ...]


@dataclass(frozen=True, slots=True)
class Undo:
    """Run the compensation of this step."""

    step: PlannedStep


@dataclass(frozen=True, slots=True)
class End:
    """Nothing is left to do."""

    outcome: SagaOutcome


Move: TypeAlias = Run | Undo | End

_PASSED = frozenset({StepOutcome.DONE, StepOutcome.SKIPPED})


def next_move(plan: Plan, direction: Direction, outcomes: Outcomes) -> Move:
    """Decide what comes next."""
    if direction is Direction.FORWARD:
        steps = frontier(plan, outcomes)
        return Run(steps) if steps else End(SagaOutcome.COMPLETED)
    for step in to_undo(plan, outcomes):
        if outcomes.get((Direction.BACK, step.name)) not in _PASSED:
            return Undo(step)
    return End(SagaOutcome.COMPENSATED)


def frontier(plan: Plan, outcomes: Outcomes) -> tuple[PlannedStep, ...]:
    """Return the first step that has not been passed, or all of its group that have not; nothing at the end."""
    left = [step for step in plan if outcomes.get((Direction.FORWARD, step.name)) not in _PASSED]
    if not left or not left[0].group:
        return tuple(left[:1])
    return tuple(step for step in left if step.group == left[0].group)


def to_undo(plan: Plan, outcomes: Outcomes) -> tuple[PlannedStep, ...]:
    """Return what must be undone, in that order, whether or not it has been.

    It is what was done, in reverse, and every call that comes next, begun or not: a worker that has lost its lease may
    still be sending it. A step that comes next and is not a call needs none: it cannot commit without the lease.
    """
    steps = frontier(plan, outcomes)
    return tuple(
        step
        for step in reversed(plan)
        if step.compensated and (_is_done(step, outcomes) or (step in steps and step.kind is Kind.CALL))
    )


def past_pivot(plan: Plan, outcomes: Outcomes) -> bool:
    """Whether the pivot is done or skipped, so that the saga can only go forward: nothing can undo what follows it."""
    return any(step.pivot and outcomes.get((Direction.FORWARD, step.name)) in _PASSED for step in plan)


def pivot_may_have_happened(plan: Plan, outcomes: Outcomes) -> bool:
    """Whether the saga must not turn, as far as the record tells: past its pivot, or at one that may have happened.

    The latter is a pivot that is a call, comes next and has no compensation. Nothing could undo it, and a worker that
    has lost its lease may still be sending it. Only an operator can know better.
    """
    return past_pivot(plan, outcomes) or any(
        step.pivot and step.kind is Kind.CALL and not step.compensated for step in frontier(plan, outcomes)
    )


def _is_done(step: PlannedStep, outcomes: Outcomes) -> bool:
    return outcomes.get((Direction.FORWARD, step.name)) is StepOutcome.DONE
