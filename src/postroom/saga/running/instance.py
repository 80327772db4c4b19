"""Runs one instance of a saga under its lease: what comes next → run it → log it, until it ends, waits or fails.

The plan and the record alone decide what comes next (`rules/saga_plan.py`); what follows a failure is decided in
`rules/saga_failures.py`. Who finished one step runs the next at once, and reads nothing in between: while the lease
holds, nobody else writes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, assert_never

import msgspec

from postroom.errors import SagaNotDecodable
from postroom.rules.failures import CODE_LENGTH, Reason, RetryAfter, cut
from postroom.rules.saga_failures import (
    GoOn,
    KeepWaiting,
    Park,
    Turn,
    after_step_failure,
    asleep,
    before_running,
    not_to_undo,
    without_event,
)
from postroom.rules.saga_plan import Direction, End, Kind, PlannedStep, Run, Undo
from postroom.rules.saga_state import STEP_MISSING
from postroom.runtime.calls import call_at_once
from postroom.saga.context import SagaFailure
from postroom.saga.running.attempts import Attempts
from postroom.saga.running.event_search import find_event
from postroom.saga.running.journal import EarlierCallHangs, NotBegun, Turning
from postroom.saga.running.left import GIVEN_BACK, LEASE_GONE, WRITTEN, NotTried, RetryLater
from postroom.saga.running.recorder import Recorder
from postroom.saga.running.sleeping import seconds_until
from postroom.saga.running.state import InstanceState
from postroom.saga.running.step_failures import Failed, failed, without_failure
from postroom.saga.running.stranded import (
    RETRY_STRANDED,
    Stranded,
    compensation_of,
    declared_step,
    result_of,
)
from postroom.saga.steps import Sleep, Step
from postroom.store.outbox.leases import new_token
from postroom.store.saga.values import LOST, Entry, Logged
from postroom.telemetry.saga_events import SagaParked, SagaStranded, SagaTurned, StepEnd

if TYPE_CHECKING:
    from postroom.rules.saga_failures import Position
    from postroom.rules.saga_plan import SagaOutcome
    from postroom.saga.messages import Start
    from postroom.saga.running.attempts import Attempted
    from postroom.saga.running.left import Left
    from postroom.saga.running.running import Running
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.values import Instance

MOST_READS = 3
"""How often an instance is read again before something is written. More would only repeat."""
DISAGREES = "the record of the saga does not change although its steps are run: look at the tables of its database"

Steps: TypeAlias = Sequence[tuple[PlannedStep, Step[..., Any]]]


class _Lost(Exception):
    """The lease is lost."""


class InstanceRun:
    """One instance, from the moment that a worker takes it up to the moment that it leaves it."""

    def __init__(self, running: Running, claimed: Claimed, start: Start, instance: Instance, read_at: float) -> None:
        """`read_at` is when the instance was read, by the journal's clock."""
        self._running = running
        self._saga = running.saga
        self._journal = running.journal
        self._state = InstanceState(claimed, start, instance, read_at)
        self._recorder = Recorder(running, self._state)
        self._attempts = Attempts(running, self._state, self._recorder)
        self._reads = 0

    @property
    def claimed(self) -> Claimed:
        """The claim under which it runs now."""
        return self._state.claimed

    async def run(self) -> Left:
        """Go on until nothing more can be done now."""
        try:
            while not self._state.has_ended:
                if self._running.is_stopping():
                    return GIVEN_BACK
                left = await self._move()
                if left is not None:
                    return left
        except _Lost:
            return LEASE_GONE
        except Stranded as stranded:
            return await self._strand(stranded)
        return WRITTEN

    async def _move(self) -> Left | None:
        """Make one move; None if the instance goes on."""
        move = self._state.next_move()
        if isinstance(move, End):
            return await self._log((), move.outcome)
        step = move.steps[0] if isinstance(move, Run) else move.step
        at = self._state.at(self._journal.monotonic())
        verdict = before_running(at)
        if verdict is not None:
            return await self._stop(verdict, step, at)
        match move:
            case Run(steps):
                return await self._forward(steps, at)
            case Undo(step):
                return await self._back(step, at)
            case never:
                assert_never(never)

    async def _forward(self, planned: Sequence[PlannedStep], at: Position) -> Left | None:
        steps = [(one, declared_step(self._saga, one)) for one in planned]
        skipped: list[Entry] = []
        for one, step in steps:
            try:
                if not self._applies(step):
                    skipped.append(self._recorder.skipped(one.name))
            except Exception as error:  # noqa: BLE001 - a user's function
                return await self._after(at, [self._raised(one, step, error)])
        if skipped:
            return await self._log(skipped, self._state.end_after(skipped))
        match planned[0].kind:
            case Kind.WAIT:
                return await self._wait(*steps[0], at)
            case Kind.SLEEP:
                return await self._sleep(*steps[0], at)
            case Kind.STEP | Kind.CALL:
                return await self._together(steps, at)
            case never:
                assert_never(never)

    def _applies(self, step: Step[..., Any]) -> bool:
        """Whether the step runs, by its condition."""
        if step.when is None or self._state.is_waiting(step.name):
            return True
        return bool(call_at_once(step.when, self._saga.decode(self._state.data)))

    def _raised(self, planned: PlannedStep, step: Step[..., Any], error: Exception) -> Failed:
        """What a function of the data raised that says whether or when a step runs. Raises `Stranded`."""
        if isinstance(error, SagaNotDecodable):
            raise Stranded(planned.name, str(error)) from error
        return failed(planned, step, error, self._running.classifier, 0.0, step.timeout)

    async def _together(self, steps: Steps, at: Position) -> Left | None:
        """Run one step, or all of a group at the same time. All end before the saga moves on."""
        if len(steps) == 1:
            return await self._after(at, [await self._attempts.make(*steps[0], at)])
        left = await self._after(at, await self._attempts.make_all(steps, at))
        if left is None and self.claimed.attempts and self._state.are_done(one.name for one, _ in steps):
            return await self._log((), None)  # the attempts that it took are not those of what comes next
        return left

    async def _back(self, planned: PlannedStep, at: Position) -> Left | None:
        """Run the compensation of a step, with what the step returned."""
        step = declared_step(self._saga, planned)
        undo = compensation_of(step, planned)
        value = None
        if len(undo.parameters) > 1:
            value = result_of(step, self._state.results.get(planned.name))
        return await self._after(at, [await self._attempts.make(planned, undo, at, value=value)])

    async def _wait(self, planned: PlannedStep, step: Step[..., Any], at: Position) -> Left | None:
        """Go on with the event if there is one; else give the lease up until it comes or its time has passed."""
        verdict = without_event(
            at,
            waited=self._state.waited(planned.name, self._journal.monotonic()),
            timeout=step.wait_timeout,
            continues=step.on_timeout == "continue",
        )
        due_in = verdict.seconds if isinstance(verdict, KeepWaiting) else 0.0
        found = await find_event(self._journal, self.claimed, planned, step, due_in)
        if found is LOST:
            raise _Lost
        self._state.note_waiting(planned.name, self._journal.monotonic())
        event, value, unreadable = found
        if event is not None:
            return await self._after(at, [await self._attempts.make(planned, step, at, value=value, event=event)])
        match verdict:
            case KeepWaiting():
                if unreadable:
                    self._report_stranded(planned.name, unreadable)
                return WRITTEN
            case GoOn():
                return await self._together([(planned, step)], at)
            case Turn() | Park():
                return await self._stop(verdict, planned, at, unreadable=unreadable)
            case never:
                assert_never(never)

    async def _sleep(self, planned: PlannedStep, step: Step[..., Any], at: Position) -> Left | None:
        """Give the lease up until it is time to go on."""
        try:
            seconds = self._seconds_to_sleep(step)
        except Exception as error:  # noqa: BLE001 - a user's function
            return await self._after(at, [self._raised(planned, step, error)])
        match asleep(at, seconds):
            case KeepWaiting(seconds):
                if await self._journal.wait(self.claimed, planned.name, None, seconds) is LOST:
                    raise _Lost
                return WRITTEN
            case GoOn():
                if not isinstance(step, Sleep) or step.has_function:
                    return await self._together([(planned, step)], at)
                entries = [self._recorder.done(planned.name, Direction.FORWARD, 0.0, None, None)]
                return await self._log(entries, self._state.end_after(entries))
            case Turn() as turn:
                return await self._stop(turn, planned, at)
            case never:
                assert_never(never)

    def _seconds_to_sleep(self, step: Step[..., Any]) -> float:
        if not isinstance(step, Sleep):
            return 0.0
        if step.until is not None:
            return seconds_until(step.name, step.until, self._saga.decode(self._state.data), self._journal.now())
        return (step.seconds or 0.0) - self._state.waited(step.name, self._journal.monotonic())

    async def _after(self, at: Position, attempted: Sequence[Attempted]) -> Left | None:
        """Decide what follows when a step, or each of a group, has been tried."""
        if Logged.LEASE_LOST in attempted:
            raise _Lost
        failures = [one for one in attempted if isinstance(one, Failed)]
        if failures:
            return await self._after_failures(at, failures)
        if Logged.DONE_BEFORE in attempted:
            return await self._read_again(self.claimed)
        stranded = [one for one in attempted if isinstance(one, Stranded)]
        if stranded:
            raise max(stranded, key=lambda one: one.tried)
        for one in attempted:
            if isinstance(one, NotBegun):
                return NotTried(one.delay, one.code, one.reason)
        self._reads = 0
        return None

    async def _after_failures(self, at: Position, failures: Sequence[Failed]) -> Left | None:
        verdict = after_step_failure(at, [one.for_rules for one in failures], random.random())  # noqa: S311 - jitter
        end = StepEnd.RETRY if isinstance(verdict, RetryAfter) else StepEnd.FAILED
        for one in failures:
            self._running.reports.step(
                *(self._state.id, one.step.name, at.direction, end),
                *(one.seconds, at.attempts + 1, one.code, one.error),
            )
        if isinstance(verdict, RetryAfter):
            hang = [one.error.timeout for one in failures if isinstance(one.error, EarlierCallHangs)]
            return RetryLater(max([verdict.delay, *hang]), failures[0].code, failures[0].text)
        return await self._stop(verdict, failures[0].step, at, failures)

    async def _stop(
        self,
        verdict: Turn | Park,
        step: PlannedStep,
        at: Position,
        failures: Sequence[Failed] = (),
        unreadable: str = "",
    ) -> Left | None:
        """Turn or park. It is this step's fault, unless the verdict names another that failed."""
        at_fault = next((one for one in failures if one.step.name == verdict.step), None)
        if at_fault is None:
            code, text = without_failure(verdict.why, step, at.claims, unreadable)
        else:
            step, code, text = at_fault.step, at_fault.code, at_fault.text
        reason = Turning((), step.name, code[:CODE_LENGTH], cut(text))
        if isinstance(verdict, Park):
            return await self._park(reason, attempted=bool(failures))
        return await self._turn(reason, at, failures)

    async def _turn(self, reason: Turning, at: Position, failures: Sequence[Failed]) -> Left | None:
        """Undo from now on, under a new token: a call that was left behind with the old one cannot commit any more."""
        entries = [self._recorder.failed(one.step.name, one.code, one.text, one.seconds) for one in failures]
        if all(one.step != reason.step for one in entries):
            entries.append(self._recorder.failed(reason.step, reason.code, reason.text))
        refused = not_to_undo(at, [one.step.name for one in failures if one.refused])
        entries += [self._recorder.skipped(name, Direction.BACK) for name in refused]
        turned = msgspec.structs.replace(self.claimed, token=new_token(), attempts=0, claims=1)
        if not await self._journal.turn(self.claimed, reason._replace(entries=entries), turned.token):
            # A call that was given up on may have committed after all; or the answer was lost, and it has turned.
            return await self._read_again(self.claimed, turned)
        self._recorder.go_on_as(turned)
        self._state.turn(entries, SagaFailure(reason.step, reason.code, reason.text))
        self._reads = 0
        self._running.reports.event(SagaTurned(self._saga.name, self._state.id, reason.step, reason.code, reason.text))
        # Of a group, another may be done of which nothing was heard: it must be undone, too.
        return await self._read_again(turned)

    async def _park(self, reason: Turning, *, attempted: bool) -> Left:
        claimed, state = self.claimed, self._state
        if not await self._journal.park(claimed, reason.step, reason.code, reason.text, attempted=attempted):
            raise _Lost
        attempts = claimed.attempts + attempted
        self._running.reports.event(
            SagaParked(self._saga.name, state.id, reason.step, state.direction, reason.code, reason.text, attempts)
        )
        self._running.on_parked(claimed, reason.code, reason.text)
        return WRITTEN

    async def _strand(self, stranded: Stranded) -> Left:
        """Leave it for a worker that has the code. No attempt counts."""
        cure = cut(stranded.cure)
        tried = stranded.tried
        if not await self._journal.put_back(self.claimed, STEP_MISSING, cure, RETRY_STRANDED, tried=tried):
            return LEASE_GONE
        self._report_stranded(stranded.step, cure)
        return WRITTEN

    def _report_stranded(self, step: str, cure: str) -> None:
        self._running.reports.event(SagaStranded(self._saga.name, self._state.id, step, STEP_MISSING, cut(cure)))

    async def _read_again(self, *claims: Claimed) -> Left | None:
        """Read the record under the first of these claims that holds: what was tried may be written after all."""
        self._reads += 1
        if self._reads > MOST_READS:
            return RetryLater(RETRY_STRANDED, Reason.INTERNAL_ERROR, DISAGREES)
        for claimed in claims:
            read_at = self._journal.monotonic()
            instance = await self._journal.read(claimed)
            if instance is not None:
                # What was tried and is not on record must not be taken for untried.
                self._recorder.go_on_as(msgspec.structs.replace(claimed, claims=max(2, claimed.claims)))
                self._state.load(instance, read_at)
                return None
        raise _Lost

    async def _log(self, entries: Sequence[Entry], end: SagaOutcome | None) -> Left | None:
        """Write what needs no function."""
        record = self._recorder.record(entries, end)
        logged = await self._journal.log(self.claimed, record)
        if logged is Logged.WRITTEN:
            self._recorder.written(record)
        return await self._after(self._state.at(self._journal.monotonic()), [logged])
