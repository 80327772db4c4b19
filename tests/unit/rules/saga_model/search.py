"""What must never be, and how a saga can end."""

from collections.abc import Iterator
from dataclasses import dataclass

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Direction, Kind, SagaOutcome, StepOutcome
from tests.unit.rules.saga_model.surroundings import changes_around
from tests.unit.rules.saga_model.worker import Change, changes_of_worker
from tests.unit.rules.saga_model.world import Scenario, Signal, World
from tests.unit.rules.state_search import Model, visit

FORWARD, BACK = Direction.FORWARD, Direction.BACK


@dataclass(frozen=True)
class Found:
    """The result of a search."""

    states: int
    ends: frozenset[SagaOutcome]
    """How the saga can end."""
    wrong: str = ""
    """What is wrong, if anything, and how it came about."""


def search(scenario: Scenario) -> Found:
    """Visit every state that can be reached; stop at the first that is wrong."""
    visited = visit(
        Model(
            first=scenario.first(),
            changes=lambda world: changes(scenario, world),
            in_order=in_order,
            wrong_with=lambda world: wrong_with(scenario, world),
            is_end=lambda world: bool(world.outcome),
        )
    )
    return Found(visited.states, frozenset(world.outcome for world in visited.ends), visited.wrong)


def changes(scenario: Scenario, world: World) -> Iterator[Change]:
    for number in range(len(world.workers)):
        yield from changes_of_worker(scenario, world, number)
    yield from changes_around(scenario, world)


def in_order(world: World) -> World:
    """Workers are alike, and so are threads: their order makes no other state."""
    workers, threads = tuple(sorted(world.workers, key=hash)), tuple(sorted(world.threads))
    if workers == world.workers and threads == world.threads:
        return world
    return world._replace(workers=workers, threads=threads)


def wrong_with(scenario: Scenario, world: World) -> str:
    """Say what must never be; empty if nothing is wrong."""
    if (world.outcome is SagaOutcome.OPEN) != (world.delivery is not None):
        return "an open saga has a delivery, and only an open one"
    return (
        _wrong_effects(scenario, world)
        or _wrong_direction(scenario, world)
        or (_wrong_end(scenario, world) if world.outcome else "")
        or _missed_event(scenario, world)
    )


def _wrong_effects(scenario: Scenario, world: World) -> str:
    for step, planned in enumerate(scenario.plan):
        done = world.effects.count((FORWARD, step))
        undone = world.effects.count((BACK, step))
        if done > 1 or undone > 1:
            return f"{planned.name} was done {done} times and undone {undone} times"
        if undone > done:
            return f"{planned.name} was undone and not done"
    return ""


def _wrong_direction(scenario: Scenario, world: World) -> str:
    if world.direction is FORWARD:
        return ""
    for step, planned in enumerate(scenario.plan):
        happened = (FORWARD, step) in world.effects and not planned.compensated
        is_done = world.forward[step] is StepOutcome.DONE
        if planned.pivot and step not in world.pardoned and (happened or is_done):
            return "went back past the pivot"
    return ""


def _wrong_end(scenario: Scenario, world: World) -> str:
    if world.outcome is SagaOutcome.COMPLETED and world.aborted:
        return "completed although it was aborted"
    for step, planned in enumerate(scenario.plan):
        if step in world.pardoned:
            continue
        done = world.effects.count((FORWARD, step))
        undone = world.effects.count((BACK, step))
        if world.outcome is SagaOutcome.COMPLETED:
            wanted = 0 if step in scenario.unwanted else 1
            if (done, undone) != (wanted, 0):
                return f"completed, and {planned.name} was done {done} times and undone {undone} times"
        elif planned.compensated and done != undone:
            return f"compensated, and {planned.name} was done {done} times and undone {undone} times"
    undone_in_order = [step for direction, step in world.effects if direction is BACK and step not in world.pardoned]
    if undone_in_order != sorted(undone_in_order, reverse=True):
        return "undone, but not in reverse order"
    return ""


def _missed_event(scenario: Scenario, world: World) -> str:
    sleeps = world.delivery is Stored.SCHEDULED and not world.due
    waits = any(
        planned.kind is Kind.WAIT and world.forward[step] is StepOutcome.WAITING
        for step, planned in enumerate(scenario.plan)
    )
    if sleeps and waits and world.signal is Signal.STORED:
        return "sleeps although its event has come"
    return ""
