"""The transactions of the protocol, each one atomic step of the model."""

from functools import cache

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import (
    Direction,
    End,
    Kind,
    Move,
    Outcomes,
    Plan,
    StepOutcome,
    Undo,
    next_move,
    to_undo,
)
from tests.unit.rules.saga_model.world import IDLE, At, Doing, Mistake, Rows, Scenario, Signal, Worker, World

FORWARD, BACK = Direction.FORWARD, Direction.BACK


def record(plan: Plan, forward: Rows, back: Rows) -> Outcomes:
    """The rows as the rules take them."""
    rows = ((FORWARD, forward), (BACK, back))
    return {
        (direction, step.name): outcome
        for direction, outcomes in rows
        for step, outcome in zip(plan, outcomes, strict=True)
        if outcome is not None
    }


@cache
def move_of(scenario: Scenario, direction: Direction, forward: Rows, back: Rows) -> Move:
    """What comes next by the rules, or by a mistake."""
    plan = scenario.plan
    outcomes = record(plan, forward, back)
    move = next_move(plan, direction, outcomes)
    if not isinstance(move, Undo):
        return move
    next_ones = [step for step in to_undo(plan, outcomes) if outcomes.get((FORWARD, step.name)) is not StepOutcome.DONE]
    spared = next_ones if scenario.makes(Mistake.UNDO_WHAT_IS_LOGGED) else []
    if scenario.makes(Mistake.UNDO_ONE_OF_A_GROUP):
        spared = next_ones[:-1]
    if move.step not in spared:
        return move
    return move_of(scenario, direction, forward, changed(back, plan.index(move.step), StepOutcome.SKIPPED))


def changed(rows: Rows, step: int, outcome: StepOutcome) -> Rows:
    return (*rows[:step], outcome, *rows[step + 1 :])


def with_worker(world: World, number: int, worker: Worker) -> World:
    workers = (*world.workers[:number], worker, *world.workers[number + 1 :])
    return world._replace(workers=workers)


def dropped(world: World, number: int) -> World:
    """The worker has lost the saga, and knows."""
    return with_worker(world, number, IDLE)


def without_lease(world: World) -> World:
    """Nobody's token is valid any more."""
    return world._replace(
        workers=tuple(worker._replace(holds=False) for worker in world.workers),
        threads=tuple(thread._replace(holds=False) for thread in world.threads),
    )


def claim(world: World, number: int) -> World:
    world = without_lease(world)._replace(delivery=Stored.READY, due=False, claims=world.claims + 1)
    mine = Worker(Doing.CLAIMED, holds=True, attempts=world.attempts, claims=world.claims)
    return with_worker(world, number, mine)


def read(scenario: Scenario, world: World, number: int) -> World:
    """Read the record, and in the same snapshot that the lease is still there."""
    mine = world.workers[number]
    if world.outcome or not (mine.holds or scenario.makes(Mistake.READ_WITHOUT_THE_LEASE)):
        return dropped(world, number)
    return with_worker(
        world,
        number,
        mine._replace(
            doing=Doing.DECIDES,
            direction=world.direction,
            forward=world.forward,
            back=world.back,
            steps=(),
            has_event=False,
        ),
    )


def is_recorded(world: World, direction: Direction, step: int) -> bool:
    row = (world.back if direction else world.forward)[step]
    return row is not None and row is not StepOutcome.WAITING


def log(
    scenario: Scenario,
    world: World,
    direction: Direction,
    step: int,
    outcome: StepOutcome = StepOutcome.DONE,
    *,
    has_event: bool = False,
    may_end: bool = True,
) -> World:
    """Write the row of a step, its effect if it has one here, and the end if nothing is left. The lease was checked."""
    if direction is FORWARD:
        world = world._replace(forward=changed(world.forward, step, outcome))
    else:
        world = world._replace(back=changed(world.back, step, outcome))
    if outcome is StepOutcome.DONE and scenario.plan[step].kind is not Kind.CALL:
        world = world._replace(effects=(*world.effects, (direction, step)))
    if has_event:
        world = world._replace(signal=Signal.USED)
    world = world._replace(attempts=0, claims=1)
    # A worker goes by what it has read: only its own saga's rows can have changed since, and only by itself.
    move = move_of(scenario, direction, world.forward, world.back)
    return end(world, move) if may_end and isinstance(move, End) else world


def end(world: World, move: End) -> World:
    return without_lease(world)._replace(outcome=move.outcome, delivery=None, attempts=0, claims=0)


def retry(world: World, number: int) -> World:
    if world.workers[number].holds:
        world = without_lease(world)._replace(delivery=Stored.RETRY, attempts=world.attempts + 1, claims=0)
    return dropped(world, number)


def park(world: World, number: int) -> World:
    if world.workers[number].holds:
        world = without_lease(world)._replace(delivery=Stored.DEAD, attempts=world.attempts + 1, claims=0)
    return dropped(world, number)


def put_back(scenario: Scenario, world: World, number: int) -> World:
    """The code is missing: try again later, as if it had not been claimed."""
    if world.workers[number].holds:
        claims = 0 if scenario.makes(Mistake.STRANDED_FORGETS_CLAIMS) else world.claims - 1
        world = without_lease(world)._replace(delivery=Stored.SCHEDULED, due=True, claims=claims)
    return dropped(world, number)


def postpone(scenario: Scenario, world: World, number: int) -> World:
    """Nothing could be begun: try again later."""
    if world.workers[number].holds:
        claims = 0 if scenario.makes(Mistake.POSTPONED_FORGETS_CLAIMS) else world.claims - 1
        world = without_lease(world)._replace(delivery=Stored.RETRY, claims=claims)
    return dropped(world, number)


def give_back(world: World, number: int) -> World:
    if world.workers[number].holds:
        world = without_lease(world)._replace(claims=world.claims - 1)
    return dropped(world, number)


def turn(scenario: Scenario, world: World, number: int, failed: list[int], refused: list[int]) -> World:
    """Change direction, under a new token; then read again. If a step was done after all, only read again."""
    mine = world.workers[number]
    if not mine.holds:
        return dropped(world, number)
    if any(is_recorded(world, FORWARD, step) for step in failed) and not scenario.makes(Mistake.TURN_OVERWRITES):
        return read(scenario, world, number)
    forward, back = world.forward, world.back
    for step in failed:
        forward = changed(forward, step, StepOutcome.FAILED)
    for step in refused:
        back = changed(back, step, StepOutcome.SKIPPED)
    if not scenario.makes(Mistake.TURN_UNDER_THE_OLD_TOKEN):
        world = without_lease(world)
    world = world._replace(direction=BACK, forward=forward, back=back, attempts=0, claims=1)
    mine = mine._replace(holds=True, attempts=0, claims=1)
    if not scenario.makes(Mistake.TURN_FROM_MEMORY):
        return read(scenario, with_worker(world, number, mine), number)
    return with_worker(world, number, _remembering(mine, failed, refused))


def _remembering(mine: Worker, failed: list[int], refused: list[int]) -> Worker:
    forward, back = mine.forward, mine.back
    for step, at in mine.steps:
        if at is At.LOGGED:
            forward = changed(forward, step, StepOutcome.DONE)
    for step in failed:
        forward = changed(forward, step, StepOutcome.FAILED)
    for step in refused:
        back = changed(back, step, StepOutcome.SKIPPED)
    return mine._replace(doing=Doing.DECIDES, direction=BACK, forward=forward, back=back, steps=())
