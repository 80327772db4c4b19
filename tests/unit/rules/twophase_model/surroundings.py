"""What happens around the coordinator and recovery: time, the network, servers that restart, people."""

from collections.abc import Iterator

from postroom.rules.twophase_plan import Answer, Decision
from tests.unit.rules.twophase_model import servers
from tests.unit.rules.twophase_model.coordinator import Change, answered, fault
from tests.unit.rules.twophase_model.servers import OPEN_STATES, with_branch
from tests.unit.rules.twophase_model.world import (
    Branch,
    Doing,
    LastState,
    Mistake,
    Phase,
    Scenario,
    Session,
    State,
    World,
)


def changes_around(scenario: Scenario, world: World) -> Iterator[Change]:
    yield from _requests_arrive(scenario, world)
    yield from _sessions_end(scenario, world)
    if not world.late:
        yield Change("the deadline passes", world._replace(late=True))
    elif scenario.has_witness and not world.old:
        yield Change("marks are cleaned", world._replace(old=True))
    if _can_be_removed(scenario, world):
        yield Change("retention removes the row", world._replace(row=None, settled=False))
    if world.faults:
        yield from _servers_fail(scenario, world)


def _requests_arrive(scenario: Scenario, world: World) -> Iterator[Change]:
    """Whether or not their sender is still there."""
    for number in scenario.prepared:
        if world.branches[number].preparing:
            after, answer = servers.prepare(scenario, world, number)
            if world.phase is Phase.PREPARES and world.answers[number] is None:
                after = answered(after, number, answer)
            yield Change(f"PREPARE arrives at {number}", after)
    if world.session is Session.COMMITTING:
        after = servers.commit_decision(scenario, world)
        yield Change("COMMIT arrives at the log", _with_answer(after, Phase.WAITS_FOR_LOG, Answer.YES))
    if world.calling:
        after = world._replace(calling=False)
        does_it = world.last is LastState.WAITING or scenario.makes(Mistake.LAST_FORGETS)
        if does_it:
            done = after._replace(last=LastState.HAPPENED)
            yield Change("the last resource does its work", _with_answer(done, Phase.WAITS_FOR_LAST, Answer.YES))
        elif world.last is LastState.NEVER:
            yield Change("the last resource refuses", _with_answer(after, Phase.WAITS_FOR_LAST, Answer.NO))


def _with_answer(world: World, phase: Phase, answer: Answer) -> World:
    """The answer reaches the coordinator if it still waits for it."""
    return world._replace(answer=answer) if world.phase is phase else world


def _sessions_end(scenario: Scenario, world: World) -> Iterator[Change]:
    """Servers end what belongs to a coordinator that is gone, or that does nothing until its deadline."""
    is_gone = world.phase is Phase.GONE
    times_out = world.late and not scenario.makes(Mistake.NO_SESSION_TIMEOUTS)
    if not (is_gone or times_out):
        return
    holder = scenario.holder
    if world.session is not Session.NONE or (holder is not None and world.branches[holder].state in OPEN_STATES):
        yield Change("the log's server ends the session", servers.end_session(scenario, world))
    for number in scenario.prepared:
        branch = world.branches[number]
        kept = branch.attached and scenario.makes(Mistake.NEVER_KILL) and not is_gone
        if branch.state in OPEN_STATES or (branch.attached and not kept):
            after = servers.end_connection(world, number)
            if world.phase is Phase.PREPARES and world.answers[number] is None:
                after = answered(after, number, Answer.LOST)
            yield Change(f"{number} ends the session", after)


def _can_be_removed(scenario: Scenario, world: World) -> bool:
    """Retention outlasts the time-out of every call: nobody who waits for the log meanwhile trusts its answer.

    Even so all branches agree. But a coordinator would call a commit aborted, and a recovery call it damaged.
    """
    asks = world.phase in (Phase.WAITS_FOR_LOG, Phase.ASKS_LOG)
    recovers = scenario.has_witness and any(recovery.doing is not Doing.IDLE for recovery in world.recoveries)
    if not world.late or asks or recovers or (scenario.has_witness and not world.old):
        return False
    if world.row is Decision.COMMIT:
        return world.settled or scenario.makes(Mistake.FORGET_UNSETTLED)
    return world.row is Decision.ABORT and (world.settled or not scenario.has_open_row)


def _servers_fail(scenario: Scenario, world: World) -> Iterator[Change]:
    for number, branch in enumerate(world.branches):
        if branch.state is State.ACTIVE and world.phase is Phase.WORKS:
            yield fault(f"a statement fails at {number}", with_branch(world, number, Branch(State.FAILED)))
        if number in scenario.prepared and (branch.state in OPEN_STATES or branch.attached or branch.preparing):
            after = servers.end_connection(world, number)
            if world.phase is Phase.PREPARES and world.answers[number] is None:
                after = answered(after, number, Answer.LOST)
            yield fault(f"{number} restarts", after)
        if scenario.may_meddle and branch.state is State.PREPARED:
            rolled_back = with_branch(world, number, servers.ended(branch, Decision.ABORT))
            yield fault(f"somebody rolls {number} back", rolled_back._replace(meddled=True))
    if world.session is not Session.NONE:
        yield fault("the log restarts", servers.end_session(scenario, world))
    if world.calling and world.last is LastState.WAITING:
        refused = world._replace(calling=False, last=LastState.NEVER)
        yield fault("the last resource refuses", _with_answer(refused, Phase.WAITS_FOR_LAST, Answer.NO))
        yield fault("the call is lost", world._replace(calling=False))
