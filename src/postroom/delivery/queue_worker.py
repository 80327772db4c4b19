"""A queue worker: the parts at work for one queue, from the first claim to the last settlement."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from postroom.delivery.admission import Admission
from postroom.delivery.attempt import GRACE, Attempt, Attempts
from postroom.delivery.circuit import Circuit
from postroom.delivery.continuity import Continuity
from postroom.delivery.destination import LongRunning
from postroom.delivery.failed_keys import FailedKeys
from postroom.delivery.freeing import Freeing
from postroom.delivery.held_lanes import HeldLanes
from postroom.delivery.in_flight import InFlight
from postroom.delivery.landing import QueueLanding
from postroom.delivery.lane_reader import LaneReader
from postroom.delivery.lease_keeper import LeaseKeeper
from postroom.delivery.pending import PendingSettlements
from postroom.delivery.row_claimer import RowClaimer
from postroom.delivery.settler import Settler
from postroom.delivery.signals import Signals
from postroom.delivery.suspects import Suspects
from postroom.delivery.targets import Targets
from postroom.delivery.verdicts import Health, Verdicts
from postroom.delivery.work_source import Handover, Poller
from postroom.errors import PostroomError
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.held_targets import HeldTargets
from postroom.telemetry.events import Reachability, TargetChanged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.delivery.attempt import Batches
    from postroom.delivery.queue import EngineOptions, Queue
    from postroom.delivery.work_source import WorkSource
    from postroom.store.connections.shared import ConnectionSet
    from postroom.store.outbox.queue_store import QueueStore
    from postroom.store.outbox.workers import Workers

LEAVING = 5.0
"""Seconds to release what is held."""


class Part(Protocol):
    """Something that works until it is cancelled."""

    async def run(self) -> None:
        """Work."""
        ...


class QueueWorker:
    """Puts the parts of one queue together, and starts and ends their work."""

    def __init__(
        self,
        queue: Queue,
        options: EngineOptions,
        store: QueueStore,
        workers: Workers,
        connections: ConnectionSet,
        stopping: asyncio.Event,
        moved_to: Callable[[str], None],
    ) -> None:
        self.queue = queue
        self._long_running = queue.destination if isinstance(queue.destination, LongRunning) else None
        if self._long_running is not None and queue.keyed:
            raise ValueError(f"{queue.name}: a destination that has deliveries in hand cannot keep keys in order")
        self.store = store
        self.moved_to = moved_to
        self._connections = connections
        self._stopping = stopping
        self.signals = Signals()
        self.in_flight = InFlight(HeldLanes(), queue.most_messages, queue.most_bytes)
        self.pending = PendingSettlements(self.in_flight, queue.hook, queue.name)
        self._failed_keys = FailedKeys()
        self.health = _health(queue, options)
        self.continuity = Continuity(store, self.in_flight, self.pending)
        self.settler = self._settler(options)
        self.lease_keeper = self._lease_keeper(options, workers)
        self.attempt = self._attempt()
        self._freeing = Freeing(
            connections.claims[1], HeldTargets(store.names, queue.name), self.health.targets, self.signals
        )
        self.unordered: Batches = asyncio.Queue()
        self.suspected: Batches = asyncio.Queue()
        self.ordered: list[Batches] = [asyncio.Queue() for _ in range(queue.concurrency)] if queue.keyed else []
        """One for each share of the lanes; batches of one are attempted one after another."""
        self._admission = Admission(self.in_flight, self.health.circuit, queue.batch, stopping)
        handover = self._handover()
        # A destination that has deliveries in hand is the bottleneck. And while one claims, nothing is claimed beside a
        # suspect: what is would count one more claim when the suspect kills this process.
        claimers = (False,) if self._long_running is not None else (False, True)
        self._row_claimers = [self._row_claimer(options, handover, helps=helps) for helps in claimers]
        self._lane_readers = [self._lane_reader(options, handover, n) for n in range(LaneReader.READERS) if queue.keyed]
        sources: list[WorkSource] = [*self._row_claimers, *self._lane_readers]
        self.pollers = [self._poller(source, options) for source in sources]

    def _settler(self, options: EngineOptions) -> Settler:
        return Settler(
            queue=self.queue,
            worker=options.worker,
            store=self.store,
            connection=self._connections.settlements,
            pending=self.pending,
            in_flight=self.in_flight,
            failed_keys=self._failed_keys,
            continuity=self.continuity,
            signals=self.signals,
            moved_to=self.moved_to,
        )

    def _lease_keeper(self, options: EngineOptions, workers: Workers) -> LeaseKeeper:
        return LeaseKeeper(
            queue=self.queue,
            options=options,
            store=self.store,
            workers=workers,
            connection=self._connections.heartbeats,
            in_flight=self.in_flight,
            health=self.health,
            pending=self.pending,
            signals=self.signals,
        )

    def _attempt(self) -> Attempt:
        return Attempt(
            queue=self.queue,
            store=self.store,
            connection=self._connections.settlements,
            in_flight=self.in_flight,
            failed_keys=self._failed_keys,
            health=self.health,
            verdicts=Verdicts(self.queue, self.health),
            pending=self.pending,
            stopping=self._stopping,
        )

    def _handover(self) -> Handover:
        return Handover(
            queue=self.queue,
            store=self.store,
            in_flight=self.in_flight,
            admission=self._admission,
            signals=self.signals,
            pending=self.pending,
            settler=self.settler,
        )

    def _row_claimer(self, options: EngineOptions, handover: Handover, *, helps: bool) -> RowClaimer:
        return RowClaimer(
            queue=self.queue,
            options=options,
            store=self.store,
            connection=self._connections.claims[helps],
            circuit=self.health.circuit,
            signals=self.signals,
            handover=handover,
            suspects=self.health.suspects,
            batches=self.unordered,
            suspected=self.suspected,
            helps=helps,
        )

    def _lane_reader(self, options: EngineOptions, handover: Handover, number: int) -> LaneReader:
        return LaneReader(
            queue=self.queue,
            options=options,
            store=self.store,
            connection=self._connections.reads[number],
            continuity=self.continuity,
            in_flight=self.in_flight,
            failed_keys=self._failed_keys,
            circuit=self.health.circuit,
            pending=self.pending,
            handover=handover,
            batches=self.ordered,
            reader=number,
        )

    def _poller(self, source: WorkSource, options: EngineOptions) -> Poller:
        return Poller(
            source=source,
            admission=self._admission,
            circuit=self.health.circuit,
            targets=self.health.targets,
            signals=self.signals,
            poll_interval=options.poll_interval,
            stopping=self._stopping,
        )

    @property
    def parts(self) -> Sequence[Part]:
        """What must be at work before anything is collected."""
        unordered = [Attempts(self.attempt, self.unordered) for _ in range(self.queue.concurrency)]
        suspected = [Attempts(self.attempt, self.suspected) for _ in range(max(1, self.queue.concurrency // 2))]
        ordered = [Attempts(self.attempt, batches) for batches in self.ordered]
        return [*unordered, *suspected, *ordered, self.settler, self._freeing]

    @property
    def patience(self) -> float:
        """Seconds for what is in flight to be delivered and settled."""
        longest = self.queue.timeout if self._long_running is None else self._long_running.patience
        return longest + 2 * GRACE

    async def begin(self) -> None:
        """Learn which topics wait, say that this worker is alive, and take lanes."""
        if self._long_running is not None:
            self._long_running.begin(QueueLanding(self.attempt, self.in_flight, self.signals))
        with suppress(Outage):
            await self._freeing.look()
            await self.lease_keeper.beat()

    async def collect_once(self) -> None:
        """Deliver what could be sent now. Raises `Outage`."""
        while not self._stopping.is_set():
            found = 0
            for poller in self.pollers:
                found += await poller.collect_all()
            await self.in_flight.wait_until_empty()
            found += await self._freeing.free()
            if not found or self.health.circuit.down is not None:
                return

    async def anything_to_send(self) -> bool:
        """Whether anything is left that could be sent. Waits first until nothing is in flight."""
        await self.in_flight.wait_until_empty()
        takes = self.in_flight.takes
        if await self._connections.heartbeats.run(self.store.anything_to_send):
            return True
        # What was claimed meanwhile is no longer free in the database, and may not have come here yet.
        return takes != self.in_flight.takes or any(claimer.unresolved for claimer in self._row_claimers)

    def moved_in(self) -> None:
        """Messages came into the queue at positions that may have been passed by."""
        self.signals.rows_behind()
        self.in_flight.lanes.read_all_again()
        self.signals.wake()

    def stop(self) -> None:
        """Claim no more."""
        self.in_flight.stop_waiting()
        self.signals.wake()
        if self._long_running is not None:
            self._long_running.stop()

    async def finish(self) -> None:
        """Give back what no attempt has begun with, and wait for the rest to be settled."""
        self._stopping.set()
        self.stop()
        for batches in (self.unordered, self.suspected, *self.ordered):
            while not batches.empty():
                self.pending.give_back(batches.get_nowait().claimed)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                await self.in_flight.wait_until_empty()
                await self.settler.wait_until_written()

    async def leave(self) -> None:
        """Release what is held. While the database is away, leases end by themselves."""
        unresolved = [token for claimer in self._row_claimers for token in claimer.unresolved]
        with suppress(TimeoutError, PostroomError):
            async with asyncio.timeout(LEAVING):
                await self.lease_keeper.release(unresolved)


def _health(queue: Queue, options: EngineOptions) -> Health:
    name, patience = queue.destination.name, 3 * queue.timeout + options.lane_lease
    return Health(
        Circuit(lambda down: queue.hook(Reachability(name, down is None, down or "", queue.name)), patience),
        Targets(
            lambda topic, down: queue.hook(TargetChanged(name, topic, down is None, down or "", queue.name)), patience
        ),
        Suspects(2 * queue.most_messages),  # from the table, and from the stream
    )
