"""A shift: the parts at work for one queue and its broker, from the first claim to the last settlement."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from postroom.delivery.claimer import Collector, HelpingRows, Rows
from postroom.delivery.freeing import Freeing
from postroom.delivery.heartbeat import Heart
from postroom.delivery.lane_reader import Lanes
from postroom.delivery.publisher import GRACE, Batches, Courier
from postroom.delivery.settler import Settler
from postroom.errors import PostroomError
from postroom.store.connections.reconnecting import ConnectionReplaced, Outage
from postroom.store.outbox.holding import Holding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.queue_state import Office
    from postroom.store.connections.reconnecting import ShiftLines
    from postroom.store.outbox.workers import Workers


_REPLACEMENTS = 5
"""How many times one may come in the way of what a single run collects."""
LEAVING = 5.0
"""Seconds for the heart to finish its beat, and again to free what is held."""


class Part(Protocol):
    """What works until it is cancelled."""

    async def run(self) -> None:
        """Work."""
        ...


class Shift:
    """One queue's parts. They share an office, and lines to the database."""

    def __init__(self, office: Office, lines: ShiftLines, workers: Workers) -> None:
        self.office = office
        office.questions = lines.settlements
        self._questions = lines.beats
        self._settler = Settler(office, lines.settlements)
        self._heart = Heart(office, lines.beats, workers)
        concurrency = office.options.concurrency
        self._queues: list[Batches] = [asyncio.Queue() for _ in range(1 + concurrency)]
        unordered, *ordered = self._queues
        couriers = [Courier(office, unordered) for _ in range(concurrency)]
        couriers += [Courier(office, queue) for queue in ordered]
        claims, more_claims = lines.claims
        self._claimers = [
            Rows(office, claims, self._settler, unordered),
            HelpingRows(office, more_claims, self._settler, unordered),
        ]
        self.collectors: list[Collector] = [*self._claimers]
        self.collectors += [Lanes(office, line, self._settler, ordered, n) for n, line in enumerate(lines.reads)]
        self._freeing = Freeing(office, more_claims, Holding(office.deliveries.names, office.deliveries.queue))
        self.parts: Sequence[Part] = (*couriers, self._settler, self._heart, self._freeing)
        """What must be at work before anything is collected."""

    @property
    def patience(self) -> float:
        """Seconds for what is in flight to be sent and settled."""
        return self.office.options.broker_timeout + 2 * GRACE

    async def begin(self) -> None:
        """Say that this relay is alive, and take lanes."""
        with suppress(Outage):
            await self._freeing.look()
            await self._heart.beat()

    async def collect_once(self) -> None:
        """Deliver what could be sent now."""
        office = self.office
        while not office.stopping.is_set():
            found = 0
            for collector in self.collectors:
                found += await _collected(collector)
            await office.flight.wait_until_empty()
            found += await self._freeing.free()
            if not found or office.circuit.down is not None:
                return

    async def anything_to_send(self) -> bool:
        """Whether anything is left that could be sent, now that nothing is in flight. Waits for that first."""
        await self.office.flight.wait_until_empty()
        return await self._questions.run(self.office.deliveries.anything_to_send)

    async def land(self) -> None:
        """Give back what no courier has begun with, and wait for the rest; afterwards no lane is taken any more."""
        office = self.office
        for queue in self._queues:
            while not queue.empty():
                office.give_back(queue.get_nowait().claimed)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.patience):
                await office.flight.wait_until_empty()
                await self._settler.wait_until_written()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING):
                await self._heart.rest()

    async def leave(self) -> None:
        """Free what is held. Where the database is away, leases end by themselves."""
        with suppress(TimeoutError, PostroomError):
            async with asyncio.timeout(LEAVING):
                await self._heart.leave([token for claimer in self._claimers for token in claimer.unknown])


async def _collected(collector: Collector) -> int:
    """Collect; once more where a connection was replaced on the way, because an operation of another one failed."""
    for _ in range(_REPLACEMENTS):
        with suppress(ConnectionReplaced):
            return await collector.collect(everything=True)
    return await collector.collect(everything=True)
