"""What follows when a step of a saga fails, waits in vain, or is claimed too often."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.rules.backoff import LONGEST_DELAY, RetryPolicy
from postroom.rules.failures import Failure, RetryAfter
from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS
from postroom.rules.saga_failures import (
    COMPENSATION_RETRY,
    GoOn,
    KeepWaiting,
    Park,
    Position,
    StepFailure,
    Turn,
    Why,
    after_step_failure,
    asleep,
    before_running,
    not_to_undo,
    time_allowed,
    without_event,
)
from postroom.rules.saga_plan import Kind, PlannedStep, frontier, past_pivot, pivot_may_have_happened
from tests.unit.rules.saga_plans import BACK, DONE, FORWARD, plans_with_records

NO_JITTER = 0.5
CLAIMS = DEFAULT_CLAIM_LIMITS.dead_after
THREE = RetryPolicy.table([10, 20], max_attempts=3)

RESERVE = PlannedStep("reserve", compensated=True)
CHARGE = PlannedStep("charge", Kind.CALL, compensated=True)
PARCEL = PlannedStep("parcel", Kind.WAIT, event="parcel")
AT_STEP = Position((RESERVE, CHARGE), FORWARD, {})
AT_CALL = Position((RESERVE, CHARGE), FORWARD, {(FORWARD, "reserve"): DONE})
AT_WAIT = Position((PARCEL,), FORWARD, {})

APPROVE = PlannedStep("approve", pivot=True)
PAST_PIVOT = Position((APPROVE, CHARGE), FORWARD, {(FORWARD, "approve"): DONE})
PAST_PIVOT_AT_WAIT = Position((APPROVE, PARCEL), FORWARD, {(FORWARD, "approve"): DONE})
PAY = PlannedStep("pay", Kind.CALL, pivot=True)
AT_PIVOT = Position((PAY,), FORWARD, {})
GOING_BACK = replace(AT_CALL, direction=BACK)

PACK = PlannedStep("pack", Kind.CALL, group="prepare", compensated=True)
LABEL = PlannedStep("label", Kind.CALL, group="prepare", compensated=True)
PRINT = PlannedStep("print", group="prepare", compensated=True)
AT_GROUP = Position((PACK, LABEL, PRINT), FORWARD, {})


def transient(step: PlannedStep, policy: RetryPolicy = THREE) -> StepFailure:
    return StepFailure(step, Failure.TRANSIENT, policy)


def permanent(step: PlannedStep, policy: RetryPolicy = THREE) -> StepFailure:
    return StepFailure(step, Failure.PERMANENT, policy)


def refused(step: PlannedStep, policy: RetryPolicy = THREE) -> StepFailure:
    return StepFailure(step, Failure.PERMANENT, policy, refused=True)


def after(at: Position, *failures: StepFailure) -> RetryAfter | Turn | Park:
    return after_step_failure(at, failures, NO_JITTER)


class TestAfterAFailure:
    def test_S_5_a_transient_failure_is_retried_by_the_policy_and_then_turns(self) -> None:
        assert after(AT_STEP, transient(RESERVE)) == RetryAfter(10)
        assert after(replace(AT_STEP, attempts=1), transient(RESERVE)) == RetryAfter(20)
        assert after(replace(AT_STEP, attempts=2), transient(RESERVE)) == Turn(Why.EXHAUSTED, "reserve")

    def test_permanent_refused_and_conflict_turn_at_once(self) -> None:
        assert after(AT_CALL, permanent(CHARGE)) == Turn(Why.PERMANENT, "charge")
        assert after(AT_CALL, refused(CHARGE)) == Turn(Why.REFUSED, "charge")
        assert after(AT_CALL, StepFailure(CHARGE, Failure.CONFLICT, THREE)) == Turn(Why.PERMANENT, "charge")

    def test_a_retry_is_due_at_the_deadline_at_the_latest(self) -> None:
        assert after(replace(AT_STEP, remaining=60), transient(RESERVE)) == RetryAfter(10)
        assert after(replace(AT_STEP, remaining=4), transient(RESERVE)) == RetryAfter(4)
        assert after(replace(AT_STEP, remaining=0), transient(RESERVE)) == Turn(Why.DEADLINE, "reserve")

    @pytest.mark.parametrize("at", [PAST_PIVOT, GOING_BACK])
    def test_past_the_pivot_and_going_back_what_cannot_be_retried_parks(self, at: Position) -> None:
        assert after(at, transient(CHARGE)) == RetryAfter(10)
        assert after(replace(at, attempts=2), transient(CHARGE)) == Park(Why.EXHAUSTED, "charge")
        assert after(at, permanent(CHARGE)) == Park(Why.PERMANENT, "charge")
        assert after(at, refused(CHARGE)) == Park(Why.REFUSED, "charge")

    @pytest.mark.parametrize("at", [PAST_PIVOT, GOING_BACK])
    def test_past_the_pivot_and_going_back_there_is_no_deadline(self, at: Position) -> None:
        assert after(replace(at, remaining=-5), transient(CHARGE)) == RetryAfter(10)

    def test_compensations_are_retried_for_long_by_default(self) -> None:
        delays = [COMPENSATION_RETRY.delay(attempts, NO_JITTER) for attempts in range(1, 15)]
        assert delays[:3] == [1, 2, 4]
        assert delays[-1] == max(delays) == 600
        assert COMPENSATION_RETRY.exhausted(15)
        assert not COMPENSATION_RETRY.exhausted(14)


class TestGroups:
    def test_all_that_failed_are_retried_when_the_last_is_due(self) -> None:
        slow = RetryPolicy.table([30])
        assert after(AT_GROUP, transient(PACK, slow), transient(PRINT)) == RetryAfter(30)
        assert after(AT_GROUP, transient(PACK), transient(PRINT, slow)) == RetryAfter(30)

    def test_one_that_cannot_be_retried_turns_the_saga(self) -> None:
        assert after(AT_GROUP, transient(PACK), permanent(PRINT)) == Turn(Why.PERMANENT, "print")
        assert after(AT_GROUP, transient(PACK), refused(LABEL), permanent(PRINT)) == Turn(Why.REFUSED, "label")

    def test_one_whose_policy_is_exhausted_turns_the_saga(self) -> None:
        at = replace(AT_GROUP, attempts=2)
        assert after(at, transient(PACK, RetryPolicy.worker()), transient(PRINT)) == Turn(Why.EXHAUSTED, "print")


class TestAPivotThatNothingCanUndo:
    """A call without compensation: once it may have happened, going back would leave it behind."""

    def test_refused_at_the_first_attempt_it_turns(self) -> None:
        assert after(AT_PIVOT, refused(PAY)) == Turn(Why.REFUSED, "pay")

    def test_with_any_other_failure_it_parks(self) -> None:
        once = RetryPolicy.table([1], max_attempts=1)
        assert after(AT_PIVOT, transient(PAY, once)) == Park(Why.EXHAUSTED, "pay")
        assert after(AT_PIVOT, permanent(PAY)) == Park(Why.PERMANENT, "pay")

    @pytest.mark.parametrize("at", [replace(AT_PIVOT, attempts=1), replace(AT_PIVOT, claims=2)])
    def test_refused_at_a_later_attempt_it_parks(self, at: Position) -> None:
        assert after(at, refused(PAY)) == Park(Why.REFUSED, "pay")

    def test_the_deadline_ends_it_only_before_the_first_attempt(self) -> None:
        late = replace(AT_PIVOT, remaining=0)
        assert before_running(late) == Turn(Why.DEADLINE)
        assert after(late, transient(PAY)) == RetryAfter(10)
        assert before_running(replace(late, attempts=1)) is None
        assert before_running(replace(late, claims=2)) is None

    def test_claimed_too_often_parks(self) -> None:
        assert before_running(replace(AT_PIVOT, claims=CLAIMS + 1)) == Park(Why.ABANDONED)

    def test_with_a_compensation_it_turns(self) -> None:
        pay = replace(PAY, compensated=True)
        at = Position((pay,), FORWARD, {}, attempts=2, claims=2)
        assert after(at, transient(pay)) == Turn(Why.EXHAUSTED, "pay")


class TestBeforeRunning:
    def test_runs_what_is_neither_late_nor_claimed_too_often(self) -> None:
        assert before_running(AT_STEP) is None
        assert before_running(replace(AT_STEP, remaining=1, claims=CLAIMS)) is None

    def test_past_its_deadline_it_turns(self) -> None:
        assert before_running(replace(AT_STEP, remaining=0)) == Turn(Why.DEADLINE)
        assert before_running(replace(AT_CALL, remaining=-1, attempts=2, claims=3)) == Turn(Why.DEADLINE)

    def test_claimed_six_times_without_progress_it_turns(self) -> None:
        assert before_running(replace(AT_STEP, claims=CLAIMS + 1)) == Turn(Why.ABANDONED)

    @pytest.mark.parametrize("at", [PAST_PIVOT, GOING_BACK])
    def test_past_the_pivot_and_going_back_claims_park_it_and_no_deadline_counts(self, at: Position) -> None:
        assert before_running(replace(at, remaining=-1)) is None
        assert before_running(replace(at, claims=CLAIMS + 1)) == Park(Why.ABANDONED)


class TestNotToUndo:
    def test_S_4_a_call_refused_at_the_first_attempt_is_not_undone(self) -> None:
        assert not_to_undo(AT_CALL, ["charge"]) == ("charge",)
        assert not_to_undo(AT_CALL, []) == ()

    @pytest.mark.parametrize("at", [replace(AT_CALL, attempts=1), replace(AT_CALL, claims=2)])
    def test_S_4_an_earlier_attempt_may_still_be_on_its_way(self, at: Position) -> None:
        assert not_to_undo(at, ["charge"]) == ()

    def test_of_a_group_those_that_were_refused(self) -> None:
        assert not_to_undo(AT_GROUP, ["label"]) == ("label",)
        assert not_to_undo(AT_GROUP, ["label", "pack", "print"]) == ("pack", "label")

    def test_a_group_that_was_begun_before_has_no_first_attempt(self) -> None:
        """One that is done has reset the counts that would tell."""
        assert not_to_undo(replace(AT_GROUP, outcomes={(FORWARD, "pack"): DONE}), ["label"]) == ()

    def test_a_group_that_is_passed_does_not_count(self) -> None:
        at = Position((PACK, LABEL, CHARGE), FORWARD, {(FORWARD, "pack"): DONE, (FORWARD, "label"): DONE})
        assert not_to_undo(at, ["charge"]) == ("charge",)

    def test_only_what_comes_next(self) -> None:
        assert not_to_undo(AT_STEP, ["reserve", "charge"]) == ()
        assert not_to_undo(Position((), FORWARD, {}), ["charge"]) == ()


class TestWaits:
    def test_S_5_waits_until_its_time_is_over(self) -> None:
        assert without_event(AT_WAIT, waited=0, timeout=60, continues=False) == KeepWaiting(60)
        assert without_event(AT_WAIT, waited=45, timeout=60, continues=False) == KeepWaiting(15)
        assert without_event(AT_WAIT, waited=60, timeout=60, continues=False) == Turn(Why.TIMED_OUT)
        assert without_event(AT_WAIT, waited=60, timeout=60, continues=True) == GoOn()

    def test_the_deadline_comes_first(self) -> None:
        at = replace(AT_WAIT, remaining=20)
        assert without_event(at, waited=0, timeout=60, continues=True) == KeepWaiting(20)
        assert without_event(replace(at, remaining=0), waited=0, timeout=60, continues=True) == Turn(Why.DEADLINE)

    def test_without_a_limit_it_waits_long(self) -> None:
        assert without_event(AT_WAIT, waited=0, timeout=None, continues=False) == KeepWaiting(LONGEST_DELAY)

    def test_past_the_pivot_it_parks_and_no_deadline_counts(self) -> None:
        at = replace(PAST_PIVOT_AT_WAIT, remaining=-1)
        assert without_event(at, waited=0, timeout=60, continues=False) == KeepWaiting(60)
        assert without_event(at, waited=60, timeout=60, continues=False) == Park(Why.TIMED_OUT)

    def test_sleeps_until_its_time(self) -> None:
        assert asleep(AT_WAIT, 5) == KeepWaiting(5)
        assert asleep(AT_WAIT, 0) == GoOn()
        assert asleep(replace(AT_WAIT, remaining=2), 5) == KeepWaiting(2)
        assert asleep(replace(AT_WAIT, remaining=0), 0) == Turn(Why.DEADLINE)


class TestTimeAllowed:
    def test_a_step_ends_at_the_deadline(self) -> None:
        assert time_allowed(AT_STEP, 30) == 30
        assert time_allowed(replace(AT_STEP, remaining=12), 30) == 12
        assert time_allowed(replace(AT_STEP, remaining=-1), 30) == 0

    @pytest.mark.parametrize("at", [PAST_PIVOT, GOING_BACK])
    def test_unless_the_deadline_does_not_count(self, at: Position) -> None:
        assert time_allowed(replace(at, remaining=12), 30) == 30


failures = st.builds(
    StepFailure,
    st.just(RESERVE),
    st.sampled_from(Failure),
    st.builds(lambda most: RetryPolicy.tray(max_attempts=most), st.integers(1, 8)),
    st.booleans(),
)


@st.composite
def positions(draw: st.DrawFn) -> Position:
    plan, outcomes = draw(plans_with_records())
    return Position(
        plan,
        draw(st.sampled_from([FORWARD, BACK])),
        outcomes,
        attempts=draw(st.integers(0, 9)),
        claims=draw(st.integers(1, 9)),
        remaining=draw(st.none() | st.floats(-10, 1000)),
    )


@st.composite
def positions_that_failed(draw: st.DrawFn) -> tuple[Position, list[StepFailure]]:
    at = draw(positions())
    steps = frontier(at.plan, at.outcomes) or (RESERVE,)
    return at, [replace(draw(failures), step=step) for step in steps]


class TestProperties:
    @given(positions_that_failed(), st.floats(0, 1, exclude_max=True))
    def test_S_2_a_saga_never_turns_past_its_pivot_nor_twice(
        self, failed: tuple[Position, list[StepFailure]], random: float
    ) -> None:
        at, given_failures = failed
        verdicts = [
            before_running(at),
            after_step_failure(at, given_failures, random),
            without_event(at, waited=1, timeout=1, continues=False),
            asleep(at, 0),
        ]
        if at.direction is BACK or past_pivot(at.plan, at.outcomes):
            assert not any(isinstance(verdict, Turn) for verdict in verdicts)
        elif not pivot_may_have_happened(at.plan, at.outcomes):
            assert not any(isinstance(verdict, Park) for verdict in verdicts)

    @given(positions_that_failed(), st.floats(0, 1, exclude_max=True))
    def test_attempts_end(self, failed: tuple[Position, list[StepFailure]], random: float) -> None:
        at, given_failures = failed
        verdict = after_step_failure(replace(at, attempts=8), given_failures, random)
        assert not isinstance(verdict, RetryAfter)

    @given(positions_that_failed(), st.floats(0, 1, exclude_max=True))
    def test_a_retry_comes_no_later_than_the_deadline(
        self, failed: tuple[Position, list[StepFailure]], random: float
    ) -> None:
        at, given_failures = failed
        verdict = after_step_failure(at, given_failures, random)
        if isinstance(verdict, RetryAfter):
            assert verdict.delay >= 0
            if at.remaining is not None and not (at.direction is BACK or pivot_may_have_happened(at.plan, at.outcomes)):
                assert verdict.delay <= at.remaining

    @given(at=positions(), waited=st.floats(0, 100), timeout=st.none() | st.floats(0, 100), continues=st.booleans())
    def test_S_5_a_wait_that_keeps_waiting_has_time_left(
        self, at: Position, waited: float, timeout: float | None, *, continues: bool
    ) -> None:
        verdict = without_event(at, waited=waited, timeout=timeout, continues=continues)
        if isinstance(verdict, KeepWaiting):
            assert 0 < verdict.seconds <= LONGEST_DELAY

    @given(positions())
    def test_only_calls_that_were_refused_are_kept_from_being_undone(self, at: Position) -> None:
        every_name = [step.name for step in at.plan]
        kept = not_to_undo(at, every_name)
        assert set(kept) <= {step.name for step in frontier(at.plan, at.outcomes) if step.kind is Kind.CALL}
        assert not kept or (at.attempts == 0 and at.claims == 1)
