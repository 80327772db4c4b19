"""The engine with several queues: a broker and handlers in this process, on one set of connections."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from postroom import Message
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.port import NOT_SENT, Capabilities
from postroom.compose.databases import open_checked_store
from postroom.delivery.destination import ALREADY_SETTLED, IN_HAND, LEASE_LOST, PublishToBroker
from postroom.delivery.engine import Engine
from postroom.delivery.queue import EngineOptions, Queue
from postroom.rules.lifecycle import OutcomeCode
from postroom.settings import Settings
from postroom.store.connections.kinds import sync_kind
from postroom.store.connections.reconnecting import Database
from postroom.store.connections.shared import ConnectionSet
from postroom.store.outbox.leases import Sent
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.schema.purposes import Purpose
from postroom.store.sql.steps import run
from postroom.telemetry.events import Beat, Event, Settled
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from postroom.delivery.destination import Landing, Outcome
    from postroom.store.outbox.leases import Claimed
    from tests.conftest import FreshDatabase

JOBS = "handler:jobs"

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        service.execute("CREATE TABLE effect (number INTEGER)")
        yield service


def add_jobs(service: Service, *messages: Message) -> None:
    """As parked messages and saga steps are: in a queue of their own."""
    service.commit(*messages)
    for table in ("outbox", "delivery"):
        service.execute(f"UPDATE {service.table(table)} SET queue = '{JOBS}'")


class Handlers:
    """Writes an effect for each delivery and settles it, in one transaction."""

    name = "handlers"
    capabilities = Capabilities()
    settles_itself = True

    def __init__(self, service: Service) -> None:
        self._service = service
        self.takes_over = False
        """Whether somebody else has the delivery before its effect is committed."""

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        return [await asyncio.to_thread(self._handle, one) for one in claimed]

    def _handle(self, one: Claimed) -> Outcome:
        if self.takes_over:
            self._service.execute(f"UPDATE {self._service.table('delivery')} SET token = 1")
        with self._service.engine.connect() as connection:
            connection.execute(text(f"INSERT INTO effect VALUES ({one.message.json()})"))
            settle = QueueStore(self._service.names, JOBS).settlements.in_transaction([Sent(one)])
            written = run(settle, sync_kind(connection, "settle").execute)
            if written.lost:
                connection.rollback()
                return LEASE_LOST
            connection.commit()
        return ALREADY_SETTLED

    async def close(self) -> None:
        """Nothing to close."""


class Patient(Handlers):
    """Has deliveries in hand until it is told to go on, `most` of them at a time; a stop gives back the others."""

    patience = 20.0

    def __init__(self, service: Service, most: int = 10) -> None:
        super().__init__(service)
        self.goes_on = asyncio.Event()
        self.running: set[int] = set()
        self._turns = asyncio.Semaphore(most)
        self._stopping = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.landing: Landing | None = None

    def begin(self, landing: Landing) -> None:
        self.landing = landing

    def stop(self) -> None:
        self._stopping.set()

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        self._tasks |= {asyncio.create_task(self._run(one)) for one in claimed}
        return [IN_HAND] * len(claimed)

    async def _run(self, one: Claimed) -> None:
        assert self.landing is not None
        async with self._turns:
            if self._stopping.is_set():
                self.landing.land(one, NOT_SENT)
                return
            self.running.add(one.position)
            await self.goes_on.wait()
            self.landing.land(one, await asyncio.to_thread(self._handle, one))


class Hanging:
    """A destination that never answers."""

    name = "hanging"
    capabilities = Capabilities()
    settles_itself = False

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del claimed, timeout
        await asyncio.Event().wait()
        return []

    async def close(self) -> None:
        """Nothing to close."""


def beating_in(events: Sequence[Event]) -> set[str]:
    """The queues in which the database has noted a heartbeat."""
    return {event.queue for event in events if isinstance(event, Beat) and event.reached}


@asynccontextmanager
async def engine_of(service: Service, *queues: Queue, worker: str = "w", lease: float = 120) -> AsyncIterator[Engine]:
    async with AsyncExitStack() as stack:
        store = await open_checked_store(Settings.load(database=service.url), Purpose.RELAY)
        stack.push_async_callback(store.close)
        database = Database(store, lambda _: None)
        stack.push_async_callback(database.close)
        options = EngineOptions(worker=worker, lease=lease)
        yield Engine(database, queues, options, connections=ConnectionSet.small(database))


async def test_a_handler_settles_in_its_own_transaction(service: Service) -> None:
    add_jobs(service, *(Message.new("t", n, key=f"k{n % 3}" if n % 2 else None) for n in range(10)))
    events: list[Event] = []
    queue = Queue(name=JOBS, destination=Handlers(service), hook=events.append)
    async with engine_of(service, queue) as engine:
        await engine.run_once()
    assert service.rows("SELECT number FROM effect ORDER BY number") == [(n,) for n in range(10)]
    assert service.rows(f"SELECT count(*) FROM {service.table('delivery')}") == [(0,)]
    assert service.rows(f"SELECT count(*) FROM {service.table('receipt')}") == [(10,)]
    assert not [event for event in events if isinstance(event, Settled)], "the destination reports what it did"


async def test_a_handler_whose_lease_is_lost_leaves_no_effect_and_a_conflict(service: Service) -> None:
    add_jobs(service, Message.new("t", 1))
    events: list[Event] = []
    handlers = Handlers(service)
    handlers.takes_over = True
    async with engine_of(service, Queue(name=JOBS, destination=handlers, hook=events.append)) as engine:
        await engine.run_once()
    assert service.rows("SELECT number FROM effect") == []
    assert [event.outcome for event in events if isinstance(event, Settled)] == [OutcomeCode.CONFLICT]
    assert service.rows(f"SELECT count(*) FROM {service.table('receipt')}") == [(0,)]


async def test_a_queue_that_hangs_holds_up_no_other_and_no_heartbeat(service: Service) -> None:
    add_jobs(service, Message.new("t", 1), Message.new("t", 2, key="k"))
    service.commit(*(Message.new("t", n, key=f"k{n % 3}" if n % 2 else None) for n in range(10)))
    broker, events = MemoryBroker(), list[Event]()
    queues = [
        Queue(name=JOBS, destination=Hanging(), timeout=1, hook=events.append),
        Queue(name="default", destination=PublishToBroker(broker), hook=events.append),
    ]
    async with engine_of(service, *queues) as engine, asyncio.TaskGroup() as group:
        running = group.create_task(engine.run())
        await wait_for(lambda: len(broker.messages) == 10)
        await wait_for(
            lambda: {JOBS, "default"} == {one.queue for one in events if isinstance(one, Beat) and one.reached}
        )
        workers = service.rows(f"SELECT queue, worker FROM {service.table('worker')} ORDER BY queue")
        assert workers == [("default", "w"), (JOBS, "w")]
        running.cancel()


async def test_a_queue_without_keys_holds_no_lane(service: Service) -> None:
    add_jobs(service, Message.new("t", 1), Message.new("t", 2, key="k"))
    async with engine_of(service, Queue(name=JOBS, destination=Handlers(service), keyed=False)) as engine:
        await engine.run_once()
    assert service.rows("SELECT number FROM effect") == [(1,)]
    assert service.rows(f"SELECT count(*) FROM {service.table('lane')} WHERE queue = '{JOBS}'") == [(0,)]


def patient_queue(destination: Patient) -> Queue:
    return Queue(name=JOBS, destination=destination, keyed=False, batch=5, most_in_flight=6)


async def test_what_is_in_hand_keeps_its_lease_for_as_long_as_it_takes(service: Service) -> None:
    add_jobs(service, Message.new("t", 1))
    ours, others = Patient(service), Patient(service)
    renewals: set[object] = set()

    def renewed() -> int:
        renewals.update(service.rows(f"SELECT leased_until FROM {service.table('delivery')}"))
        return len(renewals)

    async with (
        engine_of(service, patient_queue(ours), lease=1) as engine,
        engine_of(service, patient_queue(others), worker="x", lease=1) as other,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(engine.run())
        await wait_for(lambda: ours.running)
        group.create_task(other.run())
        await wait_for(lambda: renewed() > 4)  # each is for half a lease or less
        ours.goes_on.set()
        await wait_for(lambda: service.rows("SELECT number FROM effect") == [(1,)])
        engine.stop()
        other.stop()
    assert not others.running
    assert service.rows(f"SELECT count(*) FROM {service.table('delivery')}") == [(0,)]


async def test_a_stop_finishes_what_runs_and_gives_back_the_rest(service: Service) -> None:
    add_jobs(service, *(Message.new("t", n) for n in range(8)))
    patient = Patient(service, most=2)
    async with engine_of(service, patient_queue(patient)) as engine, asyncio.TaskGroup() as group:
        group.create_task(engine.run())
        await wait_for(lambda: len(patient.running) == 2)
        engine.stop()
        patient.goes_on.set()
    assert len(service.rows("SELECT number FROM effect")) == 2
    async with engine_of(service, patient_queue(patient := Patient(service))) as engine:
        patient.goes_on.set()
        await engine.run_once()
    assert len(service.rows("SELECT number FROM effect")) == 8, "none is leased any more"


@pytest.mark.parametrize("until_empty", [False, True], ids=["once", "until empty"])
async def test_a_run_that_ends_by_itself_waits_for_what_is_in_hand(service: Service, *, until_empty: bool) -> None:
    add_jobs(service, *(Message.new("t", n) for n in range(8)))
    patient = Patient(service)
    async with engine_of(service, patient_queue(patient)) as engine, asyncio.TaskGroup() as group:
        running = group.create_task(engine.run_until_empty() if until_empty else engine.run_once())
        await wait_for(lambda: len(patient.running) >= 5)
        assert not running.done()
        patient.goes_on.set()
        await running
    assert len(service.rows("SELECT number FROM effect")) == 8
