"""What a worker can do next, and what can happen to it."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import Failure, RetryAfter
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_failures import (
    AfterStepFailure,
    GoOn,
    KeepWaiting,
    Park,
    Position,
    StepFailure,
    Turn,
    WithoutEvent,
    after_step_failure,
    before_running,
    not_to_undo,
    without_event,
)
from postroom.rules.saga_plan import End, Kind, Run, StepOutcome
from tests.unit.rules.saga_model import database
from tests.unit.rules.saga_model.database import BACK, FORWARD, move_of, with_worker
from tests.unit.rules.saga_model.world import At, Doing, Mistake, Scenario, Signal, Thread, Worker, World

ENDED = frozenset({At.LOGGED, At.UNSURE, At.FAILED, At.REJECTED, At.REFUSED})
FAILURES = frozenset({At.FAILED, At.REJECTED, At.REFUSED})


class Change(NamedTuple):
    """Something that can happen."""

    name: str
    world: World
    is_fault: bool = False
    """It need not happen. Without it, everything must still come to its end."""


def fault(name: str, world: World) -> Change:
    return Change(name, world._replace(faults=world.faults - 1), is_fault=True)


def changes_of_worker(scenario: Scenario, world: World, number: int) -> Iterator[Change]:
    mine = world.workers[number]
    if mine.doing is Doing.IDLE:
        yield from _claims(world, number)
        return
    if world.faults:
        yield fault("crash", database.dropped(world, number))
        if scenario.may_stop and _may_give_back(scenario, mine):
            yield fault("give back", database.give_back(world, number))
            yield fault("postpone", database.postpone(scenario, world, number))
    match mine.doing:
        case Doing.CLAIMED:
            yield Change("read", database.read(scenario, world, number))
        case Doing.DECIDES:
            yield from _decide(scenario, world, number)
        case Doing.NO_EVENT:
            yield Change("sleep on it", _fall_asleep(world, number))
        case Doing.RUNS if all(at in ENDED for _, at in mine.steps):
            yield _conclude(scenario, world, number)
        case Doing.RUNS:
            for place, (step, at) in enumerate(mine.steps):
                yield from _go_on(scenario, world, number, place, step, at)


def _may_give_back(scenario: Scenario, mine: Worker) -> bool:
    if mine.doing is Doing.DECIDES:
        return True
    return scenario.makes(Mistake.GIVE_BACK_A_RUNNING_CALL) and mine.doing is Doing.RUNS


def _claims(world: World, number: int) -> Iterator[Change]:
    if world.delivery is Stored.RETRY or (world.delivery is Stored.SCHEDULED and world.due):
        yield Change("claim", database.claim(world, number))
    elif world.delivery is Stored.READY:
        held = any(worker.holds for worker in world.workers)
        if not held:
            yield Change("claim", database.claim(world, number))
        elif world.faults:
            yield fault("claim what another holds", database.claim(world, number))


@cache
def _position(scenario: Scenario, mine: Worker, *, late: bool) -> Position:
    return Position(
        scenario.plan,
        mine.direction,
        database.record(scenario.plan, mine.forward, mine.back),
        attempts=mine.attempts,
        claims=mine.claims,
        remaining=0.0 if late else 1.0,
    )


def _memory(mine: Worker) -> Worker:
    """What decides, so that equal decisions are made once."""
    return mine._replace(doing=Doing.DECIDES, holds=False, steps=(), has_event=False)


@cache
def _before_running(scenario: Scenario, memory: Worker, *, late: bool) -> Turn | Park | None:
    return before_running(_position(scenario, memory, late=late))


@cache
def _without_event(scenario: Scenario, memory: Worker, *, late: bool, timed_out: bool) -> WithoutEvent:
    return without_event(
        _position(scenario, memory, late=late),
        waited=1.0 if timed_out else 0.0,
        timeout=1.0 if scenario.wait_times_out else None,
        continues=scenario.wait_continues,
    )


@cache
def _after_failure(
    scenario: Scenario, memory: Worker, failed: tuple[tuple[int, At], ...], *, late: bool
) -> AfterStepFailure:
    policy = RetryPolicy.table([0], max_attempts=scenario.attempts)
    failures = [
        StepFailure(
            scenario.plan[step],
            Failure.TRANSIENT if at is At.FAILED else Failure.PERMANENT,
            policy,
            refused=at is At.REFUSED,
        )
        for step, at in failed
    ]
    verdict = after_step_failure(_position(scenario, memory, late=late), failures, 0.5)
    if isinstance(verdict, Park) and memory.direction is FORWARD and scenario.makes(Mistake.PIVOT_TURNS):
        return Turn(verdict.why, verdict.step)
    return verdict


def _decide(scenario: Scenario, world: World, number: int) -> Iterator[Change]:
    mine = world.workers[number]
    if scenario.makes(Mistake.ABORT_BY_FLAG) and world.direction is not mine.direction:
        yield Change("read the flag", database.read(scenario, world, number))
        return
    move = move_of(scenario, mine.direction, mine.forward, mine.back)
    if isinstance(move, End):
        ended = database.end(world, move) if mine.holds else world
        yield Change("end", database.dropped(ended, number))
        return
    steps = tuple(scenario.plan.index(step) for step in (move.steps if isinstance(move, Run) else (move.step,)))
    verdict = _before_running(scenario, _memory(mine), late=world.late)
    if verdict is not None:
        yield _stop(scenario, world, number, verdict, [steps[0]], [])
    elif world.code_gone and scenario.lost_code in steps:
        yield Change("put back", database.put_back(scenario, world, number))
    elif isinstance(move, Run) and move.steps[0].kind is Kind.WAIT:
        yield _wait(scenario, world, number, steps[0])
    else:
        begun = mine._replace(doing=Doing.RUNS, steps=tuple((step, At.NEW) for step in sorted(steps)))
        yield Change("begin", with_worker(world, number, begun))


def _stop(
    scenario: Scenario, world: World, number: int, verdict: Turn | Park, failed: list[int], refused: list[int]
) -> Change:
    if isinstance(verdict, Park):
        return Change("park", database.park(world, number))
    return Change("turn", database.turn(scenario, world, number, failed, refused))


def _wait(scenario: Scenario, world: World, number: int, step: int) -> Change:
    """Record that it waits, and look for the event, in one transaction."""
    mine = world.workers[number]
    if not mine.holds:
        return Change("wait in vain", database.dropped(world, number))
    if world.forward[step] is None:
        world = world._replace(forward=database.changed(world.forward, step, StepOutcome.WAITING))
    mine = mine._replace(forward=world.forward)
    if world.signal is Signal.STORED:
        begun = mine._replace(doing=Doing.RUNS, steps=((step, At.NEW),), has_event=True)
        return Change("take the event", with_worker(world, number, begun))
    verdict = _without_event(scenario, _memory(mine), late=world.late, timed_out=world.timed_out)
    match verdict:
        case KeepWaiting():
            if scenario.makes(Mistake.EVENT_WITHOUT_LOCK):
                return Change("find no event", with_worker(world, number, mine._replace(doing=Doing.NO_EVENT)))
            return Change("sleep", _fall_asleep(world, number))
        case GoOn():
            begun = mine._replace(doing=Doing.RUNS, steps=((step, At.NEW),))
            return Change("go on without the event", with_worker(world, number, begun))
        case Turn() | Park():
            return _stop(scenario, with_worker(world, number, mine), number, verdict, [step], [])


def _fall_asleep(world: World, number: int) -> World:
    if world.workers[number].holds:
        world = database.without_lease(world)._replace(delivery=Stored.SCHEDULED, due=False, attempts=0, claims=0)
    return database.dropped(world, number)


def _at(world: World, number: int, place: int, at: At) -> World:
    mine = world.workers[number]
    steps = (*mine.steps[:place], (mine.steps[place][0], at), *mine.steps[place + 1 :])
    return with_worker(world, number, mine._replace(steps=steps))


def _go_on(scenario: Scenario, world: World, number: int, place: int, step: int, at: At) -> Iterator[Change]:
    mine = world.workers[number]
    is_call = scenario.plan[step].kind is Kind.CALL
    match at:
        case At.NEW if step in scenario.unwanted and mine.direction is FORWARD:
            yield from _log(scenario, world, number, place, StepOutcome.SKIPPED)
        case At.NEW if is_call:
            request = (mine.direction, step)
            network = world.network
            if network.count(request) < 2:  # more copies than two make no difference
                network = tuple(sorted((*network, request)))
            yield Change("send", _at(world._replace(network=network), number, place, At.SENT))
        case At.NEW:
            yield Change("run", _at(world, number, place, At.OPEN))
            if world.faults:
                yield fault("fail", _at(world, number, place, At.FAILED))
                yield fault("reject", _at(world, number, place, At.REJECTED))
                left = Thread(step, mine.direction, mine.holds)
                yield fault("time out", _at(world._replace(threads=(*world.threads, left)), number, place, At.FAILED))
        case At.SENT:
            yield from _answers(world, number, place, step)
        case At.OPEN if scenario.makes(Mistake.LOOK_AT_THE_LEASE):
            looked = _at(world, number, place, At.LOOKED) if mine.holds else database.dropped(world, number)
            yield Change("look", looked)
        case At.OPEN | At.LOOKED | At.ANSWERED:
            yield from _log(scenario, world, number, place, StepOutcome.DONE, looked=at is At.LOOKED)
        case At.LOGGED | At.UNSURE | At.FAILED | At.REJECTED | At.REFUSED:
            pass


def _answers(world: World, number: int, place: int, step: int) -> Iterator[Change]:
    """The answer to a call. After a failure the request may still be on its way."""
    direction = world.workers[number].direction
    if world.marks[step][direction]:
        yield Change("answer", _at(world, number, place, At.ANSWERED))
    if world.faults:
        yield fault("no answer", _at(world, number, place, At.FAILED))
        yield fault("reject", _at(world, number, place, At.REJECTED))
        request = (direction, step)
        if direction is FORWARD and not world.marks[step][FORWARD] and request in world.network:
            copies = list(world.network)
            copies.remove(request)
            yield fault("refuse", _at(world._replace(network=tuple(copies)), number, place, At.REFUSED))


def _log(
    scenario: Scenario, world: World, number: int, place: int, outcome: StepOutcome, *, looked: bool = False
) -> Iterator[Change]:
    mine = world.workers[number]
    step = mine.steps[place][0]
    if not mine.holds and not looked:
        yield Change("log without the lease", database.dropped(world, number))
        return
    if database.is_recorded(world, mine.direction, step) and not scenario.makes(Mistake.RUN_AGAIN_ON_A_LOST_ANSWER):
        yield Change("log what is there", _at(world, number, place, At.UNSURE))
        return
    if looked and world.outcome:
        # The row commits beside the end; nothing is left for this worker.
        written = world._replace(effects=(*world.effects, (mine.direction, step)))
        yield Change("commit too late", database.dropped(written, number))
        return
    written = database.log(
        scenario,
        world,
        mine.direction,
        step,
        outcome,
        has_event=mine.has_event,
        may_end=len(mine.steps) == 1 and not looked,
    )
    if world.faults:
        unsure = At.NEW if scenario.makes(Mistake.RUN_AGAIN_ON_A_LOST_ANSWER) else At.UNSURE
        yield fault("log, and the answer is lost", _at(written, number, place, unsure))
        yield fault("log is lost", _at(world, number, place, unsure))
    yield Change(
        "log", database.dropped(written, number) if written.outcome else _at(written, number, place, At.LOGGED)
    )


def _conclude(scenario: Scenario, world: World, number: int) -> Change:
    """All that ran at the same time has ended."""
    mine = world.workers[number]
    failed = tuple((step, at) for step, at in mine.steps if at in FAILURES)
    if any(at is At.UNSURE for _, at in mine.steps):
        return Change("read again", _read_again(scenario, world, number))
    if not failed:
        return Change("go on", with_worker(world, number, _after_success(scenario, mine)))
    verdict = _after_failure(scenario, _memory(mine), failed, late=world.late)
    if isinstance(verdict, RetryAfter):
        return Change("retry", database.retry(world, number))
    refused = [scenario.plan[step].name for step, at in failed if at is At.REFUSED]
    if scenario.makes(Mistake.EVERY_REFUSAL_COUNTS):
        spared = tuple(refused)
    else:
        spared = not_to_undo(_position(scenario, _memory(mine), late=False), refused)
    names = {step.name: place for place, step in enumerate(scenario.plan)}
    return _stop(scenario, world, number, verdict, [step for step, _ in failed], [names[name] for name in spared])


def _read_again(scenario: Scenario, world: World, number: int) -> World:
    """Under the token: what is on record is done. What is not has been tried, so this counts as one more claim."""
    claims = world.claims + (0 if scenario.makes(Mistake.READ_AGAIN_FORGETS) else 1)
    counted = world.workers[number]._replace(attempts=world.attempts, claims=claims)
    return database.read(scenario, with_worker(world, number, counted), number)


def _after_success(scenario: Scenario, mine: Worker) -> Worker:
    forward, back = mine.forward, mine.back
    for step, _ in mine.steps:
        if mine.direction is BACK:
            back = database.changed(back, step, StepOutcome.DONE)
        else:
            skipped = step in scenario.unwanted
            forward = database.changed(forward, step, StepOutcome.SKIPPED if skipped else StepOutcome.DONE)
    return mine._replace(
        doing=Doing.DECIDES, forward=forward, back=back, attempts=0, claims=1, steps=(), has_event=False
    )
