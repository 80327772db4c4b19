"""Sagas to search, each with what may happen to it; and for each mistake one where it shows."""

from types import MappingProxyType

from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS
from postroom.rules.saga_plan import Kind, PlannedStep
from tests.unit.rules.saga_model.world import Mistake, Scenario


def step(name: str, *, group: str = "", pivot: bool = False) -> PlannedStep:
    return PlannedStep(name, Kind.STEP, group, pivot, compensated=True)


def call(name: str, *, group: str = "", pivot: bool = False) -> PlannedStep:
    return PlannedStep(name, Kind.CALL, group, pivot, compensated=True)


def wait(name: str) -> PlannedStep:
    return PlannedStep(name, Kind.WAIT, event=name, compensated=True)


def no_way_back(name: str, kind: Kind) -> PlannedStep:
    """A pivot without a compensation."""
    return PlannedStep(name, kind, pivot=True)


STEP_AND_CALL = (step("a"), call("b"))
TWO_STEPS = (step("a", group="g"), step("b", group="g"))
TWO_CALLS = (call("a", group="g"), call("b", group="g"))
A_WAIT = (wait("a"),)
A_CHILD = (step("a"), wait("b"))
PIVOT_CALL = (no_way_back("p", Kind.CALL),)

SMALL = MappingProxyType(
    {
        "a step and a call": Scenario(STEP_AND_CALL, 2),
        "a step, a call and an abort": Scenario(STEP_AND_CALL, 1, may_abort=True, has_deadline=True),
        "workers that stop": Scenario(STEP_AND_CALL, 2, may_stop=True),
        "claimed too often": Scenario(STEP_AND_CALL, 2, claims=DEFAULT_CLAIM_LIMITS.dead_after - 1),
        "a condition that is false": Scenario((step("a"), call("b"), call("c")), 2, unwanted=frozenset({1})),
        "a deploy takes a step away": Scenario(STEP_AND_CALL, 2, lost_code=1),
        "a wait": Scenario((step("a"), wait("b"), step("c")), 2, may_signal=True),
        "a wait that times out": Scenario(
            (wait("a"), call("b")), 1, may_signal=True, wait_times_out=True, may_abort=True
        ),
        "a wait that goes on without its event": Scenario(
            (wait("a"), call("b")), 1, may_signal=True, wait_times_out=True, wait_continues=True, has_deadline=True
        ),
        "a child": Scenario(A_CHILD, 2, child=0),
        "a group of steps": Scenario(TWO_STEPS, 2, has_deadline=True),
        "a group of both": Scenario((step("a", group="g"), call("b", group="g")), 1, may_abort=True),
        "a pivot that is a call": Scenario((step("a"), *PIVOT_CALL, call("c")), 1, may_abort=True, has_deadline=True),
        "a pivot that can be undone": Scenario((step("a"), call("b", pivot=True)), 1, may_abort=True),
    }
)
"""Searched at every check."""

LARGE = MappingProxyType(
    {
        "a step and a call": Scenario(STEP_AND_CALL, 4),
        "a step, a call and a step": Scenario((step("a"), call("b"), step("c")), 2, may_abort=True, has_deadline=True),
        "a wait that times out": Scenario(
            (wait("a"), call("b")), 2, may_signal=True, wait_times_out=True, may_abort=True
        ),
        "a group of both": Scenario((step("a", group="g"), call("b", group="g"), step("c")), 2, may_abort=True),
        "a group of three": Scenario((step("a", group="g"), step("b", group="g"), call("c", group="g")), 2),
        "a pivot that is a step": Scenario(
            (call("a"), no_way_back("b", Kind.STEP), wait("c")),
            1,
            may_abort=True,
            has_deadline=True,
            may_signal=True,
            wait_times_out=True,
        ),
        "a pivot that can be undone": Scenario((step("a"), call("b", pivot=True)), 2, may_abort=True),
        "a group of calls": Scenario(TWO_CALLS, 2),
        "a deploy takes a step away": Scenario(STEP_AND_CALL, 3, lost_code=1, may_stop=True),
    }
)
"""Searched by the whole suite."""

WRONG = MappingProxyType(
    {
        Mistake.LOOK_AT_THE_LEASE: Scenario((step("a"),), 1, may_abort=True),
        Mistake.READ_WITHOUT_THE_LEASE: Scenario(STEP_AND_CALL, 2),
        Mistake.READ_AGAIN_FORGETS: Scenario(PIVOT_CALL, 1, has_deadline=True),
        Mistake.RUN_AGAIN_ON_A_LOST_ANSWER: Scenario((step("a"), step("b")), 1),
        Mistake.ABORT_BY_FLAG: Scenario((step("a"),), 1, may_abort=True),
        Mistake.ABORT_ON_OLD_ROWS: Scenario((step("a", pivot=True), step("b")), 1, may_abort=True),
        Mistake.UNDO_WHAT_IS_LOGGED: Scenario(STEP_AND_CALL, 1),
        Mistake.UNDO_ONE_OF_A_GROUP: Scenario(TWO_CALLS, 2),
        Mistake.TURN_UNDER_THE_OLD_TOKEN: Scenario(TWO_STEPS, 2, has_deadline=True),
        Mistake.TURN_OVERWRITES: Scenario((step("a"), step("b")), 1, attempts=1),
        Mistake.TURN_FROM_MEMORY: Scenario(TWO_STEPS, 2, has_deadline=True),
        Mistake.EVENT_WITHOUT_LOCK: Scenario(A_WAIT, 1, may_signal=True),
        Mistake.SIGNAL_WAKES_NOBODY: Scenario(A_WAIT, 1, may_signal=True),
        Mistake.CHILD_TELLS_LATER: Scenario(A_CHILD, 1, child=0),
        Mistake.EVERY_REFUSAL_COUNTS: Scenario(STEP_AND_CALL, 2),
        Mistake.STRANDED_FORGETS_CLAIMS: Scenario((call("a"),), 3, lost_code=0),
        Mistake.POSTPONED_FORGETS_CLAIMS: Scenario((call("a"),), 3, may_stop=True),
        Mistake.GIVE_BACK_A_RUNNING_CALL: Scenario((call("a"),), 2, may_stop=True),
        Mistake.RESUME_FORGETS: Scenario(PIVOT_CALL, 2, attempts=1),
        Mistake.PIVOT_TURNS: Scenario(PIVOT_CALL, 1, attempts=1),
        Mistake.NO_BARRIER: Scenario((call("a"),), 1),
    }
)
"""Where each mistake shows."""
