"""What happens around the workers: time, the network, threads left behind, events, deploys, operators."""

from collections.abc import Iterator

from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import Run, StepOutcome, Undo, past_pivot, pivot_may_have_happened
from tests.unit.rules.saga_model import database
from tests.unit.rules.saga_model.database import BACK, FORWARD, move_of
from tests.unit.rules.saga_model.worker import Change, fault
from tests.unit.rules.saga_model.world import Mistake, Scenario, Signal, World


def changes_around(scenario: Scenario, world: World) -> Iterator[Change]:
    yield from _requests_arrive(scenario, world)
    yield from _threads_end(scenario, world)
    yield from _time_passes(scenario, world)
    yield from _events_come(scenario, world)
    yield from _deploys(scenario, world)
    yield from _operator_acts(scenario, world)


def _requests_arrive(scenario: Scenario, world: World) -> Iterator[Change]:
    """Each in the transaction of the called service, behind its barrier."""
    for request in sorted(set(world.network)):
        direction, step = request
        did, undid = world.marks[step]
        under_way = list(world.network)
        under_way.remove(request)
        if scenario.makes(Mistake.NO_BARRIER):
            runs = direction is FORWARD or not undid
        else:
            runs = not did if direction is FORWARD else did and not undid
        marks = (True, undid) if direction is FORWARD else (True, True)
        yield Change(
            "a request arrives",
            world._replace(
                network=tuple(under_way),
                marks=(*world.marks[:step], marks, *world.marks[step + 1 :]),
                effects=(*world.effects, request) if runs else world.effects,
            ),
        )


def _threads_end(scenario: Scenario, world: World) -> Iterator[Change]:
    """A function that timed out returns after all, and logs under the token that it has."""
    for place, thread in enumerate(world.threads):
        gone = world._replace(threads=(*world.threads[:place], *world.threads[place + 1 :]))
        if thread.holds and not database.is_recorded(world, thread.direction, thread.step):
            gone = database.log(scenario, gone, thread.direction, thread.step)
        yield Change("a thread ends", gone)


def _time_passes(scenario: Scenario, world: World) -> Iterator[Change]:
    if scenario.has_deadline and not world.late:
        yield Change("the deadline passes", world._replace(late=True, due=True))
    if scenario.wait_times_out and not world.timed_out and StepOutcome.WAITING in world.forward:
        yield Change("the wait times out", world._replace(timed_out=True, due=True))


def _events_come(scenario: Scenario, world: World) -> Iterator[Change]:
    if world.signal is Signal.NOT_SENT:
        if scenario.may_signal:
            yield Change("signal", world._replace(signal=Signal.SENT))
        elif scenario.child is not None and (FORWARD, scenario.child) in world.effects:
            yield from _child_ends(scenario, world)
    elif world.signal is Signal.SENT:
        if world.outcome:
            yield Change("too late", world._replace(signal=Signal.USED))
        else:
            wakes = world.delivery is Stored.SCHEDULED and not scenario.makes(Mistake.SIGNAL_WAKES_NOBODY)
            yield Change("receive", world._replace(signal=Signal.STORED, due=world.due or wakes))


def _child_ends(scenario: Scenario, world: World) -> Iterator[Change]:
    if not scenario.makes(Mistake.CHILD_TELLS_LATER):
        yield Change("the child ends", world._replace(signal=Signal.SENT, child_ended=True))
    elif not world.child_ended:
        yield Change("the child ends", world._replace(signal=Signal.SENT, child_ended=True))
        if world.faults:
            yield fault("the child ends, its worker crashes", world._replace(child_ended=True))


def _deploys(scenario: Scenario, world: World) -> Iterator[Change]:
    if world.code_gone:
        yield Change("a deploy brings the step back", world._replace(code_gone=False))
    elif scenario.lost_code is not None and world.faults:
        yield fault("a deploy takes a step away", world._replace(code_gone=True))


def _operator_acts(scenario: Scenario, world: World) -> Iterator[Change]:
    if scenario.may_abort and not world.aborted and not world.outcome and world.direction is FORWARD:
        yield from _abort(scenario, world)
    if world.delivery is Stored.DEAD:
        resumed = world._replace(
            delivery=Stored.READY, attempts=0, claims=0 if scenario.makes(Mistake.RESUME_FORGETS) else 1
        )
        yield Change("resume", resumed)
        move = move_of(scenario, world.direction, world.forward, world.back)
        if isinstance(move, Run):
            step = scenario.plan.index(move.steps[0])
            rows = database.changed(world.forward, step, StepOutcome.SKIPPED)
            yield Change("skip", resumed._replace(forward=rows, pardoned=world.pardoned | {step}))
        elif isinstance(move, Undo):
            step = scenario.plan.index(move.step)
            rows = database.changed(world.back, step, StepOutcome.SKIPPED)
            yield Change("skip", resumed._replace(back=rows, pardoned=world.pardoned | {step}))


def _abort(scenario: Scenario, world: World) -> Iterator[Change]:
    outcomes = database.record(scenario.plan, world.forward, world.back)
    is_open = not pivot_may_have_happened(scenario.plan, outcomes)
    allowed = is_open or (world.delivery is Stored.DEAD and not past_pivot(scenario.plan, outcomes))
    if allowed and not is_open:  # the operator has seen that the pivot did not happen, or answers for it
        world = world._replace(pardoned=world.pardoned | {n for n, one in enumerate(scenario.plan) if one.pivot})
    if scenario.makes(Mistake.ABORT_ON_OLD_ROWS):
        if not world.operator_looked:
            if allowed:
                yield Change("look at the steps", world._replace(operator_looked=True), is_fault=True)
            return
        allowed = True
    if not allowed:
        return
    turned = world._replace(aborted=True, direction=BACK, attempts=0)
    if scenario.makes(Mistake.ABORT_BY_FLAG) and world.delivery is Stored.READY:
        yield Change("abort", turned, is_fault=True)
    else:
        yield Change("abort", database.without_lease(turned)._replace(delivery=Stored.READY, due=False), is_fault=True)
