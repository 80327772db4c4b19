"""What an operator may skip, and from where a new saga can take over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_acts import Fork, Refusal, Skip, can_skip, fork_from, step_to_skip
from postroom.rules.saga_plan import Direction, Kind, PlannedStep, StepOutcome
from postroom.rules.saga_state import STEP_MISSING

if TYPE_CHECKING:
    from postroom.rules.saga_plan import Outcomes

FORWARD, BACK = Direction.FORWARD, Direction.BACK
DONE, SKIPPED, FAILED = StepOutcome.DONE, StepOutcome.SKIPPED, StepOutcome.FAILED

PLAN = (
    PlannedStep("reserve", compensated=True),
    PlannedStep("check"),
    PlannedStep("charge", Kind.CALL, group="pay", compensated=True),
    PlannedStep("points", Kind.CALL, group="pay", compensated=True),
    PlannedStep("ship", pivot=True),
)


@pytest.mark.parametrize(
    ("stored", "code", "can"),
    [
        (Stored.DEAD, "", True),
        (Stored.RETRY, "TIMEOUT", True),
        (Stored.RETRY, "", False),
        (Stored.SCHEDULED, STEP_MISSING, True),
        (Stored.SCHEDULED, "", False),
        (Stored.READY, STEP_MISSING, False),
        (None, "", False),
    ],
)
def test_S_5_only_what_failed_and_nobody_holds_can_be_skipped(stored: Stored | None, code: str, *, can: bool) -> None:
    assert can_skip(stored, code) is can


def test_S_5_the_step_that_comes_next_is_skipped() -> None:
    assert step_to_skip(PLAN, FORWARD, {}, None) == Skip(FORWARD, "reserve")
    assert step_to_skip(PLAN, FORWARD, {}, "reserve") == Skip(FORWARD, "reserve")
    done: Outcomes = {(FORWARD, "reserve"): DONE, (FORWARD, "check"): FAILED}
    assert step_to_skip(PLAN, BACK, done, None) == Skip(BACK, "reserve")


def test_S_5_of_a_group_the_step_to_skip_is_named() -> None:
    done: Outcomes = {(FORWARD, "reserve"): DONE, (FORWARD, "check"): DONE}
    assert step_to_skip(PLAN, FORWARD, done, None) == Refusal(
        "several steps come next: say which one to skip, 'charge' or 'points'"
    )
    assert step_to_skip(PLAN, FORWARD, done, "points") == Skip(FORWARD, "points")
    assert step_to_skip(PLAN, FORWARD, {**done, (FORWARD, "charge"): DONE}, None) == Skip(FORWARD, "points")


def test_S_5_what_does_not_come_next_is_not_skipped() -> None:
    assert step_to_skip(PLAN, FORWARD, {}, "ship") == Refusal(
        "step 'ship' does not come next: only 'reserve' can be skipped now"
    )
    done: Outcomes = {(FORWARD, "reserve"): DONE}
    assert step_to_skip(PLAN, BACK, done, "check") == Refusal(
        "compensation 'check' does not come next: only 'reserve' can be skipped now"
    )
    assert step_to_skip(PLAN, FORWARD, {}, "chrage") == Refusal(
        "its plan has no step 'chrage': the steps are reserve, check, charge, points, ship"
    )
    over: Outcomes = {(FORWARD, step.name): DONE for step in PLAN}
    assert step_to_skip(PLAN, FORWARD, over, None) == Refusal(
        "all its steps are on record: nothing is left to skip; resume it"
    )


def test_S_5_a_fork_takes_over_what_was_done_before_and_never_undoes_it() -> None:
    done: Outcomes = {(FORWARD, "reserve"): DONE, (FORWARD, "check"): SKIPPED, (FORWARD, "charge"): DONE}
    assert fork_from(PLAN, done, "reserve") == Fork((), ())
    assert fork_from(PLAN, done, "charge") == Fork(("reserve", "check"), ("reserve",))
    # A group begins again as a whole.
    assert fork_from(PLAN, done, "points") == Fork(("reserve", "check"), ("reserve",))


def test_S_5_a_fork_does_not_take_over_what_was_undone_or_never_done() -> None:
    done: Outcomes = {(FORWARD, "reserve"): DONE, (FORWARD, "check"): DONE}
    assert fork_from(PLAN, {**done, (BACK, "reserve"): DONE}, "charge") == Refusal(
        "step 'reserve' before it was undone: fork from 'reserve' or an earlier step"
    )
    assert fork_from(PLAN, {**done, (BACK, "reserve"): SKIPPED}, "charge") == Fork(("reserve", "check"), ("reserve",))
    assert fork_from(PLAN, done, "ship") == Refusal(
        "step 'charge' before it was not done: fork from 'charge' or an earlier step"
    )
    assert fork_from(PLAN, {**done, (FORWARD, "check"): FAILED}, "charge") == Refusal(
        "step 'check' before it was not done: fork from 'check' or an earlier step"
    )
    assert fork_from(PLAN, {}, "chrage") == Refusal(
        "its plan has no step 'chrage': the steps are reserve, check, charge, points, ship"
    )
