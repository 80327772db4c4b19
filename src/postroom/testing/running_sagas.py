"""Run a saga in memory, by the same code that a relay runs: only the journal is another, and time is virtual."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.errors import InvalidSetting
from postroom.rules.backoff import LONGEST_DELAY
from postroom.rules.failures import DEFAULT_CLASSIFIER
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_calls import DO, UNDO, call_key
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.saga.data import to_json
from postroom.saga.messages import read_start
from postroom.saga.running.instance import InstanceRun
from postroom.saga.running.memory_journal import MemoryJournal
from postroom.saga.running.reports import Reports
from postroom.saga.running.running import Running
from postroom.telemetry.saga_events import SagaStranded, SagaTurned, StepEnd, StepsEnded
from postroom.testing.saga_faults import Faults, WorkerDied
from postroom.testing.saga_runs import Moment, SagaRun

if TYPE_CHECKING:
    from postroom.saga.running.step_calls import Returned, StepCall
    from postroom.saga.saga import Saga
    from postroom.telemetry.events import Event
    from postroom.testing.saga_faults import Fail

D = TypeVar("D")
Events = Mapping[str, Any] | Iterable[tuple[str, Any]]
Sync = Callable[["StepCall", Any], Awaitable["Returned"]]

MOST_CLAIMS = 10_000
"""More, and the saga is taken to go round in circles."""


def run_saga(
    saga: Saga[D],
    data: D,
    *,
    id: str | None = None,
    fail_at: str | None = None,
    fail: Mapping[str, Fail] | None = None,
    fail_undo: Mapping[str, Fail] | None = None,
    events: Events = (),
    connection: Any = None,
) -> SagaRun[D]:
    """Run an instance to its end without a database. Waits, sleeps, time-outs and retries take no time.

    ``fail_at`` names a step that fails until the saga gives it up. ``fail`` says what steps raise instead of running:
    an exception, on every attempt, or a list with one for each attempt, where None lets it run; ``fail_undo`` is the
    same for compensations. ``events`` are those that the saga waits for, with their payloads; one that is missing never
    comes. ``connection`` is what steps get as ``saga.connection``; nothing is committed or rolled back on it.

    Functions run in the calling thread, async ones in an event loop of their own. Raises `InvalidSetting`.
    """
    return run_faulty(saga, data, Faults.given(saga, fail_at, fail, fail_undo), events, connection, id)


def run_faulty(
    saga: Saga[D], data: D, faults: Faults, events: Events, connection: Any, id: str | None = None
) -> SagaRun[D]:
    """Run an instance with these faults."""
    return run_blocking(lambda sync: _run(saga, data, id, faults, events, connection, sync))


async def arun_saga(
    saga: Saga[D],
    data: D,
    *,
    id: str | None = None,
    fail_at: str | None = None,
    fail: Mapping[str, Fail] | None = None,
    fail_undo: Mapping[str, Fail] | None = None,
    events: Events = (),
    connection: Any = None,
) -> SagaRun[D]:
    """`run_saga` in the running event loop."""
    faults = Faults.given(saga, fail_at, fail, fail_undo)
    return await _run(saga, data, id, faults, events, connection, _directly)


async def _directly(call: StepCall, connection: Any) -> Returned:
    return call.run(connection)


def run_blocking(run: Callable[[Sync], Awaitable[SagaRun[D]]]) -> SagaRun[D]:
    """Run the saga in an event loop in another thread, and its sync functions in this one, where no loop runs.

    So they may use what belongs to this thread (Django's and sqlite3's connections do), or run loops of their own.
    """
    calls = _CallsOfThisThread()
    ended: list[SagaRun[D]] = []
    raised: list[BaseException] = []

    async def main() -> None:
        ended.append(await run(calls.make))

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised in the calling thread
            raised.append(error)
        finally:
            calls.end()

    thread = threading.Thread(target=work, name="postroom-saga", daemon=True)
    thread.start()
    calls.serve()
    thread.join()
    for error in (*calls.stopped, *raised):
        raise error
    return ended[0]


class _CallsOfThisThread:
    """Makes calls in the thread that serves them, for an event loop in another thread."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self.stopped: list[BaseException] = []
        """What ends the run at once: Ctrl-C, or pytest's own."""

    def serve(self) -> None:
        """Make calls until `end`."""
        while (job := self._jobs.get()) is not None:
            job()

    def end(self) -> None:
        """No call follows."""
        self._jobs.put(None)

    async def make(self, call: StepCall, connection: Any) -> Returned:
        """Make a call."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Returned] = loop.create_future()

        def job() -> None:
            try:
                returned = call.run(connection)
            except StopIteration as error:  # which no future takes
                loop.call_soon_threadsafe(future.set_exception, RuntimeError(f"it raised {error!r}"))
            except Exception as error:  # noqa: BLE001 - raised where the function was called
                loop.call_soon_threadsafe(future.set_exception, error)
            except BaseException as error:  # noqa: BLE001 - raised when the run has ended
                self.stopped.append(error)
                loop.call_soon_threadsafe(future.cancel)
            else:
                loop.call_soon_threadsafe(future.set_result, returned)

        self._jobs.put(job)
        return await future


async def _run(
    saga: Saga[D], data: D, id: str | None, faults: Faults, events: Events, connection: Any, sync: Sync
) -> SagaRun[D]:
    """Run an instance to its end."""
    message = saga.start_message(data, id)
    journal = FaultyJournal(message, saga, connection, faults, sync)
    for event, payload in _checked(saga, events):
        journal.signal(event, to_json(payload, f"the payload of event {event!r}", saga.max_data_bytes))
    notes = _Notes(journal)
    running = Running(
        saga=saga,
        journal=journal,
        reports=Reports(saga.name, notes.take),
        classifier=DEFAULT_CLASSIFIER,
        worker="test",
    )
    start = read_start(message.headers)
    for _ in range(MOST_CLAIMS):
        if journal.has_stopped or notes.stranded is not None:
            return notes.run(saga, start.id, faults.scenario)
        claimed = journal.claim()
        if claimed is None:
            journal.move_clock(journal.due - journal.monotonic())
            continue
        run = InstanceRun(running, claimed, start, journal.read_now(), journal.monotonic())
        try:
            left = await run.run()
        except WorkerDied:
            continue
        finally:
            running.reports.flush()
        journal.settle(run.claimed, left)
    raise AssertionError(f"the saga was taken up {MOST_CLAIMS} times and did not end\n{notes.run(saga, start.id, '')}")


class FaultyJournal(MemoryJournal):
    """The journal in memory, with faults on demand, and the clock of a day that begins now."""

    def __init__(self, message: Any, saga: Saga[Any], connection: Any, faults: Faults, sync: Sync) -> None:
        super().__init__(message, saga.deadline, connection)
        self.keys: dict[tuple[str, str], str] = {}
        self._faults = faults
        self._sync = sync
        self._began = datetime.now(UTC)

    def now(self) -> datetime:
        """The time of day."""
        return self._began + timedelta(seconds=self.monotonic())

    @property
    def has_stopped(self) -> bool:
        """Whether the instance has ended, is parked, or waits for what never comes."""
        waits = self.state is Stored.SCHEDULED and self.due - self.monotonic() >= LONGEST_DELAY
        return waits or self.state in {None, Stored.DEAD}

    async def _run(self, call: StepCall, connection: Any) -> Returned:
        names = {Direction.FORWARD: DO, Direction.BACK: UNDO}
        self.keys[call.step, names[call.direction]] = call_key(
            self.instance.name, self.instance.id, call.step, call.direction
        )
        fault = self._faults.next(call.step, call.direction)
        if fault is not None and not fault.after:
            raise fault.error
        returned = await (call.arun(connection) if call.is_async else self._sync(call, connection))
        if fault is not None:
            raise fault.error
        return returned


class _Notes:
    """Collects what is reported, in order."""

    def __init__(self, journal: FaultyJournal) -> None:
        self._journal = journal
        self.timeline: list[Moment] = []
        self.stranded: SagaStranded | None = None

    def take(self, event: Event) -> None:
        at = self._journal.monotonic()
        match event:
            case StepsEnded(steps=steps):
                self.timeline += [
                    Moment(one.step, one.direction, one.end, one.attempts, at, one.code, one.error) for one in steps
                ]
            case SagaTurned(step=step, code=code) if not self._is_noted(step):
                self.timeline.append(Moment(step, Direction.FORWARD, StepEnd.FAILED, 1, at, code))
            case SagaStranded():
                self.stranded = event
            case _:
                pass

    def _is_noted(self, step: str) -> bool:
        return any(
            (one.step, one.direction, one.end) == (step, Direction.FORWARD, StepEnd.FAILED) for one in self.timeline
        )

    def run(self, saga: Saga[D], id: str, scenario: str) -> SagaRun[D]:
        journal = self._journal
        instance = journal.instance
        rows = instance.rows
        encoded = next((row.data for row in reversed(rows.values()) if row.data is not None), journal.message.payload)
        code, text = instance.error_code, instance.error_message
        if journal.state is Stored.DEAD or self.stranded is not None:
            code, text = journal.error
        return SagaRun(
            name=saga.name,
            id=id,
            state=self._state(),
            data=saga.decode(encoded),
            timeline=self.timeline,
            keys=journal.keys,
            failed_step=instance.failed_step or (self.stranded.step if self.stranded else ""),
            error_code=code,
            error_message=text,
            told=journal.told,
            scenario=scenario,
            _results={
                step: row.result
                for (direction, step), row in rows.items()
                if direction is Direction.FORWARD and row.outcome is StepOutcome.DONE
            },
            _steps=saga.steps,
        )

    def _state(self) -> str:
        if self.stranded is not None:
            return "stranded"
        if self._journal.state is Stored.DEAD:
            return "parked"
        outcome = self._journal.instance.outcome
        return "waiting" if outcome is SagaOutcome.OPEN else outcome.name.lower()


def _checked(saga: Saga[Any], events: Events) -> Sequence[tuple[str, Any]]:
    given = list(events.items() if isinstance(events, Mapping) else events)
    known = {step.event for step in saga.steps.values() if step.event}
    for event, _ in given:
        if event not in known:
            waits = f"it waits for {', '.join(sorted(known))}" if known else "it waits for none"
            raise InvalidSetting(f"saga {saga.name!r} never takes an event {event!r}: {waits}")
    return given
