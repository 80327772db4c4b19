"""What servers, the log and the last resource do when they are asked. Each function is one atomic step of theirs."""

from postroom.rules.twophase_plan import Answer, Decision
from postroom.rules.twophase_settling import Confirmed, Said, Settling, after, meaning, witness
from tests.unit.rules.twophase_model.world import (
    Branch,
    Kind,
    LastState,
    Mistake,
    Scenario,
    Session,
    State,
    World,
)

OPEN_STATES = frozenset({State.ACTIVE, State.FAILED})
GONE_ON_POSTGRESQL, NOT_FOUND_ON_MARIADB = "42704", 1397


def with_branch(world: World, number: int, branch: Branch) -> World:
    return world._replace(branches=(*world.branches[:number], branch, *world.branches[number + 1 :]))


def prepare(scenario: Scenario, world: World, number: int) -> tuple[World, Answer]:
    """PREPARE arrives."""
    branch = world.branches[number]
    kind = scenario.kinds[number]
    revived = branch.state is State.ABORTED and kind is Kind.RESOURCE and scenario.makes(Mistake.FORGETFUL_RESOURCE)
    if branch.state is State.ACTIVE or revived:
        return with_branch(world, number, Branch(State.PREPARED, attached=kind is Kind.MARIADB)), Answer.YES
    if branch.state is State.FAILED:
        answer = Answer.YES if scenario.makes(Mistake.TRUST_THE_ANSWER_TO_PREPARE) else Answer.NO
        return with_branch(world, number, Branch(State.ABORTED)), answer
    return with_branch(world, number, branch._replace(preparing=False)), Answer.NO


def end(
    scenario: Scenario, world: World, number: int, decision: Decision, seen: tuple[int, ...] | None = None
) -> tuple[World, Settling]:
    """Recovery commits a branch or rolls it back, on a connection of its own, then looks whether that was done."""
    branch = world.branches[number]
    kind = scenario.kinds[number]
    if kind is Kind.RESOURCE:
        return _end_resource(world, number, decision), Confirmed()
    if branch.state is not State.PREPARED:
        said = meaning(NOT_FOUND_ON_MARIADB if kind is Kind.MARIADB else GONE_ON_POSTGRESQL, listed=False)
    elif branch.attached:
        listed = not scenario.makes(Mistake.NOT_FOUND_IS_DONE) and (seen is None or number in seen)
        said = meaning(NOT_FOUND_ON_MARIADB, listed=listed)
    else:
        said = Said.DONE
        world = with_branch(world, number, ended(branch, decision))
    proof = _witness(scenario, world, number, seen)
    return world, after(decision, said, witness=proof, past_deadline=world.late)


def _witness(scenario: Scenario, world: World, number: int, seen: tuple[int, ...] | None) -> bool | None:
    """The mark that a branch leaves when it commits, and that is cleaned when it is old."""
    if not scenario.has_witness or scenario.makes(Mistake.NO_WITNESS):
        return None
    marked = number in (committed(world) if seen is None else seen) and not world.old
    age = 1 if world.old and not scenario.makes(Mistake.OLD_WITNESS) else 0
    return witness(marked=marked, age=age, kept=1)


def committed(world: World) -> tuple[int, ...]:
    return tuple(number for number, branch in enumerate(world.branches) if branch.state is State.COMMITTED)


def _end_resource(world: World, number: int, decision: Decision) -> World:
    """A user's resource: to commit or abort again changes nothing; what it aborts, it never prepares."""
    branch = world.branches[number]
    may_end = branch.state is State.PREPARED or (decision is Decision.ABORT and branch.state is State.ACTIVE)
    return with_branch(world, number, ended(branch, decision)) if may_end else world


def end_own(scenario: Scenario, world: World, number: int, decision: Decision) -> tuple[World, Answer]:
    """The coordinator ends a branch, on its connection if it has not lost it. Only DONE counts as an answer."""
    branch = world.branches[number]
    if scenario.kinds[number] is Kind.RESOURCE:
        return _end_resource(world, number, decision), Answer.YES
    if branch.state is State.PREPARED or (branch.state in OPEN_STATES and not branch.preparing):
        return with_branch(world, number, ended(branch, decision)), Answer.YES
    return world, Answer.NO


def ended(branch: Branch, decision: Decision) -> Branch:
    state = State.COMMITTED if decision is Decision.COMMIT else State.ABORTED
    return Branch(state, preparing=branch.preparing)


def end_session(scenario: Scenario, world: World) -> World:
    """The log's server ends the coordinator's transaction, and with it the holder's branch."""
    world = world._replace(session=Session.NONE)
    if scenario.holder is not None and world.branches[scenario.holder].state in OPEN_STATES:
        return with_branch(world, scenario.holder, Branch(State.ABORTED))
    return world


def end_connection(world: World, number: int) -> World:
    """A server ends the coordinator's connection: what is prepared stays."""
    branch = world.branches[number]
    if branch.state in OPEN_STATES:
        return with_branch(world, number, Branch(State.ABORTED))
    return with_branch(world, number, Branch(branch.state))


def commit_decision(scenario: Scenario, world: World) -> World:
    """COMMIT arrives: the decision, and the holder's work with it."""
    world = world._replace(session=Session.NONE, row=Decision.COMMIT)
    if scenario.holder is not None:
        world = with_branch(world, scenario.holder, Branch(State.COMMITTED))
    return world


def resolve(world: World) -> World | None:
    """Write abort unless a decision is there; None if somebody is deciding right now."""
    if world.session is not Session.NONE:
        return None
    return world._replace(row=Decision.ABORT) if world.row in (None, Decision.OPEN) else world


def write_open(world: World, decision: Decision) -> World:
    """Decide an open row. It stays as it is if somebody has decided."""
    return world._replace(row=decision) if world.row is Decision.OPEN else world


def abort_last(world: World) -> tuple[World, Answer]:
    """The last resource promises never to do its work, or says that it has."""
    if world.last is LastState.HAPPENED:
        return world, Answer.NO
    return world._replace(last=LastState.NEVER), Answer.YES
