"""Random sagas on real tables, run by the destination that a relay has, while a test decides what happens when.

Workers stop at gates: before each of their transactions and each function. A test opens them, in any order, for better
or worse; or leaves them shut until the lease has ended, and another worker has gone on.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine

from postroom import Inbox, RetryPolicy, Saga
from postroom.brokers.port import NotSent
from postroom.brokers.port import Refused as NotAccepted
from postroom.compose.transactions import Transactions
from postroom.delivery.destination import Decided
from postroom.errors import DatabaseUnreachable, Refused
from postroom.rules.failures import DEFAULT_CLASSIFIER
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_calls import DIRECTION_HEADER, DO, STEP_HEADER
from postroom.rules.saga_plan import Direction, Kind, SagaOutcome
from postroom.saga.running.destination import SagaDestination
from postroom.saga.running.events_received import EventsReceived
from postroom.saga.running.log_writer import LogWriter
from postroom.saga.running.reports import Reports
from postroom.saga.running.running import Running
from postroom.saga.running.step_transactions import StepTransactions
from postroom.saga.running.stored_journal import StoredJournal
from postroom.store.outbox.leases import GivenBack, Retry
from postroom.store.saga.values import Aborted, Logged
from tests.contract.stored_sagas import Sagas

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from postroom.delivery.destination import Outcome
    from postroom.rules.saga_plan import PlannedStep
    from postroom.saga.context import SagaContext
    from postroom.saga.running.step_calls import StepCall
    from postroom.store.outbox.leases import Claimed
    from postroom.store.sql.steps import Steps
    from tests.contract.store_drivers import Room

NAME, ID, QUEUE = "random", "one", "saga:random"
LEASE = 30.0
WAIT = 100.0
TWICE = RetryPolicy.table([10], max_attempts=2)
FORWARD, BACK = Direction.FORWARD, Direction.BACK
EFFECTS = Table(
    "random_effect",
    MetaData(),
    Column("number", Integer, primary_key=True),
    Column("direction", Integer),
    Column("step", String(50)),
)


class Permanent(Exception):
    """What a function raises that no retry can help."""


@dataclass(frozen=True)
class Planned:
    """A step of a random saga."""

    step: PlannedStep
    continues: bool = False
    """Of a wait: it goes on without its event when its time is over."""
    wanted: bool = True
    """Its condition."""


@dataclass(eq=False)
class Gate:
    """Where a worker stands and waits."""

    worker: Worker
    call: StepCall | None
    """The function that it is about to call; None before a transaction of its own."""
    opened: asyncio.Future[str]


@dataclass(eq=False)
class Worker:
    """A relay's process."""

    destination: SagaDestination
    is_alive: bool = True
    delivering: asyncio.Task[None] | None = None


