"""What must never be, and when a transaction has come to its end."""

from collections.abc import Iterator

from postroom.rules.twophase_plan import Decision
from postroom.rules.twophase_settling import Trouble
from tests.unit.rules.state_search import Model, Visited, visit
from tests.unit.rules.twophase_model.coordinator import Change, changes_of_coordinator
from tests.unit.rules.twophase_model.lost_answers import lost_answers
from tests.unit.rules.twophase_model.recovery import changes_of_recovery
from tests.unit.rules.twophase_model.servers import OPEN_STATES
from tests.unit.rules.twophase_model.surroundings import changes_around
from tests.unit.rules.twophase_model.world import LastState, Scenario, Session, State, Told, World


def search(scenario: Scenario) -> Visited[World]:
    """Visit every state that can be reached; stop at the first that is wrong."""
    return visit(
        Model(
            first=scenario.first(),
            changes=lambda world: _changes(scenario, world),
            in_order=_in_order,
            wrong_with=lambda world: wrong_with(scenario, world),
            is_end=lambda world: is_end(scenario, world),
        )
    )


def _changes(scenario: Scenario, world: World) -> Iterator[Change]:
    yield from changes_of_coordinator(scenario, world)
    yield from lost_answers(scenario, world)
    for number in range(len(world.recoveries)):
        yield from changes_of_recovery(scenario, world, number)
    yield from changes_around(scenario, world)


def _in_order(world: World) -> World:
    """Recoveries are alike: their order makes no other state."""
    first, *others = world.recoveries
    if not others or hash(first) <= hash(others[0]):
        return world
    return world._replace(recoveries=(*others, first))


def did_commit(world: World) -> bool:
    return world.last is LastState.HAPPENED or any(branch.state is State.COMMITTED for branch in world.branches)


def did_abort(world: World) -> bool:
    return world.last is LastState.NEVER or any(branch.state is State.ABORTED for branch in world.branches)


def wrong_with(scenario: Scenario, world: World) -> str:
    """Say what must never be; empty if nothing is wrong."""
    return _not_atomic(world) or _not_recovered(scenario, world)


def _not_atomic(world: World) -> str:
    commits, aborts = did_commit(world), did_abort(world) and not world.meddled
    if commits and aborts:
        return "one has committed, and another has not"
    if commits and world.told is Told.ABORTED:
        return "the caller was told that nobody commits, and one has"
    if aborts and world.told is Told.COMMITTED:
        return "the caller was told that all commit, and one has not"
    return ""


def _not_recovered(scenario: Scenario, world: World) -> str:
    if world.settled and not _has_ended(scenario, world):
        return "settled, and a branch has not ended as decided"
    if world.trouble is Trouble.DAMAGED and not world.meddled:
        return "taken for damaged, and nobody has touched it"
    if did_abort(world) and not world.late and world.faults == scenario.faults:
        return "aborted in time, and nothing has gone wrong"
    return ""


def _has_ended(scenario: Scenario, world: World) -> bool:
    """Whether all have ended as the settled row says.

    A branch that PREPARE makes after an abort is settled is found in the list; and nothing tells that somebody rolled
    back what is old.
    """
    if world.row is Decision.COMMIT and not (world.meddled and world.old):
        return all(world.branches[number].state is State.COMMITTED for number in scenario.prepared)
    return True


def is_end(scenario: Scenario, world: World) -> bool:
    """Nothing is left to do, but for an operator."""
    if world.calling or world.session is not Session.NONE or any(branch.preparing for branch in world.branches):
        return False
    if any(branch.state in OPEN_STATES for branch in world.branches):
        return False
    if world.trouble is not None:
        return True
    needs_no_more = world.row is None or world.settled
    aborted = world.row is Decision.ABORT and not scenario.has_open_row
    prepared = any(branch.state is State.PREPARED for branch in world.branches)
    return (needs_no_more or aborted) and not prepared
