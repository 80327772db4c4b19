"""Plans and records of sagas for Hypothesis."""

from hypothesis import strategies as st

from postroom.rules.saga_plan import (
    Direction,
    End,
    Kind,
    Outcomes,
    Plan,
    PlannedStep,
    Run,
    StepOutcome,
    next_move,
)

FORWARD, BACK = Direction.FORWARD, Direction.BACK
DONE, WAITING, SKIPPED, FAILED = StepOutcome
PASSED = {DONE, SKIPPED}

alone = st.builds(
    lambda kind, compensated, pivot: [(kind, compensated, pivot)], st.sampled_from(Kind), st.booleans(), st.booleans()
)
together = st.lists(
    st.tuples(st.sampled_from([Kind.STEP, Kind.CALL]), st.booleans(), st.sampled_from([False])), min_size=2, max_size=3
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Some steps, alone or in groups, of which at most one is the pivot."""
    steps: list[PlannedStep] = []
    pivot_free = True
    for place, members in enumerate(draw(st.lists(alone | together, max_size=5))):
        for kind, compensated, pivot in members:
            steps.append(
                PlannedStep(
                    f"s{len(steps)}",
                    kind,
                    group=f"g{place}" if len(members) > 1 else "",
                    pivot=pivot and pivot_free,
                    compensated=compensated,
                )
            )
            pivot_free = pivot_free and not pivot
    return tuple(steps)


@st.composite
def records(draw: st.DrawFn, plan: Plan) -> dict[tuple[Direction, str], StepOutcome]:
    """What is on record after some moves forward: a group may be passed in part."""
    outcomes: dict[tuple[Direction, str], StepOutcome] = {}
    for _ in range(draw(st.integers(0, len(plan)))):
        move = next_move(plan, FORWARD, outcomes)
        if isinstance(move, End):
            break
        assert isinstance(move, Run)
        step = draw(st.sampled_from(move.steps))
        outcomes[FORWARD, step.name] = draw(st.sampled_from([DONE, DONE, SKIPPED]))
    move = next_move(plan, FORWARD, outcomes)
    if isinstance(move, Run) and draw(st.booleans()):
        outcomes[FORWARD, move.steps[-1].name] = draw(st.sampled_from([FAILED, WAITING]))
    return outcomes


@st.composite
def plans_with_records(draw: st.DrawFn) -> tuple[Plan, Outcomes]:
    plan = draw(plans())
    return plan, draw(records(plan))