@dataclass
class RandomSaga:
    """One instance, its workers, and the service that its calls reach."""

    room: Room
    steps: Sequence[Planned]
    deadline: float | None
    loop: asyncio.AbstractEventLoop
    lost: str = ""
    """The step that old code does not have."""
    gates: list[Gate] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    threads: list[Callable[[], object]] = field(default_factory=list)
    """Functions that timed out, and have not ended."""
    network: list[Mapping[str, str]] = field(default_factory=list)
    """The headers of requests that are late."""
    pardoned: set[str] = field(default_factory=set)
    """Steps that an operator skipped."""
    aborted: bool = False
    resumed: int = 0
    how: str = "ok"
    """What the function does that is being called."""

    def __post_init__(self) -> None:
        self.sagas = Sagas(self.room, NAME)
        self.store = self.sagas.store
        self.engine = create_engine(self.room.driver.url(self.room.url))
        with self.engine.begin() as connection:
            EFFECTS.create(connection, checkfirst=True)
            connection.execute(EFFECTS.delete())
        self.inbox = Inbox("service")
        self.transactions = Transactions(self.engine, None, "step")
        self.code = self.declared(frozenset())
        self.position = self.sagas.start(ID, deadline=self.deadline, plan=self.code.plan)

    def close(self) -> None:
        for worker in self.workers:
            self.crash(worker)
        self.engine.dispose()

    # The saga and its functions

    def declared(self, without: frozenset[str]) -> Saga[Any]:
        saga: Saga[Any] = Saga(NAME, transactions=self.engine)
        for planned in self.steps:
            if planned.step.name not in without:
                self.declare(saga, planned)
        return saga

    def declare(self, saga: Saga[Any], planned: Planned) -> None:
        one = planned.step
        options: dict[str, Any] = {"name": one.name, "retry": TWICE, "permanent": (Permanent,)}
        if not planned.wanted:
            options["when"] = lambda _data: False
        declared: Any
        if one.kind is Kind.WAIT:
            on_timeout: Any = "continue" if planned.continues else "compensate"
            declared = saga.wait(one.event, timeout=WAIT, on_timeout=on_timeout, **options)(self.receive)
        else:
            add: Any = saga.call if one.kind is Kind.CALL else saga.step
            declared = add(group=one.group, pivot=one.pivot, **options)(
                self.call if one.kind is Kind.CALL else self.step
            )
        if one.compensated:
            undo = self.call if one.kind is Kind.CALL else self.step
            declared.compensation(retry=TWICE, permanent=(Permanent,))(undo)

    def step(self, saga: SagaContext[Any]) -> None:
        saga.connection.execute(EFFECTS.insert().values(direction=int(saga.direction), step=saga.step))
        self.fail()

    def receive(self, saga: SagaContext[Any], event: Any) -> None:  # noqa: ARG002 - a wait's function has it
        self.step(saga)

    def call(self, saga: SagaContext[Any]) -> None:
        if self.how == "refuse" and saga.direction is FORWARD and (FORWARD, saga.step) not in self.effects():
            raise Refused("NO")
        if self.how in {"fail", "reject", "time out"}:
            self.network.append(dict(saga.headers))
            self.fail()
        self.arrive(saga.headers)

    def fail(self) -> None:
        if self.how in {"fail", "refuse"}:
            raise ConnectionError("away")
        if self.how == "reject":
            raise Permanent
        if self.how == "time out":
            raise TimeoutError

    def arrive(self, headers: Mapping[str, str]) -> None:
        """A request reaches the service, which keeps its effects behind the barrier."""
        direction = FORWARD if headers[DIRECTION_HEADER] == DO else BACK
        with self.engine.begin() as connection:
            if self.inbox.barrier(connection, headers):
                connection.execute(EFFECTS.insert().values(direction=int(direction), step=headers[STEP_HEADER]))

    def effects(self) -> list[tuple[Direction, str]]:
        with self.engine.begin() as connection:
            rows = connection.execute(EFFECTS.select().order_by(EFFECTS.c.number))
            return [(Direction(row.direction), row.step) for row in rows]

    # Workers

    def begin_work(self, *, old_code: bool = False) -> Worker:
        connection = _Connection(self)
        log = LogWriter(self.store, connection)  # type: ignore[arg-type]  # what it needs of one
        reports = Reports(NAME, lambda _event: None)
        journal = StoredJournal(
            self.store,
            connection,  # type: ignore[arg-type]  # as above
            log,
            _Calls(self, connection),  # type: ignore[arg-type]  # as above
            StepTransactions(self.store, self.transactions),
        )
        made: list[SagaDestination] = []
        running = Running(
            saga=self.declared(frozenset({self.lost})) if old_code and self.lost else self.code,
            journal=journal,
            reports=reports,
            classifier=DEFAULT_CLASSIFIER,
            worker="worker",
            is_stopping=lambda: made[0].is_stopping,
        )
        events = EventsReceived(NAME, self.store, connection, reports)  # type: ignore[arg-type]  # as above
        made.append(
            SagaDestination(running, self.store, connection, log, events, 4, lambda _event: None)  # type: ignore[arg-type]  # as above
        )
        worker = connection.worker = Worker(made[0])
        made[0].begin(_Landing(self, worker))
        self.workers.append(worker)
        return worker

    def claim(self, worker: Worker) -> None:
        """Claim what is due, and take it in hand."""
        claimed = self.sagas.claim(LEASE)
        if claimed:
            worker.delivering = self.loop.create_task(self._deliver(worker, claimed))
        self.settle()

    async def _deliver(self, worker: Worker, claimed: Sequence[Claimed]) -> None:
        if not worker.is_alive:
            return
        outcomes = await worker.destination.deliver(claimed, LEASE)
        for one, outcome in zip(claimed, outcomes, strict=True):
            self.land(worker, one, outcome)

    def land(self, worker: Worker, claimed: Claimed, outcome: Outcome) -> None:
        if not worker.is_alive:
            return
        if isinstance(outcome, Decided):
            self.room.run(self.sagas.queue.settlements.settle([outcome.settlement]))
        elif isinstance(outcome, NotSent):
            self.room.run(self.sagas.queue.settlements.settle([GivenBack(claimed)]))
        elif isinstance(outcome, NotAccepted):
            self.room.run(self.sagas.queue.settlements.settle([Retry(claimed, 10, "CODE", "text")]))

    def settle(self) -> None:
        """Let every worker go on until it stands at a gate."""
        self.loop.run_until_complete(_rounds())

    def open(self, gate: Gate, how: str) -> None:
        self.gates.remove(gate)
        gate.opened.set_result(how)
        self.settle()

    def crash(self, worker: Worker) -> None:
        worker.is_alive = False
        self.workers = [one for one in self.workers if one is not worker]
        self.gates = [gate for gate in self.gates if gate.worker is not worker]
        if worker.delivering is not None:
            worker.delivering.cancel()
        self.loop.run_until_complete(worker.destination.close())
        self.settle()

    def wait_at_gate(self, worker: Worker, call: StepCall | None) -> asyncio.Future[str]:
        gate = Gate(worker, call, self.loop.create_future())
        self.gates.append(gate)
        return gate.opened

    # What others do

    def abort(self) -> None:
        pivots = {one.step.name for one in self.steps if one.step.pivot}
        pardoned = pivots if self.is_parked else set()
        aborted = self.room.run(self.store.sql.transaction(self.store.abort, ID, "ada", "enough"))
        if aborted is Aborted.ABORTED:
            self.aborted = True
            self.pardoned |= pardoned

    def resume(self, *, skip: bool) -> None:
        if skip:
            before = set(self.sagas.steps(self.position).items())
            self.room.admin().skip_saga_step(NAME, ID, actor="ada", step=self.stands_at())
            new = set(self.sagas.steps(self.position).items()) - before
            self.pardoned |= {step for (_, step), _ in new}
        else:
            self.room.admin().resume_saga(NAME, ID, actor="ada")
        self.resumed += 1

    def stands_at(self) -> str | None:
        """The step that is skipped: of a group, the first that is not done."""
        steps = self.sagas.steps(self.position)
        if self.row.direction == BACK:
            return None
        return next(one.step.name for one in self.steps if steps.get((FORWARD, one.step.name)) not in (1, 3))

    def signal(self, event: str) -> None:
        self.sagas.signal(ID, event, {})

    # What is on record

    @property
    def row(self) -> Any:
        return self.sagas.row(self.position)

    @property
    def has_ended(self) -> bool:
        return bool(self.row.outcome)

    @property
    def is_parked(self) -> bool:
        found = self.room.find_delivery(self.position)
        return found is not None and found.state == Stored.DEAD

    def problems(self) -> Iterator[str]:
        """What must not be, once it has ended."""
        effects = self.effects()
        outcome = SagaOutcome(self.row.outcome)
        if outcome is SagaOutcome.COMPLETED and self.aborted:
            yield "completed although it was aborted"
        on_record = self.sagas.steps(self.position)
        for planned in self.steps:
            one = planned.step
            done, undone = effects.count((FORWARD, one.name)), effects.count((BACK, one.name))
            if done > 1 or undone > done:
                yield f"{one.name} was done {done} times and undone {undone} times"
            if one.pivot and on_record.get((FORWARD, one.name)) in (1, 3) and outcome is not SagaOutcome.COMPLETED:
                yield "went back past its pivot"
            if one.name in self.pardoned:
                continue
            if outcome is SagaOutcome.COMPLETED and (done, undone) != (int(planned.wanted), 0):
                yield f"completed, and {one.name} was done {done} times and undone {undone} times"
            if outcome is SagaOutcome.COMPENSATED and one.compensated and done != undone:
                yield f"compensated, and {one.name} was done {done} times and undone {undone} times"
            if outcome is SagaOutcome.COMPENSATED and one.pivot and not one.compensated and done:
                yield f"compensated, and its pivot {one.name} has happened"
        order = [one.step.name for one in self.steps]
        places = [order.index(step) for direction, step in effects if direction is BACK and step not in self.pardoned]
        if places != sorted(places, reverse=True):
            yield f"undone in the order {places}"


