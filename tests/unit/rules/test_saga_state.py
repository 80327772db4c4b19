"""The state of a saga that people see."""

from typing import cast

import pytest

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Direction, SagaOutcome
from postroom.rules.saga_state import STEP_MISSING, SagaState, saga_state

FORWARD, BACK = Direction.FORWARD, Direction.BACK
OPEN = SagaOutcome.OPEN


def shown(
    direction: Direction,
    stored: Stored | None,
    *,
    outcome: SagaOutcome = OPEN,
    taken: bool = True,
    error_code: str = "",
) -> SagaState:
    return saga_state(direction, outcome, stored, taken=taken, error_code=error_code)


def test_S_2_states_have_the_names_of_the_field() -> None:
    assert " ".join(SagaState) == (
        "started running waiting retrying compensating parked stranded completed compensated"
    )


def test_a_saga_that_nobody_has_taken_is_started_and_then_runs() -> None:
    assert shown(FORWARD, Stored.READY, taken=False) is SagaState.STARTED
    assert shown(FORWARD, Stored.READY) is SagaState.RUNNING


def test_the_delivery_tells_what_a_saga_waits_for() -> None:
    assert shown(FORWARD, Stored.SCHEDULED) is SagaState.WAITING
    assert shown(FORWARD, Stored.RETRY) is SagaState.RETRYING
    assert shown(FORWARD, Stored.RETRY, error_code="TIMEOUT") is SagaState.RETRYING


@pytest.mark.parametrize("stored", [Stored.READY, Stored.SCHEDULED, Stored.RETRY])
def test_a_saga_on_its_way_back_is_compensating_whatever_it_waits_for(stored: Stored) -> None:
    assert shown(BACK, stored) is SagaState.COMPENSATING
    assert shown(BACK, stored, taken=False) is SagaState.COMPENSATING


@pytest.mark.parametrize("direction", Direction)
def test_what_needs_somebody_is_shown_in_either_direction(direction: Direction) -> None:
    assert shown(direction, Stored.DEAD) is SagaState.PARKED
    assert shown(direction, Stored.DEAD, error_code=STEP_MISSING) is SagaState.PARKED
    assert shown(direction, None) is SagaState.PARKED
    assert shown(direction, Stored.SCHEDULED, error_code=STEP_MISSING) is SagaState.STRANDED
    assert shown(direction, Stored.RETRY, error_code=STEP_MISSING) is SagaState.STRANDED
    assert shown(direction, Stored.READY, error_code=STEP_MISSING) is not SagaState.STRANDED


@pytest.mark.parametrize("direction", Direction)
def test_a_saga_that_has_ended_shows_how(direction: Direction) -> None:
    assert shown(direction, None, outcome=SagaOutcome.COMPLETED) is SagaState.COMPLETED
    assert shown(direction, None, outcome=SagaOutcome.COMPENSATED) is SagaState.COMPENSATED


def test_unknown_values_are_refused() -> None:
    with pytest.raises(AssertionError):
        shown(FORWARD, Stored.READY, outcome=cast("SagaOutcome", 9))
    with pytest.raises(AssertionError):
        shown(FORWARD, cast("Stored", 9))
