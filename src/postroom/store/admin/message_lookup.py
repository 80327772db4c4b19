"""Look one message up: everything that the tables say about it, and about what may hold it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import Order
from postroom.store.admin.audit import AuditEntry, AuditTrail
from postroom.store.admin.status import StatusReader, Worker
from postroom.store.outbox.attempts import Attempts, FailedAttempt
from postroom.store.sql.dialect import ALL_LANES
from postroom.store.sql.operations import read_up_to
from postroom.store.sql.rows import shown
from postroom.store.sql.skip_scan import SkipScan
from postroom.store.sql.states import holds_key, unsettled
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.leadership import Leadership, StreamState

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from postroom.message import Message
    from postroom.store.sql.names import Names


class DeliveryRow(NamedTuple):
    """A row of `outbox_delivery`, with what the database's clock says about it."""

    state: int
    lane: int
    key_hash: int | None
    due_passed: bool
    leased: bool
    due: datetime | None
    leased_until: datetime | None
    owner: str
    attempts: int
    claims: int
    failed_at: datetime | None
    error_code: str
    error_message: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """How a message was settled: a row of `outbox_receipt`."""

    outcome: str
    """sent, duplicate or expired."""
    sent_at: datetime | None
    attempts: int
    answer: str | None
    """What the broker answered."""


class HeldLane(NamedTuple):
    """A row of `outbox_lane` under a lease that has not ended."""

    owner: str
    leased_until: datetime | None
    read_to: int


@dataclass(frozen=True, slots=True)
class Blocker:
    """The first message of a key that holds back those behind it."""

    id: str | None
    position: int
    status: Literal["dead", "failed", "requeued"]
    due: datetime | None
    error_code: str
    error_message: str


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """A message and everything around it; None for what does not exist."""

    message: Message
    position: int
    queue: str
    delivery: DeliveryRow | None
    receipt: Receipt | None
    lane: HeldLane | None
    blocker: Blocker | None
    workers: tuple[Worker, ...]
    """Those of its queue that are alive."""
    history: tuple[AuditEntry, ...]
    attempts: tuple[FailedAttempt, ...] = ()
    """Those that failed, oldest first."""
    stream: StreamState | None = None
    """Of a message without delivery and receipt that is in the stream: how that is read."""


class MessageLookup(SkipScan):
    """Looks a message up by its id, in whichever queue it is. `order` is that of the relays."""

    def __init__(self, names: Names, order: Order = Order.HOLD) -> None:
        super().__init__(names)
        self._holds_key = holds_key(order, "b")

    def find(self, identifier: UUID) -> Steps[FoundMessage | None]:
        """The message and everything around it; None if there is none with this id."""
        found = yield Query(
            f"SELECT m.position, m.queue, 0, 0, 0, 0, {self.columns} FROM {self.outbox} m WHERE m.id = :id",
            {"id": str(identifier)},
        )
        if not found.rows:
            return None
        row = found.rows[0]
        position = row[0]
        # Delivery first: a message that is settled meanwhile is then found twice, and not nowhere.
        queue, delivery = yield from self._in_any_queue(row[1], position)
        receipt = yield from self._receipt(position)
        is_open = delivery is None and receipt is None
        stream = (yield from self._stream(position)) if is_open and self.dialect.name == "postgresql" else None
        workers = yield from StatusReader(self.names).workers()
        return FoundMessage(
            self.message(row),
            position,
            queue,
            delivery,
            receipt,
            (yield from self._lane(queue, delivery.lane)) if delivery else None,
            (yield from self._blocker(queue, position, delivery.key_hash)) if delivery else None,
            tuple(worker for worker in workers if worker.queue == queue),
            tuple((yield from AuditTrail(self.names).of_message(position))),
            tuple((yield from Attempts(self.names).of_message(position))),
            stream,
        )

    def _stream(self, position: int) -> Steps[StreamState | None]:
        """How the stream is read, if the message is in it."""
        found = yield Query(
            f"SELECT 1 FROM {self.outbox} WHERE position = :position AND streamed", {"position": position}
        )
        return (yield from Leadership(self.names).state()) if found.rows else None

    def _in_any_queue(self, added_to: str, position: int) -> Steps[tuple[str, DeliveryRow | None]]:
        """Its delivery and the queue that it is in: the one it was added to, or one it was routed into since."""
        delivery = yield from self._delivery(added_to, position)
        if delivery is not None:
            return added_to, delivery
        others: dict[str, None] = {}
        for state in Stored:
            others |= dict.fromkeys((yield from self.queues_with(state)))
        for queue in others:
            delivery = yield from self._delivery(queue, position)
            if delivery is not None:
                return queue, delivery
        return added_to, None

    def _delivery(self, queue: str, position: int) -> Steps[DeliveryRow | None]:
        due, leased_until, failed_at = map(self._when, ("due", "leased_until", "failed_at"))
        found = yield Query(
            f"SELECT state, lane, key_hash, due <= {self.now}, leased_until > {self.now}, {due}, {leased_until}, "
            f"owner, attempts, claims, {failed_at}, error_code, error_message "
            f"FROM {self.delivery} WHERE {unsettled()} AND queue = :queue "
            f"AND lane IN ({ALL_LANES}) AND position = :position",
            {"queue": queue, "position": position},
        )
        if not found.rows:
            return None
        row = DeliveryRow(*found.rows[0])
        return row._replace(
            due_passed=bool(row.due_passed),
            leased=bool(row.leased),
            due=self.dialect.read_moment(row.due),
            leased_until=self.dialect.read_moment(row.leased_until),
            failed_at=self.dialect.read_moment(row.failed_at),
        )

    def _when(self, moment: str) -> str:
        return f"nullif({self.dialect.readable(moment)}, {self.dialect.never})"

    def _receipt(self, position: int) -> Steps[Receipt | None]:
        found = yield Query(
            f"SELECT outcome, sent_at, attempts, answer FROM {self.receipt} WHERE position = :position",
            {"position": position},
        )
        if not found.rows:
            return None
        outcome, sent_at, attempts, answer = found.rows[0]
        return Receipt(outcome, self.dialect.read_moment(sent_at), attempts, answer)

    def _lane(self, queue: str, lane: int) -> Steps[HeldLane | None]:
        found = yield Query(
            f"SELECT owner, leased_until, read_to FROM {self.lane} "
            f"WHERE queue = :queue AND lane = :lane AND leased_until > {self.now}",
            {"queue": queue, "lane": lane},
        )
        if not found.rows:
            return None
        row = HeldLane(*found.rows[0])
        return row._replace(leased_until=self.dialect.read_moment(row.leased_until), read_to=read_up_to(row.read_to))

    def _blocker(self, queue: str, position: int, key_hash: int | None) -> Steps[Blocker | None]:
        if key_hash is None:
            return None
        found = yield Query(
            f"SELECT m.id, b.position, b.state, {self._when('b.due')}, b.error_code, b.error_message "
            f"FROM {self.delivery} b LEFT JOIN {self.outbox} m ON m.position = b.position "
            f"WHERE b.queue = :queue AND b.key_hash = :key_hash AND b.position < :position AND {self._holds_key} "
            f"ORDER BY b.position LIMIT 1",
            {"queue": queue, "key_hash": key_hash, "position": position},
        )
        if not found.rows:
            return None
        identifier, at, state, due, code, text = found.rows[0]
        dead = state == Stored.DEAD
        return Blocker(
            shown(identifier),
            at,
            "dead" if dead else "failed" if code else "requeued",
            None if dead else self.dialect.read_moment(due),
            code,
            text,
        )