async def _rounds() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


class _Connection:
    """A worker's connections: each use of one stands at a gate first."""

    def __init__(self, saga: RandomSaga) -> None:
        self._saga = saga
        self.worker: Worker

    async def attempt(self, steps: Steps[Any]) -> Any:
        await self._saga.wait_at_gate(self.worker, None)
        return self._saga.room.run(steps)

    async def run(self, make: Callable[[], Steps[Any]]) -> Any:
        return await self.attempt(make())

    async def answers(self) -> bool:
        return True


class _Calls:
    """Calls functions as the test says, in the test's own thread."""

    def __init__(self, saga: RandomSaga, connection: _Connection) -> None:
        self._saga = saga
        self._connection = connection

    async def run(self, call: StepCall, blocking: Callable[[StepCall], Any], *_: object) -> Any:
        saga = self._saga
        how = await saga.wait_at_gate(self._connection.worker, call)
        if how == "time out" and call.action.parameters and not _is_call(saga, call):
            saga.threads.append(lambda: blocking(call))
            raise TimeoutError
        if how == "lose the commit" and not _is_call(saga, call):
            call.note_logged()
            raise DatabaseUnreachable("gone")
        saga.how = how
        try:
            result = blocking(call)
        finally:
            saga.how = "ok"
        if how == "lose the answer" and result is Logged.WRITTEN:
            raise DatabaseUnreachable("gone")
        return result


def _is_call(saga: RandomSaga, call: StepCall) -> bool:
    return any(one.step.name == call.step and one.step.kind is Kind.CALL for one in saga.steps)


class _Landing:
    def __init__(self, saga: RandomSaga, worker: Worker) -> None:
        self._saga = saga
        self._worker = worker

    def land(self, claimed: Claimed, outcome: Outcome, seconds: float = 0.0) -> None:  # noqa: ARG002 - the port's
        self._saga.land(self._worker, claimed, outcome)

    def replace(self, old: Claimed, new: Claimed) -> bool:  # noqa: ARG002 - the port's
        return True

    def look_again(self) -> None:
        pass
