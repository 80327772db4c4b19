"""What a recovery can do next. It keeps nothing between its scans."""

from collections.abc import Iterator

from postroom.rules.twophase_plan import Act, Answer, Decision, act_on, after_asking_last
from postroom.rules.twophase_settling import Again, Confirmed, Quarantine, Trouble
from tests.unit.rules.twophase_model import servers
from tests.unit.rules.twophase_model.coordinator import Change, fault
from tests.unit.rules.twophase_model.world import (
    IDLE,
    Doing,
    Kind,
    Last,
    Mistake,
    Recovery,
    Scenario,
    State,
    World,
)


def changes_of_recovery(scenario: Scenario, world: World, number: int) -> Iterator[Change]:
    """Its steps, and its crash."""
    mine = world.recoveries[number]
    match mine.doing:
        case Doing.IDLE:
            yield from _begin(scenario, world, number)
        case Doing.LISTED:
            yield Change("recovery: reads the log", _read_log(scenario, world, number, mine))
        case Doing.DECIDES:
            yield Change("recovery: writes abort", _decide_abort(scenario, world, number, mine))
        case Doing.ASKS_LAST:
            another = scenario.makes(Mistake.ASK_ANOTHER_LAST)
            after, answer = (world, Answer.YES) if another else servers.abort_last(world)
            yield Change("recovery: has the last resource abort", _heard(scenario, after, number, mine, answer))
        case Doing.WRITES:
            yield Change("recovery: writes what the last resource said", _write(scenario, world, number, mine))
        case Doing.ENDS:
            yield from _end_branch(scenario, world, number, mine)
    if world.faults and mine.doing is not Doing.IDLE:
        yield fault("a recovery dies", _with(world, number, IDLE))


def _with(world: World, number: int, mine: Recovery) -> World:
    return world._replace(recoveries=(*world.recoveries[:number], mine, *world.recoveries[number + 1 :]))


def _listed(scenario: Scenario, world: World) -> tuple[int, ...]:
    if scenario.makes(Mistake.SCAN_ONCE) and world.scanned:
        return ()
    return tuple(
        number
        for number in scenario.prepared
        if world.branches[number].state is State.PREPARED and scenario.kinds[number] is not Kind.RESOURCE
    )


def _begin(scenario: Scenario, world: World, number: int) -> Iterator[Change]:
    if listed := _listed(scenario, world):
        yield Change("recovery: lists", _with(world, number, Recovery(Doing.LISTED, listed)))
    if scenario.makes(Mistake.LIST_BEFORE_ASKING) and not listed:
        yield Change("recovery: lists nothing", _with(world, number, Recovery(Doing.LISTED, whole=True, seen=())))
    unfinished = world.row is Decision.COMMIT or (world.row is not None and scenario.has_open_row)
    if unfinished and not world.settled:
        seen = servers.committed(world) if scenario.makes(Mistake.WITNESS_BEFORE_ASKING) else None
        mine = Recovery(left=scenario.prepared, whole=True, seen=seen)
        act = _act(scenario, world, world.row)
        yield Change("recovery: reads a row", _follow(scenario, world, number, mine, act))


def _act(scenario: Scenario, world: World, decision: Decision | None) -> Act:
    has_last = scenario.has_last and not scenario.makes(Mistake.ABORT_WITHOUT_ASKING_LAST)
    return act_on(
        decision,
        past_deadline=world.late or scenario.makes(Mistake.IMPATIENT),
        has_last=has_last,
        last_can_abort=scenario.last is Last.CAN_ABORT,
    )


def _read_log(scenario: Scenario, world: World, number: int, mine: Recovery) -> World:
    act = _act(scenario, world, world.row)
    if mine.whole:  # only by mistake
        mine = mine._replace(left=scenario.prepared)
        act = act if act is Act.COMMIT else Act.LEAVE
    return _follow(scenario, world, number, mine, act)


