"""Status: how many messages, sagas and two-phase commits are in which state, who is alive, and what is held up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import State
from postroom.rules.ordering import Order
from postroom.rules.stream.modes import Mode
from postroom.store.admin.sagas import SagaCount, Sagas
from postroom.store.admin.transactions import TransactionCount, Transactions
from postroom.store.outbox.held_targets import HeldTarget, HeldTargets
from postroom.store.outbox.workers import ALIVE_SECONDS
from postroom.store.sql.behind import is_behind
from postroom.store.sql.operations import Operations
from postroom.store.sql.states import comes_due, dead, ready
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.leadership import Leadership, StreamState

if TYPE_CHECKING:
    from datetime import datetime

    from postroom.store.sql.names import Names

STATUS = f"""\
CASE
        WHEN {dead("d")} THEN 'dead'
        WHEN {comes_due("d")} AND d.due > {{now}} THEN 'waiting'
        WHEN {ready("d")} AND (d.leased_until > {{now}} OR l.lane IS NOT NULL) THEN 'sending'
        ELSE 'pending'
    END"""
"""The state of a delivery `d` in the words that people see, where `l` is the lane that it is being sent in."""

SENDING_LANE = f"""\
LEFT JOIN {{lane}} l ON {ready("d")} AND l.queue = d.queue AND l.lane = d.lane
    AND l.leased_until > {{now}} AND d.position <= l.read_to AND NOT {{behind}}"""
"""The lane that a delivery is being sent in: read by the lane's holder, and nothing stands before it."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A relay or consumer that is alive: one row for each queue that it serves."""

    name: str
    queue: str
    host: str
    pid: int
    lanes: int
    in_flight: int
    broker_down: str | None
    """Why it cannot reach its broker; None if it can."""
    started_at: datetime | None
    seen_seconds_ago: float


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The unsent messages of one queue. Settled messages are counted in `Status` alone."""

    queue: str
    pending: int = 0
    sending: int = 0
    waiting: int = 0
    dead: int = 0
    held: int = 0
    """Pending behind a failed or, under `hold`, dead message of their key; counted in `pending` too."""
    oldest_pending_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Status:
    """How many messages are in each state, and how long the oldest one that could leave has waited."""

    pending: int
    sending: int
    waiting: int
    dead: int
    sent: int
    expired: int
    held: int
    """Pending behind a failed or, under `hold`, dead message of their key; counted in `pending` too."""
    oldest_pending_seconds: float
    workers: tuple[Worker, ...] = ()
    """Relays and consumers that are alive."""
    targets: tuple[HeldTarget, ...] = ()
    """Topics that took no messages when last tried."""
    queues: tuple[QueueStatus, ...] = ()
    """Queues with unsent messages, by name."""
    sagas: tuple[SagaCount, ...] = ()
    """Sagas by name and state."""
    transactions: tuple[TransactionCount, ...] = ()
    """Two-phase commits by state, with the age of the oldest."""
    stream: StreamState | None = None
    """Who reads the stream; None if the outbox is in the table. What is in the stream is not counted."""


class StatusReader(Operations):
    """Counts over all queues. `order` is that of the relays: it says whether dead messages hold their key back."""

    def __init__(self, names: Names, order: Order = Order.HOLD) -> None:
        super().__init__(names)
        words = {**self.tables, "now": self.now, "behind": is_behind(names, order)}
        self._status, self._sending_lane = (template.format(**words) for template in (STATUS, SENDING_LANE))
        self._behind = words["behind"]

    def status(self) -> Steps[Status]:
        """The whole picture."""
        queues = yield from self.queues()
        settled = yield from self._settled()
        return Status(
            pending=sum(queue.pending for queue in queues),
            sending=sum(queue.sending for queue in queues),
            waiting=sum(queue.waiting for queue in queues),
            dead=sum(queue.dead for queue in queues),
            sent=settled.get(State.SENT, 0),
            expired=settled.get(State.EXPIRED, 0),
            held=sum(queue.held for queue in queues),
            oldest_pending_seconds=max((queue.oldest_pending_seconds for queue in queues), default=0.0),
            workers=(yield from self.workers()),
            targets=(yield from self.held_targets()),
            queues=queues,
            sagas=tuple((yield from Sagas(self.names).counts())),
            transactions=tuple((yield from Transactions(self.names).counts())),
            stream=(yield from self._stream()),
        )

    def _stream(self) -> Steps[StreamState | None]:
        if self.dialect.name != "postgresql":
            return None
        state = yield from Leadership(self.names).state()
        return state if state.mode is not Mode.TABLE else None

    def queues(self) -> Steps[tuple[QueueStatus, ...]]:
        """The unsent messages of each queue."""
        found = yield Query(
            f"SELECT d.queue, {self._status}, count(*) FROM {self.delivery} d {self._sending_lane} GROUP BY 1, 2"
        )
        counts: dict[str, dict[str, int]] = {}
        for queue, state, count in found.rows:
            counts.setdefault(queue, {})[state] = count
        held = yield from self._held_by_queue()
        queues: list[QueueStatus] = []
        for queue, by_state in sorted(counts.items()):
            counted = QueueStatus(queue, **by_state, held=held.get(queue, 0))
            if counted.pending:
                counted = replace(counted, oldest_pending_seconds=(yield from self._oldest_pending(queue)))
            queues.append(counted)
        return tuple(queues)

    def workers(self) -> Steps[tuple[Worker, ...]]:
        """Relays and consumers that are alive."""
        found = yield Query(
            f"SELECT worker, queue, host, pid, lanes, in_flight, broker_down, started_at, "
            f"{self.dialect.seconds_since('seen_at')} FROM {self.tables['worker']} "
            f"WHERE seen_at > {self.dialect.later(':silent')} ORDER BY queue, worker",
            {"silent": -ALIVE_SECONDS},
        )
        return tuple(
            Worker(
                *(name, queue, host, pid, lanes, in_flight, down or None),
                started_at=self.dialect.read_moment(started_at),
                seen_seconds_ago=round(max(0.0, float(silent)), 3),
            )
            for name, queue, host, pid, lanes, in_flight, down, started_at, silent in found.rows
        )

    def held_targets(self) -> Steps[tuple[HeldTarget, ...]]:
        """Topics that took no messages when last tried."""
        return tuple((yield from HeldTargets(self.names).held_targets()))

    def _settled(self) -> Steps[dict[str, int]]:
        found = yield Query(
            f"SELECT CASE outcome WHEN 'expired' THEN 'expired' ELSE 'sent' END, count(*) "
            f"FROM {self.receipt} GROUP BY 1"
        )
        return dict(found.rows)

    def _held_by_queue(self) -> Steps[dict[str, int]]:
        found = yield Query(
            f"SELECT d.queue, count(*) FROM {self.delivery} d "
            f"WHERE {ready('d')} AND d.key_hash IS NOT NULL AND {self._behind} GROUP BY d.queue"
        )
        return dict(found.rows)

    def _oldest_pending(self, queue: str) -> Steps[float]:
        """For how many seconds the oldest message that could leave has been waiting; 0 if there is none."""
        oldest = (
            f"SELECT d.position, d.due FROM {self.delivery} d {self._sending_lane} WHERE d.queue = :queue "
            f"AND {self._status} = 'pending' AND NOT {self._behind} ORDER BY d.position LIMIT 1"
        )
        # What was due later has been waiting only since then.
        since = self.dialect.seconds_since("CASE WHEN d.due > m.created_at THEN d.due ELSE m.created_at END")
        waited = yield Query(
            f"SELECT {since} FROM ({oldest}) d JOIN {self.outbox} m ON m.position = d.position", {"queue": queue}
        )
        return round(max(0.0, float(waited.rows[0][0] or 0.0)), 3) if waited.rows else 0.0
