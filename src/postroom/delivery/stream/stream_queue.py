"""One queue's part of a term: what was read from the stream for it, until it is on record."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.delivery.attempt import GRACE, Attempt, Attempts, Batch
from postroom.delivery.failed_keys import NO_READ, FailedKeys
from postroom.delivery.held_lanes import HeldLanes
from postroom.delivery.in_flight import InFlight
from postroom.delivery.pending import PendingSettlements
from postroom.delivery.stream.stream_settler import StreamSettler
from postroom.delivery.verdicts import Verdicts
from postroom.rules.ordering import NO_LANE
from postroom.store.ledger.message_outcomes import is_ledgered
from postroom.store.outbox.leases import GivenBack
from postroom.store.sql.rows import Unreadable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.attempt import Batches
    from postroom.delivery.queue_worker import QueueWorker
    from postroom.delivery.stream.recording import Recording
    from postroom.store.outbox.leases import Claimed

FULL = 0.5
"""Seconds that one queue may keep the stream from being read for the others; then its messages go to the table."""


class StreamInFlight(InFlight):
    """What was read from the stream and is not yet on record, all of it under the lease on the stream."""

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        super().__init__(HeldLanes(), most_messages, most_bytes)
        self.deadline = 0.0

    def _holds(self, lease: tuple[int, int], now: float) -> bool:
        del lease
        return self.deadline > now

    def may_be_renewed(self, one: Claimed) -> bool:
        """Always: a heartbeat that is late may still find the lease. The record tells, or ends the term.

        Nothing that was read may be dropped while the term goes on: nobody would read it again.
        """
        del one
        return True


class StreamQueue:
    """Sends what the stream has for one queue, by the destination and the rules of that queue's worker."""

    def __init__(self, worker: QueueWorker, recording: Recording, owner: str, stopping: asyncio.Event) -> None:
        queue = worker.queue
        self._queue = queue
        self._health = worker.health
        self.in_flight = StreamInFlight(queue.most_messages, queue.most_bytes)
        self.failed_keys = FailedKeys()
        self._pending = PendingSettlements(self.in_flight, queue.hook, queue.name)
        self.settler = StreamSettler(
            queue=queue,
            worker=owner,
            store=worker.store,
            connection=recording.connection,
            pending=self._pending,
            in_flight=self.in_flight,
            failed_keys=self.failed_keys,
            continuity=worker.continuity,
            signals=worker.signals,
            moved_to=worker.moved_to,
            recording=recording,
        )
        attempt = Attempt(
            queue=queue,
            store=worker.store,
            connection=recording.connection,
            in_flight=self.in_flight,
            failed_keys=self.failed_keys,
            health=worker.health,
            verdicts=Verdicts(queue, worker.health),
            pending=self._pending,
            stopping=stopping,
        )
        self._unordered: Batches = asyncio.Queue()
        self._ordered: list[Batches] = [asyncio.Queue() for _ in range(queue.concurrency)]
        lines = [*[self._unordered] * queue.concurrency, *self._ordered]
        self._attempts = [Attempts(attempt, batches) for batches in lines]

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    @property
    def is_closed(self) -> bool:
        """Whether nothing of it can be sent now."""
        return self._health.circuit.down is not None

    def bound_for_table(self, claimed: Sequence[Claimed]) -> set[int]:
        """Positions of which only the table can tell what becomes: they may expire, be duplicates, or be unreadable."""
        if self._queue.dedup:
            return {one.position for one in claimed}
        return {
            one.position
            for one in claimed
            if (message := one.message).expires_at is not None
            or type(message) is Unreadable
            or (message.headers and is_ledgered(message))
        }

    async def wait_for_room(self, messages: int, *, alone: bool) -> bool:
        """Wait until that many fit; False if they do not soon, and other queues wait too."""
        if not alone:
            with suppress(TimeoutError):
                async with asyncio.timeout(FULL):
                    await self.in_flight.wait_for_room(messages)
            return not len(self.in_flight) or self.in_flight.room >= messages
        await self.in_flight.wait_for_room(messages)
        return True

    def take(self, claimed: Sequence[Claimed]) -> None:
        """Count messages as in flight."""
        self.in_flight.take(claimed, 0.0)

    def park(self, claimed: Sequence[Claimed]) -> None:
        """Have messages that are in flight recorded as deliveries, unsent. What follows on their keys waits."""
        for one in claimed:
            if one.message.key is not None:
                self.failed_keys.fail(one.message.key, one.position)
        self._pending.add([GivenBack(one) for one in claimed])

    def send(self, read: int, claimed: Sequence[Claimed]) -> None:
        """Have messages that are in flight attempted: those of one key one after another."""
        shares: defaultdict[int, list[Claimed]] = defaultdict(list)
        lines = len(self._ordered)
        for one in claimed:
            shares[NO_LANE if one.lane == NO_LANE else one.lane % lines].append(one)
        for share, batch in shares.items():
            if share == NO_LANE:
                self._unordered.put_nowait(Batch(NO_READ, batch))
            else:
                self.failed_keys.handed_over(read)
                self._ordered[share].put_nowait(Batch(read, batch))

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.settler.run())
            for attempts in self._attempts:
                group.create_task(attempts.run())

    async def finish(self) -> None:
        """Drop what no attempt has begun with: whoever reads next, reads it again. Wait for the rest to be recorded."""
        for batches in (self._unordered, *self._ordered):
            while not batches.empty():
                batch = batches.get_nowait()
                self.in_flight.land(batch.claimed)
                self.failed_keys.finished(batch.read)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._queue.timeout + 2 * GRACE):
                await self.in_flight.wait_until_empty()
                await self.settler.wait_until_written()
