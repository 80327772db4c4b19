"""What the coordinator can do next. It may do nothing more at any point: recovery must not need it."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from postroom.rules.twophase_plan import (
    Act,
    Answer,
    Decision,
    act_on,
    after_asking_last,
    after_decision,
    after_last,
    after_prepare,
)
from tests.unit.rules.twophase_model import servers
from tests.unit.rules.twophase_model.servers import OPEN_STATES, with_branch
from tests.unit.rules.twophase_model.world import (
    Last,
    Mistake,
    Phase,
    Scenario,
    Session,
    State,
    Told,
    World,
)

Steps: TypeAlias = Iterator[tuple[str, World]]


class Change(NamedTuple):
    """Something that can happen."""

    name: str
    world: World
    need_not_happen: bool = False


def fault(name: str, world: World) -> Change:
    return Change(name, world._replace(faults=world.faults - 1), need_not_happen=True)


def changes_of_coordinator(scenario: Scenario, world: World) -> Iterator[Change]:
    """Its next step, and its death."""
    if world.phase is Phase.GONE:
        return
    for name, after in _STEPS[world.phase](scenario, world):
        yield Change(f"coordinator: {name}", after, need_not_happen=True)
    if world.faults:
        yield fault("the coordinator dies", gone(scenario, world, orderly=False))


def gone(scenario: Scenario, world: World, *, orderly: bool = True) -> World:
    """It has no memory any more. Its servers will notice."""
    if orderly and scenario.makes(Mistake.CLOSING_ROLLS_BACK):
        for number in scenario.prepared:
            if world.branches[number].state is State.PREPARED:
                world, _ = servers.end_own(scenario, world, number, Decision.ABORT)
    return world._replace(phase=Phase.GONE, answers=none(scenario), answer=None)


def none(scenario: Scenario) -> tuple[None, ...]:
    return (None,) * len(scenario.kinds)


def answered(world: World, number: int, answer: Answer) -> World:
    return world._replace(answers=(*world.answers[:number], answer, *world.answers[number + 1 :]))


def follow(scenario: Scenario, world: World, act: Act) -> World:
    """Turn to what a rule says."""
    if act is Act.LEAVE:
        return gone(scenario, world)
    if act is Act.DECIDE_ABORT and scenario.has_last:
        return _roll_back(scenario, servers.write_open(world, Decision.ABORT))
    if act is Act.ROLL_BACK:
        return _roll_back(scenario, world)
    if act is Act.COMMIT:
        world = world._replace(told=Told.COMMITTED, answers=none(scenario))
    return world._replace(phase=_PHASES[act], answer=None)


_PHASES = {
    Act.CALL_LAST: Phase.CALLS_LAST,
    Act.ASK_LAST: Phase.ASKS_LAST,
    Act.DECIDE_COMMIT: Phase.DECIDES,
    Act.DECIDE_ABORT: Phase.ASKS_LOG,
    Act.COMMIT: Phase.COMMITS,
}


def _roll_back(scenario: Scenario, world: World) -> World:
    if scenario.holder is not None and world.branches[scenario.holder].state in OPEN_STATES:
        world = servers.end_session(scenario, world)
    return world._replace(phase=Phase.ROLLS_BACK, told=Told.ABORTED, answers=none(scenario), answer=None)


def _send_prepare(scenario: Scenario, world: World) -> Steps:
    yield "sends PREPARE to all", _prepare(scenario, world)


def _prepare(scenario: Scenario, world: World) -> World:
    if scenario.has_open_row and not scenario.makes(Mistake.LAST_WITHOUT_A_ROW):
        if world.row is not None:
            return follow(scenario, world, Act.ROLL_BACK)
        world = world._replace(row=Decision.OPEN)
    for number in scenario.prepared:
        branch = world.branches[number]
        world = with_branch(world, number, branch._replace(preparing=True))
    if scenario.makes(Mistake.LAST_COMES_FIRST):
        world = world._replace(calling=True)
    return world._replace(phase=Phase.PREPARES)


def _has_answers(scenario: Scenario, world: World) -> bool:
    enough = any if scenario.makes(Mistake.DECIDE_EARLY) else all
    return enough(world.answers[number] is not None for number in scenario.prepared)


def _hear_of_prepare(scenario: Scenario, world: World) -> Steps:
    if _has_answers(scenario, world):
        yield "has all answers", follow(scenario, world, _after_prepare(scenario, world))


def _after_prepare(scenario: Scenario, world: World) -> Act:
    answers = [answer for number in scenario.prepared if (answer := world.answers[number]) is not None]
    if scenario.makes(Mistake.LOST_PREPARE_IS_READY):
        answers = [Answer.YES if answer is Answer.LOST else answer for answer in answers]
    act = after_prepare(answers, has_last=scenario.has_last)
    if scenario.makes(Mistake.NO_LOG) and act is Act.DECIDE_COMMIT:
        return Act.COMMIT
    return act


def _call_last(_scenario: Scenario, world: World) -> Steps:
    yield "calls the last resource", world._replace(phase=Phase.WAITS_FOR_LAST, calling=True)


def _wait_for_last(scenario: Scenario, world: World) -> Steps:
    if world.answer is not None:
        yield "hears from the last resource", hear_from_last(scenario, world, world.answer)


def _ask_last(scenario: Scenario, world: World) -> Steps:
    after, answer = servers.abort_last(world)
    yield "has the last resource abort", follow(scenario, after, after_asking_last(answer))


def hear_from_last(scenario: Scenario, world: World, answer: Answer) -> World:
    if answer is Answer.LOST and scenario.makes(Mistake.LOST_LAST_IS_NO):
        answer = Answer.NO
    if answer is Answer.YES and scenario.makes(Mistake.LAST_WITHOUT_A_ROW):
        world = world._replace(row=world.row or Decision.OPEN)
    return follow(scenario, world, after_last(answer, can_abort=scenario.last is Last.CAN_ABORT))


def _decide(scenario: Scenario, world: World) -> Steps:
    yield "writes its decision", _written(scenario, world)


def _written(scenario: Scenario, world: World) -> World:
    if scenario.has_last and scenario.holder is None:
        return _decide_after_last(scenario, world)
    if scenario.holder is not None and world.branches[scenario.holder].state is not State.ACTIVE:
        return follow(scenario, world, after_decision(Answer.LOST))
    if scenario.has_open_row:
        can_write = world.row is Decision.OPEN
    else:
        in_time = not world.late or scenario.makes(Mistake.DECIDE_WITHOUT_DEADLINE)
        can_write = world.row is None and in_time
    if can_write:
        return world._replace(phase=Phase.WRITTEN, session=Session.WRITTEN)
    if scenario.holder is not None and scenario.makes(Mistake.COMMIT_WITHOUT_LOOKING):
        committed = servers.ended(world.branches[scenario.holder], Decision.COMMIT)
        world = with_branch(world, scenario.holder, committed)
    return follow(scenario, world, after_decision(Answer.NO))


def _decide_after_last(scenario: Scenario, world: World) -> World:
    if scenario.makes(Mistake.DEADLINE_AFTER_LAST) and world.late:
        return follow(scenario, world, Act.ROLL_BACK)
    world = servers.write_open(world, Decision.COMMIT)
    if world.row is not Decision.COMMIT:
        return gone(scenario, world)
    return follow(scenario, world, after_decision(Answer.YES, has_last=True))


def lost_decision(scenario: Scenario, world: World) -> World:
    has_last = scenario.has_last and scenario.holder is None
    if scenario.makes(Mistake.ABORT_AFTER_LAST):
        return follow(scenario, servers.resolve(world) or world, Act.ROLL_BACK)
    if scenario.makes(Mistake.LOST_DECISION_IS_NO):
        return follow(scenario, world, Act.ROLL_BACK)
    return follow(scenario, world, after_decision(Answer.LOST, has_last=has_last))


def _send_commit(scenario: Scenario, world: World) -> Steps:
    if world.session is Session.NONE:
        yield "has lost its connection", lost_decision(scenario, world)
    else:
        yield "sends COMMIT", world._replace(phase=Phase.WAITS_FOR_LOG, session=Session.COMMITTING)


def _wait_for_log(scenario: Scenario, world: World) -> Steps:
    if world.answer is not None:
        yield "hears from the log", follow(scenario, world, after_decision(world.answer))
    elif world.session is Session.NONE:
        yield "has lost its connection", lost_decision(scenario, world)


def _ask_log(scenario: Scenario, world: World) -> Steps:
    resolved = servers.resolve(world)
    row = None if resolved is None else resolved.row
    yield "asks the log", follow(scenario, resolved or world, act_on(row, past_deadline=False))


def _commit_branches(scenario: Scenario, world: World) -> Steps:
    return _end_branches(scenario, world, Decision.COMMIT)


def _roll_back_branches(scenario: Scenario, world: World) -> Steps:
    return _end_branches(scenario, world, Decision.ABORT)


def _end_branches(scenario: Scenario, world: World, decision: Decision) -> Steps:
    left = [number for number in scenario.prepared if world.answers[number] is None]
    for number in left:
        after, answer = servers.end_own(scenario, world, number, decision)
        yield f"ends branch {number}", answered(after, number, answer)
    if not left:
        if decision is Decision.ABORT and scenario.has_open_row:
            world = servers.write_open(world, Decision.ABORT)
        unheard = scenario.makes(Mistake.UNREACHED_IS_SETTLED)
        sure = unheard or all(world.answers[number] is Answer.YES for number in scenario.prepared)
        settles = world.row is Decision.COMMIT or (scenario.has_open_row and world.row is Decision.ABORT)
        yield "ends", gone(scenario, world._replace(settled=world.settled or (sure and settles)))


_STEPS: Mapping[Phase, Callable[[Scenario, World], Steps]] = {
    Phase.WORKS: _send_prepare,
    Phase.PREPARES: _hear_of_prepare,
    Phase.CALLS_LAST: _call_last,
    Phase.WAITS_FOR_LAST: _wait_for_last,
    Phase.ASKS_LAST: _ask_last,
    Phase.DECIDES: _decide,
    Phase.WRITTEN: _send_commit,
    Phase.WAITS_FOR_LOG: _wait_for_log,
    Phase.ASKS_LOG: _ask_log,
    Phase.COMMITS: _commit_branches,
    Phase.ROLLS_BACK: _roll_back_branches,
}
