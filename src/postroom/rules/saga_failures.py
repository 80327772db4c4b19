"""What follows when a step of a saga fails, waits in vain, or is claimed too often: try again, turn, or park.

To turn is to undo, in reverse order, what was done. To park is to wait for an operator. What cannot be retried turns
the saga; going back, and past the pivot, it parks it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from postroom.rules.backoff import LONGEST_DELAY, RetryPolicy
from postroom.rules.failures import DeadReason, Failure, GiveUp, RetryAfter, after_failure
from postroom.rules.lifecycle import Handling, handling
from postroom.rules.saga_plan import (
    Direction,
    Kind,
    Outcomes,
    Plan,
    PlannedStep,
    frontier,
    past_pivot,
    pivot_may_have_happened,
)

DEFAULT_STEP_TIMEOUT = 30.0
"""Seconds that a step may run."""

STEP_RETRY = RetryPolicy.consistency()
"""The default for steps."""

COMPENSATION_RETRY = RetryPolicy.exponential(base=1.0, cap=600.0, max_attempts=15)
"""The default for compensations: 1 s, doubling to 10 minutes."""


class Why(StrEnum):
    """Why a saga turns or parks."""

    REFUSED = "refused"
    """The step raised `Refused`."""
    PERMANENT = "permanent"
    """The step failed in a way that no retry can fix."""
    EXHAUSTED = "exhausted"
    """The step failed, and no attempt is left."""
    DEADLINE = "deadline"
    """The saga's deadline has passed."""
    TIMED_OUT = "timed_out"
    """The event did not come in time."""
    ABANDONED = "abandoned"
    """Claimed too often without progress: workers may have died of it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Undo what was done."""

    why: Why
    step: str = ""
    """Which failed; empty if it is the one that comes next."""


@dataclass(frozen=True, slots=True)
class Park:
    """Wait for an operator."""

    why: Why
    step: str = ""
    """Which failed; empty if it is the one that comes next."""


@dataclass(frozen=True, slots=True)
class KeepWaiting:
    """Look again in `seconds`, or when an event comes."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GoOn:
    """Run the step now: the time has come, or the wait is over and continues without its event."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where an instance stands, as the worker that holds it knows it."""

    plan: Plan
    direction: Direction
    outcomes: Outcomes
    """What is on record; at a failure in a group, as it was before the group ran."""
    attempts: int = 0
    """Failed attempts since the last progress, without the present one."""
    claims: int = 1
    """Claims since the last progress, the present one included.

    A worker may take its claim off again (give back) only if it began nothing under it: 0 attempts and 1 claim is the
    proof that nobody has tried what comes next.
    """
    remaining: float | None = None
    """Seconds to the deadline; None without one."""


@dataclass(frozen=True, slots=True)
class StepFailure:
    """How a step or a compensation failed, and its retry policy."""

    step: PlannedStep
    failure: Failure
    policy: RetryPolicy
    refused: bool = False
    """It raised `Refused`: this attempt has had no effect, and will have none."""


AfterStepFailure: TypeAlias = RetryAfter | Turn | Park
WithoutEvent: TypeAlias = KeepWaiting | GoOn | Turn | Park


def before_running(at: Position) -> Turn | Park | None:
    """Decide whether the saga turns or parks instead of running what comes next; None: run it.

    Ask before each step, compensation and wait.
    """
    if handling(at.claims) is Handling.DEAD:
        return _stop(Why.ABANDONED, binding=_binds(at, untried=False))
    if at.remaining is not None and at.remaining <= 0 and not _binds(at, untried=_is_untried(at)):
        return Turn(Why.DEADLINE)
    return None


def after_step_failure(at: Position, failures: Sequence[StepFailure], random: float) -> AfterStepFailure:
    """Decide what follows when these have failed: one step, or those of a group that did, in the plan's order.

    One that cannot be retried decides for its group; else all are retried when the last of them is due. `random` is a
    number in [0, 1).
    """
    delays: list[float] = []
    for failed in failures:
        binding = _binds(at, untried=failed.refused and _is_untried(at))
        if failed.refused:
            return _stop(Why.REFUSED, failed.step.name, binding=binding)
        verdict = after_failure(at.attempts + 1, failed.policy, failed.failure, random)
        if isinstance(verdict, GiveUp):
            why = Why.EXHAUSTED if verdict.reason is DeadReason.EXHAUSTED else Why.PERMANENT
            return _stop(why, failed.step.name, binding=binding)
        delays.append(verdict.delay)
    if at.remaining is None or _binds(at, untried=False):
        return RetryAfter(max(delays))
    if at.remaining <= 0:
        return Turn(Why.DEADLINE, failures[0].step.name)
    return RetryAfter(min(max(delays), at.remaining))


def without_event(at: Position, *, waited: float, timeout: float | None, continues: bool) -> WithoutEvent:
    """Decide what a wait does that has no event yet, `waited` seconds after it began.

    Look for the event first: one that is there counts, however late the worker is. `continues`: when the time is over,
    its function runs without an event.
    """
    remaining = time_left(at)
    if remaining is not None and remaining <= 0:
        return Turn(Why.DEADLINE)
    if timeout is not None and waited >= timeout:
        return GoOn() if continues else _stop(Why.TIMED_OUT, binding=_binds(at, untried=False))
    return KeepWaiting(_soonest(None if timeout is None else timeout - waited, remaining))


def asleep(at: Position, seconds: float) -> KeepWaiting | GoOn | Turn:
    """Decide what a sleep does whose time comes in `seconds`."""
    remaining = time_left(at)
    if remaining is not None and remaining <= 0:
        return Turn(Why.DEADLINE)
    return GoOn() if seconds <= 0 else KeepWaiting(_soonest(seconds, remaining))


def time_left(at: Position) -> float | None:
    """Return the seconds until the deadline forces a turn; None if it never does."""
    return None if _binds(at, untried=_is_untried(at)) else at.remaining


def time_allowed(at: Position, timeout: float) -> float:
    """Return how long a step may run: its timeout, at most until the deadline."""
    remaining = time_left(at)
    return timeout if remaining is None else max(0.0, min(timeout, remaining))


def not_to_undo(at: Position, refused: Iterable[str]) -> tuple[str, ...]:
    """Return the calls that a turn records as skipped on the way back, out of those that raised `Refused`.

    Only one that nobody has tried before: an earlier attempt may still be on its way.
    """
    if not _is_untried(at):
        return ()
    names = frozenset(refused)
    return tuple(step.name for step in frontier(at.plan, at.outcomes) if step.kind is Kind.CALL and step.name in names)


def _stop(why: Why, step: str = "", *, binding: bool) -> Turn | Park:
    return Park(why, step) if binding else Turn(why, step)


def _binds(at: Position, *, untried: bool) -> bool:
    """Whether the saga must not turn. `untried`: what comes next is known not to have happened."""
    if at.direction is Direction.BACK or past_pivot(at.plan, at.outcomes):
        return True
    return not untried and pivot_may_have_happened(at.plan, at.outcomes)


def _is_untried(at: Position) -> bool:
    """Whether the worker that holds the saga is the first to try what comes next.

    In a group, one that is done resets the claims for all of it; so nothing of the group may be on record.
    """
    steps = frontier(at.plan, at.outcomes)
    group = steps[0].group if steps else ""
    begun = any(step.group == group and (Direction.FORWARD, step.name) in at.outcomes for step in at.plan if step.group)
    return at.attempts == 0 and at.claims == 1 and not begun


def _soonest(seconds: float | None, remaining: float | None) -> float:
    return min([LONGEST_DELAY, *(each for each in (seconds, remaining) if each is not None)])
