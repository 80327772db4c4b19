"""A shift: the relay's parts at work, from the first claim to the last settlement."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from postroom.errors import PostroomError
from postroom.relay.collectors import Collector, HelpingRows, Lanes, Rows
from postroom.relay.courier import GRACE, Batches, Courier
from postroom.relay.heart import Heart
from postroom.relay.lines import Database, Line, Outage
from postroom.relay.settler import Settler
from postroom.telemetry import Lifecycle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from postroom.relay.office import Office
    from postroom.store.stores import Lines
    from postroom.store.workers import Workers


LEAVING = 5.0
"""Seconds for the heart to finish its beat, and again to free what is held."""


class Part(Protocol):
    """What works until it is cancelled."""

    async def run(self) -> None:
        """Work."""
        ...


class Shift:
    """A relay's parts at work, from the first claim to the last settlement."""

    def __init__(self, office: Office, store: Lines, workers: Workers, listeners: Sequence[Part]) -> None:
        database = Database(store, office.hook)
        self._office = office
        self._listeners = listeners
        self._lines: list[Line] = [database.line() for _ in range(4 + Lanes.READERS)]
        settlements, beats, claims, more_claims, *reads = self._lines
        self._questions = beats
        self._settler = Settler(office, settlements)
        self._heart = Heart(office, beats, workers)
        concurrency = office.options.concurrency
        self._queues: list[Batches] = [asyncio.Queue() for _ in range(1 + concurrency)]
        unordered, *ordered = self._queues
        self._couriers = [Courier(office, unordered) for _ in range(concurrency)]
        self._couriers += [Courier(office, queue) for queue in ordered]
        self._claimers = [
            Rows(office, claims, self._settler, unordered),
            HelpingRows(office, more_claims, self._settler, unordered),
        ]
        self._collectors: list[Collector] = [*self._claimers]
        self._collectors += [Lanes(office, line, self._settler, ordered, n) for n, line in enumerate(reads)]

    async def work(self) -> None:
        """Deliver until the relay stops."""
        async with self._at_work():
            await self._while_wanted(*(collector.run() for collector in self._collectors))

    async def work_once(self) -> None:
        """Deliver what could be sent now."""
        async with self._at_work():
            await self._while_wanted(self._once())

    async def work_until_empty(self) -> None:
        """Deliver until nothing is left that could be sent."""
        async with self._at_work():
            await self._while_wanted(*(collector.run() for collector in self._collectors), self._stop_when_empty())

    async def close(self) -> None:
        """Close the connections."""
        for line in self._lines:
            await line.close()

    async def _while_wanted(self, *work: Coroutine[Any, Any, None]) -> None:
        """Do this until it ends. When the relay stops it ends soon, unless the database is away: then it is ended."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
            watch = group.create_task(self._end_when_overdue(tasks))
            await asyncio.wait(tasks)
            watch.cancel()

    async def _end_when_overdue(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        await self._office.stopping.wait()
        await asyncio.sleep(self._patience)
        for task in tasks:
            task.cancel()

    @property
    def _patience(self) -> float:
        """Seconds for what is in flight to be sent and settled."""
        return self._office.options.broker_timeout + 2 * GRACE

    async def _once(self) -> None:
        office = self._office
        while not office.stopping.is_set():
            found = 0
            for collector in self._collectors:
                found += await collector.collect(everything=True)
            await office.flight.wait_until_empty()
            if not found or office.circuit.down is not None:
                return

    async def _stop_when_empty(self) -> None:
        await self._empty()
        self._office.stop()

    async def _empty(self) -> None:
        """Return when nothing is left that could be sent, or the relay stops."""
        office, line = self._office, self._questions
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
        await asyncio.gather(*(line.answers() for line in self._lines))  # all connections are open before it starts
        with suppress(Outage):
            await self._heart.beat()
        office.hook(Lifecycle(office.options.worker, "started"))
        try:
            async with asyncio.TaskGroup() as group:
                parts: tuple[Part, ...] = (*self._couriers, self._settler, self._heart, *self._listeners)
                tasks = [group.create_task(part.run()) for part in parts]
                try:
                    yield
                finally:
                    await self._land()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LEAVING):
                            await self._heart.rest()
                    for task in tasks:
                        task.cancel()
        finally:
            with suppress(TimeoutError, PostroomError):  # where the database is away, leases end by themselves
                async with asyncio.timeout(LEAVING):
                    await self._heart.leave([token for claimer in self._claimers for token in claimer.unknown])
            office.hook(Lifecycle(office.options.worker, "stopped"))

    async def _land(self) -> None:
        """Give back what no courier has begun with, and wait for the rest."""
        office = self._office
        for queue in self._queues:
            while not queue.empty():
                office.give_back(queue.get_nowait().claimed)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await office.flight.wait_until_empty()
                await self._settler.wait_until_written()
