"""Count the backlog, for metrics: how much is unsent, and for how long, at a cost that does not grow with the outbox.

Counts stop at a limit, and the oldest message is looked for among the first of each lane.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_QUEUE
from postroom.rules.ordering import LANES, NO_LANE, Order
from postroom.store.sql.behind import is_behind
from postroom.store.sql.operations import Operations
from postroom.store.sql.states import comes_due, in_state, ready
from postroom.store.sql.steps import Query, Steps
from postroom.telemetry.events import Backlog

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

MOST = 250_000
"""Rows counted of one state. A count that reaches it means: this many, or more."""
FIRST = 1000
"""Rows of a lane among which the oldest one that nothing holds back is looked for."""

_KINDS = {
    Stored.READY: "pending",
    Stored.SCHEDULED: "waiting",
    Stored.RETRY: "waiting",
    Stored.DEAD: "dead",
}


class BacklogReader(Operations):
    """Counts over all queues. `order` is that of the relays: it says whether dead messages hold their key back."""

    def __init__(self, names: Names, order: Order = Order.HOLD, most: int = MOST, first: int = FIRST) -> None:
        super().__init__(names)
        self._most = most
        self._order = order
        self._rows = first
        self._behind = is_behind(names, order)

    def backlog(self) -> Steps[dict[str, Backlog]]:
        """The unsent messages of each queue. A delayed message counts as waiting until a relay takes it up."""
        counts: dict[str, Counter[str]] = {}
        for state, kind in _KINDS.items():
            some = f"SELECT queue FROM {self.delivery} WHERE {in_state(state)} LIMIT {self._most}"
            found = yield Query(f"SELECT queue, count(*) FROM ({some}) d GROUP BY queue")
            for queue, count in found.rows:
                counts.setdefault(queue, Counter())[kind] += count
        held = yield from self._held_keys()
        backlog: dict[str, Backlog] = {}
        for queue, by_kind in counts.items():
            searched = by_kind["pending"] or queue.startswith(SAGA_QUEUE)
            oldest = (yield from self.oldest(queue)) if searched else 0.0
            backlog[queue] = Backlog(**by_kind, oldest_pending_seconds=oldest, held_keys=held.get(queue, 0))
        return backlog

    def oldest(self, queue: str) -> Steps[float]:
        """For how many seconds the oldest message or saga that could go on has waited; 0 if there is none."""
        return (yield from self._oldest_saga(queue) if queue.startswith(SAGA_QUEUE) else self._oldest(queue))

    def _held_keys(self) -> Steps[dict[str, int]]:
        """The keys of each queue that a dead message holds back, whether anything waits behind it or not."""
        if self._order is not Order.HOLD:
            return {}
        some = (
            f"SELECT queue, key_hash FROM {self.delivery} WHERE {in_state(Stored.DEAD)} AND lane <> {NO_LANE} "
            f"LIMIT {self._most}"
        )
        found = yield Query(
            f"SELECT queue, count(*) FROM (SELECT DISTINCT queue, key_hash FROM ({some}) s) d GROUP BY queue"
        )
        return dict(found.rows)

    def _oldest(self, queue: str) -> Steps[float]:
        """For how many seconds the oldest message that nothing holds back has waited."""
        firsts = " UNION ALL ".join(map(self._first, (NO_LANE, *range(LANES))))
        # What was due later has been waiting only since then.
        since = self.dialect.seconds_since(later_of("d.due", "m.created_at"))
        found = yield Query(
            f"SELECT max({since}) FROM ({firsts}) d JOIN {self.outbox} m ON m.position = d.position", {"queue": queue}
        )
        [[seconds]] = found.rows
        return round(max(0.0, float(seconds or 0.0)), 3)

    def _oldest_saga(self, queue: str) -> Steps[float]:
        """For how many seconds a saga that could go on has waited for a worker.

        One that a worker holds does not wait, however long ago it began; one that nobody took when it was due does.
        """
        free = f"queue = :queue AND lane = {NO_LANE} AND leased_until <= {self.now}"
        ready_since = later_of("m.created_at", later_of("d.due", "d.leased_until"))
        found = yield Query(
            f"SELECT max({self.dialect.seconds_since(ready_since)}) FROM (SELECT position, due, leased_until "
            f"FROM {self.delivery} WHERE {ready()} AND {free} ORDER BY position LIMIT {self._rows}) d "
            f"JOIN {self.outbox} m ON m.position = d.position",
            {"queue": queue},
        )
        overdue = yield Query(
            f"SELECT {self.dialect.seconds_since(later_of('due', 'leased_until'))} FROM {self.delivery} "
            f"WHERE {comes_due()} AND {free} AND due <= {self.now} ORDER BY due, position LIMIT 1",
            {"queue": queue},
        )
        waited = [float(seconds or 0.0) for [seconds] in (*found.rows, *overdue.rows)]
        return round(max(0.0, *waited), 3)

    def _first(self, lane: int) -> str:
        some = (
            f"SELECT queue, key_hash, position, due FROM {self.delivery} "
            f"WHERE {ready()} AND queue = :queue AND lane = {lane} ORDER BY position LIMIT {self._rows}"
        )
        # In a CASE, each is looked up by its key: PostgreSQL makes no join of it, which might read all that failed.
        free = "" if lane == NO_LANE else f" WHERE CASE WHEN {self._behind} THEN 1 ELSE 0 END = 0"
        return f"SELECT * FROM (SELECT d.position, d.due FROM ({some}) d{free} ORDER BY d.position LIMIT 1) f"


def later_of(one: str, other: str) -> str:
    """The later of two moments that are not NULL."""
    return f"CASE WHEN {one} > {other} THEN {one} ELSE {other} END"
