"""Relay: claim → publish → settle, for ever."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

from postroom.compose import open_async_store, open_broker
from postroom.relay.collector import Batches, Collector
from postroom.relay.courier import Courier
from postroom.relay.database import Database, Outage
from postroom.relay.heart import Heart
from postroom.relay.office import Office, options_of
from postroom.relay.settler import Settler
from postroom.rules.lifecycle import Outcome
from postroom.settings import Settings
from postroom.store.databases import deliveries
from postroom.store.leases import GivenBack, Order
from postroom.store.operations import DEFAULT_QUEUE
from postroom.store.workers import Workers
from postroom.telemetry import Event, Lifecycle, Settled, all_of, silent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType

    from postroom.brokers.port import Broker
    from postroom.telemetry import Hook

GRACE = 1.0
"""Seconds beyond the broker's timeout that a stopping relay waits for what is in flight."""


@dataclass(slots=True)
class Report:
    """What a relay did."""

    sent: int = 0
    retried: int = 0
    dead: int = 0
    duplicates: int = 0
    conflicts: int = 0

    def count(self, event: Event) -> None:
        """A hook that counts."""
        if not isinstance(event, Settled):
            return
        match event.outcome:
            case Outcome.SUCCESS:
                self.sent += len(event.messages)
            case Outcome.RETRY:
                self.retried += len(event.messages)
            case Outcome.DEAD:
                self.dead += len(event.messages)
            case Outcome.DEDUP_HIT:
                self.duplicates += len(event.messages)
            case Outcome.CONFLICT:
                self.conflicts += len(event.messages)
            case _:
                pass


class Part(Protocol):
    """What works until it is cancelled."""

    async def run(self) -> None:
        """Work."""
        ...


@dataclass(slots=True)
class Parts:
    """A running relay's parts."""

    office: Office
    collector: Collector
    settler: Settler
    heart: Heart
    couriers: list[Courier]
    queues: list[Batches]
    workers: Workers
    database: Database
    lines: list[Any] = field(default_factory=list)


class Relay:
    """Delivers what is in the outbox. Any number of relays may run on one database.

    ``database`` and ``broker`` are URLs, or a broker itself; both and all other options default to the settings.
    """

    def __init__(
        self,
        database: str | None = None,
        broker: str | Broker | None = None,
        *,
        worker: str | None = None,
        queue: str = DEFAULT_QUEUE,
        hook: Hook = silent,
        **options: Any,
    ) -> None:
        url = broker if isinstance(broker, str) else None
        self._settings = Settings.load(database=database, broker=url)
        self.report = Report()
        self._hook = all_of(self.report.count, hook)
        self._given_broker = None if isinstance(broker, str) else broker
        self._queue = queue
        self.worker = worker or f"{socket.gethostname()}:{os.getpid()}:{id(self):x}"
        self._options = options_of(self._settings, self.worker, **options)
        self._stop_asked = False
        self._office: Office | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Deliver until `stop` is called; then finish or give back what is in flight."""
        async with self._parts() as parts, self._at_work(parts):
            await parts.collector.run()

    async def run_once(self) -> Report:
        """Deliver what could be sent now, and return; what failed is due again later."""
        async with self._parts() as parts:
            await parts.heart.beat()
            async with self._at_work(parts):
                while await parts.collector.collect(everything=True):
                    await parts.office.flight.wait_until_empty()
        return self.report

    def stop(self) -> None:
        """Claim no more; `run` ends when what is in flight is done or given back. Safe from any thread."""
        self._stop_asked = True
        self._signal(lambda office: (office.stopping.set(), office.wake.set()))

    def wake(self) -> None:
        """Say that something was committed, to have it sent at once. Safe from any thread."""
        self._signal(lambda office: office.wake.set())

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.run(), name="postroom-relay")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        task = self._task
        if task is None:
            return
        self.stop()
        await task

    def _signal(self, action: Any) -> None:
        if self._office is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(action, self._office)

    @asynccontextmanager
    async def _parts(self) -> AsyncIterator[Parts]:
        store = open_async_store(self._settings)
        broker = self._given_broker or open_broker(self._settings, self._options)
        database = Database(store, self._hook)
        lines = [database.line() for _ in range(3)]
        office = Office(
            self._options, broker, deliveries(store.names, self._queue, Order(self._settings.order)), self._hook
        )
        workers = Workers(store.names, self._queue)
        settler = Settler(office, lines[1])
        queues: list[Batches] = [asyncio.Queue() for _ in range(1 + self._options.concurrency)]
        couriers = [Courier(office, queues[0]) for _ in range(self._options.concurrency)]
        couriers += [Courier(office, queue) for queue in queues[1:]]
        collector = Collector(office, lines[0], settler, queues[0], queues[1:])
        heart = Heart(office, lines[2], workers)
        self._office, self._loop = office, asyncio.get_running_loop()
        if self._stop_asked:
            office.stopping.set()
        try:
            yield Parts(office, collector, settler, heart, couriers, queues, workers, database, lines)
        finally:
            self._office = None
            for line in lines:
                await line.close()
            await broker.close()
            await store.close()

    @asynccontextmanager
    async def _at_work(self, parts: Parts) -> AsyncIterator[None]:
        """Couriers, settler and heart at work; afterwards nothing is left in flight, and no lane held."""
        self._hook(Lifecycle(self.worker, "started"))
        async with asyncio.TaskGroup() as group:
            workers: tuple[Part, ...] = (*parts.couriers, parts.settler, parts.heart)
            tasks = [group.create_task(worker.run()) for worker in workers]
            try:
                yield
            finally:
                await self._land(parts)
                for task in tasks:
                    task.cancel()
        await self._leave(parts)
        self._hook(Lifecycle(self.worker, "stopped"))

    async def _land(self, parts: Parts) -> None:
        """Give back what no courier has begun with, and wait for the rest."""
        for queue in parts.queues:
            while not queue.empty():
                _, batch = queue.get_nowait()
                parts.office.settle([GivenBack(one) for one in batch])
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.broker_timeout + GRACE):
                await parts.office.flight.wait_until_empty()

    async def _leave(self, parts: Parts) -> None:
        """Free the lanes for others; where the database is away, their leases end by themselves."""
        lanes = [one.lane for one in parts.office.flight.lanes.values()]
        with suppress(TimeoutError, Outage):
            async with asyncio.timeout(GRACE):
                await parts.lines[0].attempt(parts.office.deliveries.release(lanes))
                await parts.lines[0].attempt(parts.workers.leave(self.worker))
