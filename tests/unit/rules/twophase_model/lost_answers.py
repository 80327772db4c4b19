"""Answers that do not reach the coordinator, whether or not what it asked for has happened."""

from collections.abc import Callable, Iterator, Mapping

from postroom.rules.twophase_plan import Act, Answer, Decision
from tests.unit.rules.twophase_model import servers
from tests.unit.rules.twophase_model.coordinator import (
    Change,
    Steps,
    answered,
    fault,
    follow,
    gone,
    hear_from_last,
    lost_decision,
)
from tests.unit.rules.twophase_model.world import Phase, Scenario, World


def lost_answers(scenario: Scenario, world: World) -> Iterator[Change]:
    losses = _LOSSES.get(world.phase)
    if world.faults and losses is not None:
        for name, after in losses(scenario, world):
            yield fault(name, after)


def _open_row(scenario: Scenario, world: World) -> Steps:
    if scenario.has_open_row:
        opened = world._replace(row=world.row or Decision.OPEN)
        yield "no answer to the open row", follow(scenario, opened, Act.ROLL_BACK)


def _prepare(scenario: Scenario, world: World) -> Steps:
    for number in scenario.prepared:
        if world.answers[number] is not Answer.LOST:
            yield f"no answer to PREPARE from {number}", answered(world, number, Answer.LOST)


def _last(scenario: Scenario, world: World) -> Steps:
    yield "no answer from the last resource", hear_from_last(scenario, world, Answer.LOST)


def _last_abort(scenario: Scenario, world: World) -> Steps:
    yield "the last resource is away", gone(scenario, world)
    yield "the last resource aborts without an answer", gone(scenario, servers.abort_last(world)[0])


def _decision(scenario: Scenario, world: World) -> Steps:
    yield "no answer to the decision", lost_decision(scenario, world)


def _decision_after_last(scenario: Scenario, world: World) -> Steps:
    if scenario.has_last and scenario.holder is None:
        written = servers.write_open(world, Decision.COMMIT)
        yield "no answer to the decision", lost_decision(scenario, written)
        yield "the log is away", gone(scenario, world)


def _log(scenario: Scenario, world: World) -> Steps:
    yield "the log is away", gone(scenario, world)
    yield "the log does not answer", gone(scenario, servers.resolve(world) or world)


def _commits(scenario: Scenario, world: World) -> Steps:
    return _ends(scenario, world, Decision.COMMIT)


def _rolls_back(scenario: Scenario, world: World) -> Steps:
    return _ends(scenario, world, Decision.ABORT)


def _ends(scenario: Scenario, world: World, decision: Decision) -> Steps:
    for number in scenario.prepared:
        if world.answers[number] is None:
            done, _ = servers.end_own(scenario, world, number, decision)
            yield f"{number} cannot be reached", answered(world, number, Answer.LOST)
            yield f"no answer from {number}", answered(done, number, Answer.LOST)


_LOSSES: Mapping[Phase, Callable[[Scenario, World], Steps]] = {
    Phase.WORKS: _open_row,
    Phase.PREPARES: _prepare,
    Phase.WAITS_FOR_LAST: _last,
    Phase.ASKS_LAST: _last_abort,
    Phase.DECIDES: _decision_after_last,
    Phase.WAITS_FOR_LOG: _decision,
    Phase.ASKS_LOG: _log,
    Phase.COMMITS: _commits,
    Phase.ROLLS_BACK: _rolls_back,
}
