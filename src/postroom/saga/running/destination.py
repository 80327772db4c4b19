"""Sagas as a destination: takes claimed deliveries of one saga's queue, and runs each as an instance until it lands.

`deliver` only reads the instances, many at once, and takes them in hand. So many as `concurrency` says run at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from postroom.brokers.port import NOT_SENT, Capabilities, Refused
from postroom.delivery.destination import ALREADY_SETTLED, IN_HAND, LEASE_LOST, Decided
from postroom.errors import SagaNotDecodable
from postroom.rules.failures import Failure, Reason
from postroom.rules.naming import SAGA_ID, SAGA_PLAN, SAGA_SIGNAL, SAGA_START
from postroom.rules.saga_state import STEP_MISSING
from postroom.runtime.backoff import Backoff
from postroom.runtime.waiting import wait_for
from postroom.saga.messages import Start, read_start
from postroom.saga.running.instance import InstanceRun
from postroom.saga.running.left import LeaseGone, NotTried, RetryLater, Written
from postroom.saga.running.log_writer import FIRST_LOCKED, LONGEST_LOCKED
from postroom.saga.running.stranded import RETRY_STRANDED
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.leases import GivenBack, Postponed, Retry
from postroom.store.saga.values import LOCKED, Locked
from postroom.telemetry.events import HookFailed
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.destination import Landing, Outcome
    from postroom.saga.running.events_received import EventsReceived
    from postroom.saga.running.left import Left
    from postroom.saga.running.log_writer import LogWriter
    from postroom.saga.running.running import Running
    from postroom.saga.steps import Action
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.saga_store import SagaStore
    from postroom.store.saga.values import Instance
    from postroom.telemetry.events import Hook

NOT_A_SAGA = "NOT_A_SAGA"
AGAIN = 5.0
"""Seconds until an instance is tried again whose worker failed."""


class _InHand(NamedTuple):
    """An instance that waits for its turn."""

    claimed: Claimed
    start: Start
    instance: Instance
    read_at: float


class SagaDestination:
    """Runs the instances of one saga. See `LongRunning`."""

    capabilities = Capabilities()
    settles_itself = True

    def __init__(
        self,
        running: Running,
        store: SagaStore,
        connection: Connection,
        log: LogWriter,
        events: EventsReceived,
        concurrency: int,
        hook: Hook,
    ) -> None:
        """`connection` is for what is read of instances."""
        self.name = running.saga.queue
        self.patience = _longest([*running.saga.steps.values()])
        self._running = running
        self._store = store
        self._connection = connection
        self._log = log
        self._events = events
        self._concurrency = concurrency
        self._hook = hook
        self._landing: Landing | None = None
        self._instances: deque[_InHand] = deque()
        self._signals: deque[Claimed] = deque()
        self._held_up: deque[Claimed] = deque()
        """Signals to instances that somebody else has locked."""
        self._signalled = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_work = 0
        self._takes_signals = False
        self.is_stopping = False

    def begin(self, landing: Landing) -> None:
        """Learn where to land deliveries."""
        self._landing = landing
        self.is_stopping = False

    def replace(self, old: Claimed, new: Claimed) -> None:
        """Go on with an instance under another claim."""
        if self._landing is not None:
            self._landing.replace(old, new)

    def stop(self) -> None:
        """Let steps that run end, and give the rest back."""
        self.is_stopping = True
        waiting = [*(one.claimed for one in self._instances), *self._held_up, *self._signals]
        for queue in (self._instances, self._held_up, self._signals):
            queue.clear()
        self._signalled.set()
        for claimed in waiting:
            self._land(claimed, NOT_SENT)

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ARG002, ASYNC109 - the port's; functions have timeouts of their own
        """Take deliveries in hand."""
        starts: dict[int, Start] = {}
        outcomes = [self._sort(one, starts) for one in claimed]
        read_at = time.monotonic()
        try:
            instances = await self._read([one for one in claimed if one.position in starts])
        except Outage:
            return [NOT_SENT] * len(claimed)
        if self.is_stopping:
            return [NOT_SENT] * len(claimed)
        for index, one in enumerate(claimed):
            if outcomes[index] is not IN_HAND:
                continue
            if one.position not in starts:
                self._signals.append(one)
            elif one.position not in instances:
                outcomes[index] = LEASE_LOST
            elif instance := instances[one.position]:
                self._instances.append(_InHand(one, starts[one.position], instance, read_at))
            else:
                outcomes[index] = _refused(NOT_A_SAGA, "it has no row among the sagas: use Saga.start to start one")
        self._set_to_work()
        return outcomes

    async def _read(self, claimed: Sequence[Claimed]) -> dict[int, Instance | None]:
        return await self._connection.attempt(self._store.read_held(claimed)) if claimed else {}

    async def close(self) -> None:
        """Leave what still runs behind: it cannot commit once its lease has ended."""
        self._log.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    def _sort(self, one: Claimed, starts: dict[int, Start]) -> Outcome:
        """Look at what kind of message it is; what starts an instance is added to `starts`."""
        message = one.message
        if message.type == SAGA_SIGNAL:
            return IN_HAND
        if message.type != SAGA_START or SAGA_ID not in message.headers or SAGA_PLAN not in message.headers:
            problem = f"a message of type {message.type!r} in the queue of a saga: use Saga.start or Saga.signal"
            return _refused(NOT_A_SAGA, problem)
        try:
            starts[one.position] = read_start(message.headers)
        except SagaNotDecodable as error:
            return Decided(Postponed(one, RETRY_STRANDED, STEP_MISSING, str(error)))
        return IN_HAND

    def _set_to_work(self) -> None:
        for _ in range(min(self._concurrency - self._at_work, len(self._instances))):
            self._at_work += 1
            self._start(self._run_instances())
        if self._signals:
            self._signalled.set()
        if self._signals and not self._takes_signals:
            self._takes_signals = True
            self._start(self._take_up_signals())

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work, name=f"postroom-{self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_instances(self) -> None:
        try:
            while self._instances:
                await self._run(self._instances.popleft())
        finally:
            self._at_work -= 1

    async def _run(self, one: _InHand) -> None:
        started = time.monotonic()
        run = InstanceRun(self._running, *one)
        try:
            left: Left = await run.run()
        except Exception as error:  # noqa: BLE001 - one instance must not stop the others
            left = RetryLater(AGAIN, Reason.INTERNAL_ERROR, self._flaw(error))  # what was begun may go on
        self._land(run.claimed, _outcome(run.claimed, left), time.monotonic() - started)

    async def _take_up_signals(self) -> None:
        """Take up signals. One to a locked instance comes again after a pause, with those to it that came later."""
        backoff = Backoff(FIRST_LOCKED, LONGEST_LOCKED)
        try:
            while self._signals:
                self._signalled.clear()
                locked: set[str] = set()
                while self._signals:
                    await self._take_up_signal(self._signals.popleft(), locked)
                if self._held_up:
                    await wait_for(self._signalled, backoff.next())
                    self._signals.extendleft(reversed(self._held_up))
                    self._held_up.clear()
                else:
                    backoff.reset()
        finally:
            self._takes_signals = False

    async def _take_up_signal(self, claimed: Claimed, locked: set[str]) -> None:
        """Take up a signal, unless its instance is locked: then it is held up, and its instance is in `locked`."""
        instance = claimed.message.headers.get(SAGA_ID, "")
        outcome: Outcome | Locked = LOCKED
        if instance not in locked:
            try:
                outcome = await self._events.take_up(claimed, self._look_again)
            except Exception as error:  # noqa: BLE001 - one signal must not stop the others
                outcome = Refused(Reason.INTERNAL_ERROR, self._flaw(error))
        if not isinstance(outcome, Locked):
            self._land(claimed, outcome)
        elif self.is_stopping:
            self._land(claimed, NOT_SENT)
        else:
            locked.add(instance)
            self._held_up.append(claimed)

    def _flaw(self, error: Exception) -> str:
        """Report an error of our own, or of the database's."""
        self._hook(HookFailed("saga", type(error).__name__, raised_at(error)))
        return f"running it failed with {type(error).__name__}, through no fault of its functions"

    def _land(self, claimed: Claimed, outcome: Outcome, seconds: float = 0.0) -> None:
        if self._landing is not None:
            self._landing.land(claimed, outcome, seconds)

    def _look_again(self) -> None:
        if self._landing is not None:
            self._landing.look_again()


def _outcome(claimed: Claimed, left: Left) -> Outcome:
    match left:
        case Written():
            return ALREADY_SETTLED
        case LeaseGone():
            return LEASE_LOST
        case RetryLater(delay, code, text):
            return Decided(Retry(claimed, delay, code, text))
        case NotTried(0.0):
            return Decided(GivenBack(claimed))
        case NotTried(delay, code, text):
            return Decided(Postponed(claimed, delay, code, text))
        case never:
            assert_never(never)


def _refused(code: str, problem: str) -> Refused:
    return Refused(code, problem, Failure.PERMANENT)


def _longest(steps: Sequence[Any]) -> float:
    """Seconds that the function with the longest timeout may take."""
    actions: list[Action[..., Any]] = [*steps, *(one.undo for one in steps if one.undo is not None)]
    return max([one.timeout for one in actions], default=0.0)
