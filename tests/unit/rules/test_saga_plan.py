"""What a saga does next, given its plan and what is on record."""

import pytest
from hypothesis import given

from postroom.rules.saga_plan import (
    Direction,
    End,
    Kind,
    Outcomes,
    Plan,
    PlannedStep,
    Run,
    SagaOutcome,
    StepOutcome,
    Undo,
    frontier,
    next_move,
    past_pivot,
    pivot_may_have_happened,
    to_undo,
)
from tests.unit.rules.saga_plans import BACK, DONE, FAILED, FORWARD, PASSED, SKIPPED, WAITING, plans, plans_with_records

RESERVE = PlannedStep("reserve", compensated=True)
CHARGE = PlannedStep("charge", Kind.CALL, compensated=True)
PARCEL = PlannedStep("parcel", Kind.WAIT, event="parcel", compensated=True)
NOTE = PlannedStep("note")
ORDER: Plan = (RESERVE, CHARGE, PARCEL, NOTE)

PRINT = PlannedStep("print", group="prepare", compensated=True)
PACK = PlannedStep("pack", Kind.CALL, group="prepare", compensated=True)
LABEL = PlannedStep("label", Kind.CALL, group="prepare", compensated=True)
GROUPED: Plan = (RESERVE, PRINT, PACK, LABEL, NOTE)


def done(*names: str) -> dict[tuple[Direction, str], StepOutcome]:
    return {(FORWARD, name): DONE for name in names}


def names(steps: tuple[PlannedStep, ...]) -> list[str]:
    return [step.name for step in steps]


def undo_all(plan: Plan, outcomes: Outcomes) -> list[str]:
    """What a saga undoes from here to its end, in order."""
    record = dict(outcomes)
    undone = []
    while isinstance(move := next_move(plan, BACK, record), Undo):
        undone.append(move.step.name)
        record[BACK, move.step.name] = DONE
    assert move == End(SagaOutcome.COMPENSATED)
    return undone


class TestForward:
    def test_S_1_steps_come_one_after_another(self) -> None:
        assert next_move(ORDER, FORWARD, {}) == Run((RESERVE,))
        assert next_move(ORDER, FORWARD, done("reserve")) == Run((CHARGE,))
        assert next_move(ORDER, FORWARD, {**done("reserve"), (FORWARD, "charge"): SKIPPED}) == Run((PARCEL,))
        assert next_move(ORDER, FORWARD, done(*names(ORDER))) == End(SagaOutcome.COMPLETED)

    @pytest.mark.parametrize("outcome", [WAITING, FAILED])
    def test_what_waits_or_failed_is_not_passed(self, outcome: StepOutcome) -> None:
        assert next_move(ORDER, FORWARD, {(FORWARD, "reserve"): outcome}) == Run((RESERVE,))

    def test_all_of_a_group_run_at_the_same_time_and_end_before_the_next(self) -> None:
        assert next_move(GROUPED, FORWARD, done("reserve")) == Run((PRINT, PACK, LABEL))
        assert next_move(GROUPED, FORWARD, done("reserve", "pack")) == Run((PRINT, LABEL))
        assert next_move(GROUPED, FORWARD, done("reserve", "print", "pack", "label")) == Run((NOTE,))

    def test_two_groups_in_a_row_stay_apart(self) -> None:
        plan = tuple(PlannedStep(name, group=name[0]) for name in ("a1", "a2", "b1", "b2"))
        assert names(frontier(plan, done("a1"))) == ["a2"]
        assert names(frontier(plan, done("a1", "a2"))) == ["b1", "b2"]

    def test_a_plan_without_steps_is_complete(self) -> None:
        assert next_move((), FORWARD, {}) == End(SagaOutcome.COMPLETED)
        assert next_move((), BACK, {}) == End(SagaOutcome.COMPENSATED)


class TestBack:
    def test_S_1_what_was_done_is_undone_in_reverse(self) -> None:
        assert undo_all(ORDER, done("reserve", "charge", "parcel")) == ["parcel", "charge", "reserve"]

    def test_S_4_the_call_that_comes_next_is_undone_begun_or_not(self) -> None:
        """A worker that has lost its lease may still send it."""
        assert undo_all(ORDER, done("reserve")) == ["charge", "reserve"]
        assert undo_all(ORDER, {**done("reserve"), (FORWARD, "charge"): FAILED}) == ["charge", "reserve"]

    def test_a_step_that_comes_next_is_not_undone(self) -> None:
        """It cannot commit without the lease."""
        assert undo_all(ORDER, {}) == []
        assert undo_all(ORDER, {(FORWARD, "reserve"): FAILED}) == []
        assert undo_all(ORDER, {**done("reserve", "charge"), (FORWARD, "parcel"): WAITING}) == ["charge", "reserve"]

    def test_no_call_beyond_the_next_is_undone(self) -> None:
        plan = (CHARGE, PlannedStep("ship", Kind.CALL, compensated=True))
        assert undo_all(plan, {}) == ["charge"]

    def test_of_a_group_each_call_is_undone_and_each_step_that_is_done(self) -> None:
        assert undo_all(GROUPED, done("reserve")) == ["label", "pack", "reserve"]
        assert undo_all(GROUPED, {**done("reserve", "print", "pack"), (FORWARD, "label"): FAILED}) == [
            "label",
            "pack",
            "print",
            "reserve",
        ]

    def test_what_was_skipped_on_the_way_back_is_passed(self) -> None:
        refused = {**done("reserve"), (FORWARD, "charge"): FAILED, (BACK, "charge"): SKIPPED}
        assert undo_all(ORDER, refused) == ["reserve"]

    def test_a_compensation_that_failed_comes_again(self) -> None:
        assert next_move(ORDER, BACK, {**done("reserve"), (BACK, "charge"): FAILED}) == Undo(CHARGE)

    def test_what_was_skipped_or_has_no_compensation_is_not_undone(self) -> None:
        plan = (RESERVE, PlannedStep("mail", Kind.CALL), PARCEL, NOTE)
        assert undo_all(plan, {**done("mail", "parcel", "note"), (FORWARD, "reserve"): SKIPPED}) == ["parcel"]


