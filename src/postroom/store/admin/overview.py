"""The overview: what an operator looks at first, at a cost that does not grow with the outbox.

Every statement reads the beginning of an index, and stops at a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.rules.bounded import BoundedCount
from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_QUEUE, is_saga_queue
from postroom.rules.ordering import Order
from postroom.store.admin.backlog import BacklogReader
from postroom.store.admin.status import StatusReader, Worker
from postroom.store.outbox.held_targets import HeldTarget, HeldTargets
from postroom.store.sql.dialect import text
from postroom.store.sql.skip_scan import SkipScan
from postroom.store.sql.states import found_by_key, holds_key, in_state
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from postroom.store.sql.names import Names

NONE = BoundedCount()
MOST = 10_000
"""Counts stop here."""
MOST_QUEUES = 200
"""Queues that are looked at, by name."""
FIRST = 200
"""Messages of a lane among which the oldest one that nothing holds back is looked for."""


@dataclass(frozen=True, slots=True)
class QueueOverview:
    """One queue: how much waits in it, and who works on it."""

    queue: str
    pending: BoundedCount = NONE
    """Due, or being sent."""
    waiting: BoundedCount = NONE
    """Scheduled, or waiting for their next attempt."""
    dead: BoundedCount = NONE
    held_keys: BoundedCount = NONE
    """Keys with a failed or, under `hold`, dead message, which holds back those behind it."""
    oldest_pending_seconds: float = 0.0
    """For how long the oldest message that nothing holds back has waited."""
    workers: int = 0
    """Relays and consumers alive."""
    workers_down: int = 0
    """Those of them that cannot reach their broker."""


@dataclass(frozen=True, slots=True)
class SagaOverview:
    """The instances of one saga that have not ended."""

    name: str
    open: BoundedCount
    """Those that are parked included."""
    parked: BoundedCount


@dataclass(frozen=True, slots=True)
class Overview:
    """What is unsent, and who works on it. Counts stop at a limit."""

    as_of: datetime
    queues: tuple[QueueOverview, ...]
    """Queues with unsent messages, or with a worker that is alive; by name, the first `MOST_QUEUES`."""
    workers: tuple[Worker, ...]
    targets: tuple[HeldTarget, ...]
    """Topics that took no messages when last tried, among the first messages that wait for a retry."""
    sagas: tuple[SagaOverview, ...]
    in_doubt: BoundedCount
    """Two-phase commits that are not settled."""
    in_doubt_oldest_seconds: float

    @property
    def pending(self) -> BoundedCount:
        """Messages that are due, or being sent, of all queues."""
        return BoundedCount.sum(queue.pending for queue in self.queues)

    @property
    def waiting(self) -> BoundedCount:
        """Messages that are scheduled, or wait for their next attempt, of all queues."""
        return BoundedCount.sum(queue.waiting for queue in self.queues)

    @property
    def dead(self) -> BoundedCount:
        """Dead letters of all queues."""
        return BoundedCount.sum(queue.dead for queue in self.queues)

    @property
    def held_keys(self) -> BoundedCount:
        """Keys of all queues that are held back."""
        return BoundedCount.sum(queue.held_keys for queue in self.queues)

    @property
    def oldest_pending_seconds(self) -> float:
        """For how long the oldest message that nothing holds back has waited, in any queue."""
        return max((queue.oldest_pending_seconds for queue in self.queues), default=0.0)

    @property
    def down(self) -> tuple[Worker, ...]:
        """Workers that cannot reach their broker; their `broker_down` says why."""
        return tuple(worker for worker in self.workers if worker.broker_down)


class OverviewReader(SkipScan):
    """Reads the overview. `order` is that of the relays: it says whether dead messages hold their key back."""

    def __init__(self, names: Names, order: Order = Order.HOLD, most: int = MOST) -> None:
        super().__init__(names)
        self._most = most
        self._holds_key = holds_key(order)
        self._backlog = BacklogReader(names, order, first=FIRST)

    def overview(self) -> Steps[Overview]:
        """The whole picture."""
        as_of = yield from self.clock()
        workers = yield from StatusReader(self.names).workers()
        queues: list[QueueOverview] = []
        sagas: list[SagaOverview] = []
        unsent = yield from self.first_queues()
        for queue in sorted({*unsent, *(worker.queue for worker in workers)})[:MOST_QUEUES]:
            counts = (yield from self._counts(queue)) if queue in unsent else dict.fromkeys(Stored, 0)
            queues.append((yield from self._queue(queue, counts, workers)))
            if is_saga_queue(queue) and any(counts.values()):
                sagas.append((yield from self._saga(queue)))
        return Overview(
            as_of,
            tuple(queues),
            workers,
            tuple((yield from HeldTargets(self.names).held_targets(self._most))),
            tuple(sagas),
            *(yield from self._in_doubt()),
        )

    def first_queues(self) -> Steps[list[str]]:
        """Queues with deliveries, by name: jumps through the primary key, once for each queue."""
        after = " UNION ALL ".join(
            f"SELECT queue FROM (SELECT queue FROM {self.delivery} WHERE {in_state(state)} AND queue > :after "
            f"ORDER BY queue LIMIT 1) s{int(state)}"
            for state in Stored
        )
        queues: list[str] = []
        while len(queues) < MOST_QUEUES:
            found = yield Query(f"SELECT min(queue) FROM ({after}) q", {"after": queues[-1] if queues else ""})
            if found.rows[0][0] is None:
                break
            queues.append(text(found.rows[0][0]))
        return queues

    def _counts(self, queue: str) -> Steps[dict[Stored, int]]:
        """How many deliveries are in each state; one more than the limit where there are more."""
        # In this order, they are read from the primary key, whatever the statistics say.
        each = " UNION ALL ".join(f"SELECT {int(state)}, count(*) FROM ({self._first(state)}) s" for state in Stored)
        found = yield Query(each, {"queue": queue})
        return {Stored(state): int(count) for state, count in found.rows}

    def _first(self, state: Stored) -> str:
        return (
            f"SELECT position FROM {self.delivery}{self.dialect.by_primary_key} WHERE {found_by_key(state)} "
            f"AND queue = :queue ORDER BY state, queue, lane, position LIMIT {self._most + 1}"
        )

    def _queue(self, queue: str, counts: Mapping[Stored, int], workers: tuple[Worker, ...]) -> Steps[QueueOverview]:
        alive = [worker for worker in workers if worker.queue == queue]
        failed = counts[Stored.RETRY] + counts[Stored.DEAD]
        return QueueOverview(
            queue,
            pending=BoundedCount.of(counts[Stored.READY], self._most),
            waiting=BoundedCount.of(counts[Stored.SCHEDULED] + counts[Stored.RETRY], self._most),
            dead=BoundedCount.of(counts[Stored.DEAD], self._most),
            held_keys=(yield from self._held_keys(queue)) if failed else NONE,
            oldest_pending_seconds=(yield from self._backlog.oldest(queue)) if any(counts.values()) else 0.0,
            workers=len(alive),
            workers_down=sum(1 for worker in alive if worker.broker_down),
        )

    def _held_keys(self, queue: str) -> Steps[BoundedCount]:
        found = yield Query(
            f"SELECT count(*), count(DISTINCT key_hash) FROM (SELECT key_hash FROM {self.delivery} "
            f"WHERE queue = :queue AND key_hash IS NOT NULL AND {self._holds_key} "
            f"ORDER BY queue, key_hash, position LIMIT {self._most + 1}) k",
            {"queue": queue},
        )
        [[rows, keys]] = found.rows
        return BoundedCount(min(int(keys), self._most), int(rows) > self._most)

    def _saga(self, queue: str) -> Steps[SagaOverview]:
        """Signals, which wait in the same queue, are no sagas."""
        saga = self.tables["saga"]
        each = " UNION ALL ".join(
            f"SELECT {int(state)}, count(*), "
            f"coalesce(sum((SELECT 1 FROM {saga} s WHERE s.position = d.position)), 0) FROM ({self._first(state)}) d"
            for state in Stored
        )
        found = yield Query(each, {"queue": queue})
        counts = {
            Stored(state): BoundedCount(min(int(sagas), self._most), int(rows) > self._most)
            for state, rows, sagas in found.rows
        }
        return SagaOverview(queue.removeprefix(SAGA_QUEUE), BoundedCount.sum(counts.values()), counts[Stored.DEAD])

    def _in_doubt(self) -> Steps[tuple[BoundedCount, float]]:
        found = yield Query(
            f"SELECT count(*), max({self.dialect.seconds_since('decided_at')}) FROM (SELECT decided_at "
            f"FROM {self.tables['twophase']} WHERE settled_at IS NULL ORDER BY id LIMIT {self._most + 1}) t"
        )
        [[count, oldest]] = found.rows
        return BoundedCount.of(int(count), self._most), round(max(0.0, float(oldest or 0.0)), 3)