def _follow(scenario: Scenario, world: World, number: int, mine: Recovery, act: Act) -> World:
    """Turn to what a rule says."""
    if act is Act.DECIDE_ABORT and scenario.makes(Mistake.NO_ROW_IS_ABORT):
        act = Act.ROLL_BACK
    match act:
        case Act.COMMIT:
            return _with(world, number, mine._replace(doing=Doing.ENDS, decision=Decision.COMMIT))
        case Act.ROLL_BACK:
            return _with(world, number, mine._replace(doing=Doing.ENDS, decision=Decision.ABORT))
        case Act.DECIDE_ABORT:
            return _with(world, number, mine._replace(doing=Doing.DECIDES, decision=None))
        case Act.ASK_LAST:
            return _with(world, number, mine._replace(doing=Doing.ASKS_LAST, decision=None))
        case Act.QUARANTINE:
            return _with(world, number, IDLE)._replace(trouble=Trouble.LAST_UNKNOWN)
        case _:
            return _with(world, number, IDLE)


def _decide_abort(scenario: Scenario, world: World, number: int, mine: Recovery) -> World:
    resolved = servers.resolve(world)
    if resolved is not None and scenario.makes(Mistake.ROW_THAT_WAS_THERE_IS_IGNORED):
        return _follow(scenario, resolved, number, mine, Act.ROLL_BACK)
    if resolved is None:
        decision = Decision.ABORT if scenario.makes(Mistake.LOOK_THROUGH_THE_LOCK) else None
        return _follow(scenario, world, number, mine, act_on(decision, past_deadline=False))
    return _follow(scenario, resolved, number, mine, act_on(resolved.row, past_deadline=False))


def _heard(scenario: Scenario, world: World, number: int, mine: Recovery, answer: Answer) -> World:
    decision = Decision.ABORT if after_asking_last(answer) is Act.DECIDE_ABORT else Decision.COMMIT
    return _with(world, number, mine._replace(doing=Doing.WRITES, decision=decision))


def _write(scenario: Scenario, world: World, number: int, mine: Recovery) -> World:
    world = servers.write_open(world, mine.decision or Decision.ABORT)
    return _follow(scenario, world, number, mine, act_on(world.row, past_deadline=False))


def _end_branch(scenario: Scenario, world: World, number: int, mine: Recovery) -> Iterator[Change]:
    branch, *left = mine.left
    decision = mine.decision or Decision.ABORT
    after, settling = servers.end(scenario, world, branch, decision, mine.seen)
    sure = mine.sure and (isinstance(settling, Confirmed) or scenario.makes(Mistake.UNKNOWN_IS_DONE))
    if isinstance(settling, Quarantine):
        after = after._replace(trouble=settling.trouble)
    elif isinstance(settling, Again) and settling.kill and not scenario.makes(Mistake.NEVER_KILL):
        after = servers.end_connection(after, branch)
    yield Change(
        f"recovery: ends branch {branch}", _next(scenario, after, number, mine._replace(left=tuple(left), sure=sure))
    )
    if world.faults:
        unsure = mine._replace(left=tuple(left), sure=scenario.makes(Mistake.UNKNOWN_IS_DONE) and mine.sure)
        yield fault(f"{branch} cannot be reached", _next(scenario, world, number, unsure))


def _next(scenario: Scenario, world: World, number: int, mine: Recovery) -> World:
    """Go on with the next branch; after the last one, settle the row."""
    if mine.decision is Decision.ABORT and scenario.makes(Mistake.SCAN_ONCE):
        world = world._replace(scanned=True)
    at_once = mine.decision is Decision.ABORT and scenario.makes(Mistake.SETTLE_ABORTS_AT_ONCE)
    if mine.left and not at_once:
        return _with(world, number, mine)
    knows_all = mine.whole or scenario.makes(Mistake.SETTLE_WHAT_IS_LISTED)
    if knows_all and (mine.sure or at_once) and world.row is mine.decision:
        world = world._replace(settled=True, trouble=None)
    return _with(world, number, IDLE)
