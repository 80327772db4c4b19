"""Relay: claim → publish → settle, for ever."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from postroom import wakeup
from postroom.compose import as_broker, open_relay_store
from postroom.errors import PostroomError
from postroom.relay.collectors import Lanes, Rows
from postroom.relay.courier import GRACE, Batches, Courier
from postroom.relay.heart import Heart
from postroom.relay.lines import Database, Line, Outage
from postroom.relay.listener import Listener
from postroom.relay.office import Office
from postroom.relay.options import options_of
from postroom.relay.settler import Settler
from postroom.rules.lifecycle import Outcome
from postroom.settings import Settings
from postroom.store.databases import deliveries
from postroom.store.leases import Order
from postroom.store.names import channel
from postroom.store.operations import DEFAULT_QUEUE
from postroom.store.workers import Workers
from postroom.telemetry import Event, Expired, Lifecycle, Settled, all_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from types import TracebackType

    from postroom.brokers.function import Function
    from postroom.brokers.port import Broker
    from postroom.relay.options import OnDead
    from postroom.rules.backoff import RetryPolicy
    from postroom.rules.failures import Classifier
    from postroom.store.names import Names
    from postroom.store.stores import Lines
    from postroom.telemetry import Hook


@dataclass(slots=True)
class Report:
    """What a relay did."""

    sent: int = 0
    retried: int = 0
    dead: int = 0
    duplicates: int = 0
    expired: int = 0
    conflicts: int = 0

    def count(self, event: Event) -> None:
        """A hook that counts."""
        if isinstance(event, Expired):
            self.expired += len(event.messages)
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


class Relay:
    """Delivers what is in the outbox. Any number of relays may run on one database.

    ``database`` is a URL; ``broker`` is a URL, a broker, or a function that takes a message (or a list of them, called
    ``messages``). Both, and all other settings, which may be given by their names, default to the settings in force.
    ``worker`` names this relay among the others. ``policy`` takes the place of ``backoff_sec`` and ``max_attempts``;
    ``classifier`` says which failures are permanent; ``on_dead(message, code, text)`` is told of dead letters;
    ``hook`` of everything (`postroom.telemetry`). Raises `InvalidSetting`.
    """

    def __init__(
        self,
        database: str | None = None,
        broker: str | Broker | Function | None = None,
        *,
        worker: str | None = None,
        queue: str = DEFAULT_QUEUE,
        policy: RetryPolicy | None = None,
        classifier: Classifier | None = None,
        on_dead: OnDead | None = None,
        hook: Hook | None = None,
        **settings: Any,
    ) -> None:
        url = broker if isinstance(broker, str) else None
        self._settings = Settings.load(database=database, broker=url, **settings)
        self.worker = worker or f"{socket.gethostname()}:{os.getpid()}:{id(self):x}"
        self._options = options_of(self._settings, self.worker, policy, classifier, on_dead)
        self._broker = broker
        self._queue = queue
        self._user_hook = hook
        self.report = Report()
        self._stop_asked = False
        self._running: tuple[Office, asyncio.AbstractEventLoop] | None = None
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Deliver until `stop` is called; then finish or give back what is in flight.

        Raises `DatabaseUnreachable` or `SchemaError` if it cannot start; an outage later on does not end it.
        """
        async with self._shift() as shift:
            await shift.work()

    async def run_once(self) -> Report:
        """Deliver what could be sent now, and return; what failed is due again later, unless its pause is zero."""
        async with self._shift() as shift:
            await shift.work_once()
        return self.report

    async def run_until_empty(self) -> Report:
        """Deliver until nothing is left that could be sent now, by this or by another relay."""
        async with self._shift() as shift:
            await shift.work_until_empty()
        return self.report

    def stop(self) -> None:
        """Claim no more; `run` ends when what is in flight is done or given back. Safe from any thread."""
        self._stop_asked = True
        self._signal(Office.stop)

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop, and has not ended yet."""
        return self._stop_asked

    def wake(self) -> None:
        """Say that something was committed, to have it sent at once. Safe from any thread.

        An outbox of the same process does it by itself.
        """
        self._signal(Office.wake)

    async def __aenter__(self) -> Self:
        started = asyncio.Event()
        self._task = asyncio.create_task(self._run_in_background(started), name="postroom-relay")
        starting = asyncio.create_task(started.wait())
        await asyncio.wait({self._task, starting}, return_when=asyncio.FIRST_COMPLETED)
        starting.cancel()
        if self._task.done():
            self._task.result()  # raises why it could not start
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self.stop()
            await self._task

    async def _run_in_background(self, started: asyncio.Event) -> None:
        async with self._shift() as shift:
            started.set()
            await shift.work()

    def _signal(self, action: Callable[[Office], None]) -> None:
        if self._running is not None:
            office, loop = self._running
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(action, office)

    @asynccontextmanager
    async def _shift(self) -> AsyncIterator[Shift]:
        """Everything that a run needs, opened and closed again."""
        self.report = Report()
        hook = all_of(self.report.count, self._user_hook)
        async with AsyncExitStack() as stack:
            store = await open_relay_store(self._settings)
            stack.push_async_callback(store.close)
            broker, is_ours = as_broker(self._broker, self._settings, self._options.classifier)
            if is_ours:
                stack.push_async_callback(broker.close)
            operations = deliveries(store.names, self._queue, Order(self._settings.order))
            office = Office(self._options, broker, operations, hook)
            shift = Shift(office, store, Workers(store.names, self._queue), self._listener(office, store.names))
            stack.push_async_callback(shift.close)
            self._running = office, asyncio.get_running_loop()
            stack.callback(self._off_duty)
            wakeup.listen(self.wake)
            stack.callback(wakeup.ignore, self.wake)
            if self._stop_asked:
                office.stop()
            try:
                yield shift
            except BaseExceptionGroup as group:  # of the parts: one reason ends them all
                errors, others = group.split(PostroomError)
                if others is not None or errors is None:
                    raise
                raise errors.exceptions[0] from None

    def _listener(self, office: Office, names: Names) -> list[Listener]:
        if not self._settings.notify or self._settings.database is None:
            return []
        return [Listener(self._settings.database, channel(names, self._queue), office.wake)]

    def _off_duty(self) -> None:
        self._running = None
        self._stop_asked = False


class Shift:
    """A relay's parts at work, from the first claim to the last settlement."""

    def __init__(self, office: Office, store: Lines, workers: Workers, listeners: Sequence[Part]) -> None:
        database = Database(store, office.hook)
        self._office = office
        self._listeners = listeners
        self._lines: list[Line] = [database.line() for _ in range(4)]
        claims, reads, settlements, beats = self._lines
        self._settler = Settler(office, settlements)
        self._heart = Heart(office, beats, workers)
        concurrency = office.options.concurrency
        self._queues: list[Batches] = [asyncio.Queue() for _ in range(1 + concurrency)]
        unordered, *ordered = self._queues
        self._couriers = [Courier(office, unordered) for _ in range(concurrency)]
        self._couriers += [Courier(office, queue) for queue in ordered]
        self._rows = Rows(office, claims, self._settler, unordered)
        self._lanes = Lanes(office, reads, self._settler, ordered)

    async def work(self) -> None:
        """Deliver until the relay stops."""
        async with self._at_work(), asyncio.TaskGroup() as group:
            group.create_task(self._rows.run())
            group.create_task(self._lanes.run())

    async def work_once(self) -> None:
        """Deliver what could be sent now."""
        office = self._office
        async with self._at_work():
            while not office.stopping.is_set():
                found = await self._rows.collect(everything=True) + await self._lanes.collect(everything=True)
                await office.flight.wait_until_empty()
                if not found or office.circuit.down is not None:
                    return

    async def work_until_empty(self) -> None:
        """Deliver until nothing is left that could be sent."""
        async with self._at_work(), asyncio.TaskGroup() as group:
            group.create_task(self._rows.run())
            group.create_task(self._lanes.run())
            await self._empty()
            self._office.stop()

    async def close(self) -> None:
        """Close the connections."""
        for line in self._lines:
            await line.close()

    async def _empty(self) -> None:
        """Return when nothing is left that could be sent, or the relay stops."""
        office, line = self._office, self._lines[3]
        while not office.stopping.is_set():
            await office.flight.wait_until_empty()
            if not await line.run(office.deliveries.anything_to_send):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(office.options.poll_interval, 0.1)):
                    await office.stopping.wait()

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        """Couriers, settler and heart at work; afterwards nothing is left in flight, and no lane held."""
        office = self._office
        with suppress(Outage):
            await self._heart.beat()
        office.hook(Lifecycle(office.options.worker, "started"))
        async with asyncio.TaskGroup() as group:
            parts: tuple[Part, ...] = (*self._couriers, self._settler, self._heart, *self._listeners)
            tasks = [group.create_task(part.run()) for part in parts]
            try:
                yield
            finally:
                await self._land()
                with suppress(TimeoutError):
                    async with asyncio.timeout(GRACE):
                        await self._heart.rest()
                for task in tasks:
                    task.cancel()
        with suppress(TimeoutError, Outage):  # where the database is away, leases end by themselves
            async with asyncio.timeout(GRACE):
                await self._heart.leave()
        office.hook(Lifecycle(office.options.worker, "stopped"))

    async def _land(self) -> None:
        """Give back what no courier has begun with, and wait for the rest."""
        office = self._office
        for queue in self._queues:
            while not queue.empty():
                office.give_back(queue.get_nowait().claimed)
        with suppress(TimeoutError):
            async with asyncio.timeout(office.options.broker_timeout + 2 * GRACE):
                await office.flight.wait_until_empty()
                await self._settler.wait_until_written()