class TestPivot:
    PLAN = (RESERVE, PlannedStep("approve", pivot=True), NOTE)
    CALL = (RESERVE, PlannedStep("pay", Kind.CALL, pivot=True), NOTE)
    COMPENSATED_CALL = (RESERVE, PlannedStep("pay", Kind.CALL, pivot=True, compensated=True), NOTE)

    def test_a_pivot_that_is_passed_binds(self) -> None:
        assert not past_pivot(self.PLAN, done("reserve"))
        assert not past_pivot(self.PLAN, {**done("reserve"), (FORWARD, "approve"): FAILED})
        assert past_pivot(self.PLAN, {**done("reserve"), (FORWARD, "approve"): SKIPPED})
        assert past_pivot(self.PLAN, done("reserve", "approve"))
        assert past_pivot(self.PLAN, done("reserve", "approve", "note"))
        assert not past_pivot(ORDER, done(*names(ORDER)))

    def test_a_pivot_that_nothing_can_undo_may_have_happened_once_it_is_next(self) -> None:
        assert not pivot_may_have_happened(self.CALL, {})
        assert pivot_may_have_happened(self.CALL, done("reserve"))
        assert pivot_may_have_happened(self.CALL, done("reserve", "pay"))

    def test_a_pivot_that_commits_with_its_log_or_can_be_undone_has_not_happened_until_the_log_says_so(self) -> None:
        for plan in (self.PLAN, self.COMPENSATED_CALL):
            assert not pivot_may_have_happened(plan, done("reserve"))
            assert pivot_may_have_happened(plan, done("reserve", plan[1].name))


class TestProperties:
    @given(plans_with_records())
    def test_forward_runs_each_step_once_in_order_and_ends(self, given_plan: tuple[Plan, Outcomes]) -> None:
        plan, outcomes = given_plan
        record = dict(outcomes)
        ran: list[PlannedStep] = []
        while isinstance(move := next_move(plan, FORWARD, record), Run):
            assert move.steps
            assert len({step.group for step in move.steps}) == 1
            assert len(move.steps) == 1 or move.steps[0].group
            ran += move.steps
            record.update(done(*names(move.steps)))
        assert move == End(SagaOutcome.COMPLETED)
        assert ran == [step for step in plan if outcomes.get((FORWARD, step.name)) not in PASSED]

    @given(plans_with_records())
    def test_S_1_back_undoes_in_reverse_what_was_done_and_the_calls_that_may_have_been(
        self, given_plan: tuple[Plan, Outcomes]
    ) -> None:
        plan, outcomes = given_plan
        undone = undo_all(plan, outcomes)
        order = [step.name for step in plan]
        assert undone == sorted(undone, key=order.index, reverse=True)
        assert len(undone) == len(set(undone))
        next_ones = frontier(plan, outcomes)
        for step in plan:
            is_done = outcomes.get((FORWARD, step.name)) is DONE
            may_have_happened = step in next_ones and step.kind is Kind.CALL
            assert (step.name in undone) == (step.compensated and (is_done or may_have_happened))

    @given(plans_with_records())
    def test_what_must_be_undone_stays_the_same_while_it_is_undone(self, given_plan: tuple[Plan, Outcomes]) -> None:
        plan, outcomes = given_plan
        record = dict(outcomes)
        before = to_undo(plan, record)
        while isinstance(move := next_move(plan, BACK, record), Undo):
            record[BACK, move.step.name] = SKIPPED
            assert to_undo(plan, record) == before

    @given(plans())
    def test_nothing_binds_a_saga_that_has_not_begun_unless_its_first_call_does(self, plan: Plan) -> None:
        assert not past_pivot(plan, {})
        first = plan[:1]
        assert pivot_may_have_happened(plan, {}) == any(
            step.pivot and step.kind is Kind.CALL and not step.compensated for step in first
        )
