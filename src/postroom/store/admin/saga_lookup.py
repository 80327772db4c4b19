"""Look one saga up: everything that the tables say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_QUEUE, saga_key
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import Direction, StepOutcome
from postroom.store.admin.audit import AuditEntry, AuditTrail
from postroom.store.admin.sagas import ListedSaga, Sagas
from postroom.store.admin.status import StatusReader, Worker
from postroom.store.sql.dialect import text
from postroom.store.sql.rows import as_bytes
from postroom.store.sql.states import unsettled
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from postroom.message import Message


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is on record of a step, in one direction: a row of `saga_step`."""

    direction: Direction
    step: str
    outcome: StepOutcome
    attempts: int
    worker: str
    """The worker that ran it; of a step that an operator skipped, the operator."""
    started_at: datetime | None
    finished_at: datetime | None
    result: bytes | None
    data: bytes | None
    error_code: str
    error_message: str


@dataclass(frozen=True, slots=True)
class SagaDelivery:
    """A saga's row of `outbox_delivery`."""

    stored: Stored
    leased: bool
    owner: str
    leased_until: datetime | None
    due: datetime | None
    attempts: int
    claims: int
    failed_at: datetime | None
    error_code: str
    error_message: str


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event that it has received, and that no step has taken yet."""

    name: str
    message_id: str
    received_at: datetime | None
    payload: bytes | None


@dataclass(frozen=True, slots=True)
class FoundSaga:
    """A saga and everything around it."""

    saga: ListedSaga
    direction: Direction
    turned_by: tuple[str, str]
    """Code and text of the error for which it went back; empty if it did not."""
    message: Message
    """The message that started it."""
    records: tuple[StepRecord, ...]
    """In the order in which they came."""
    delivery: SagaDelivery | None
    """None once it has ended."""
    events: tuple[PendingEvent, ...]
    workers: tuple[Worker, ...]
    """Those that are alive and run sagas of its name."""
    history: tuple[AuditEntry, ...]

    @property
    def outcomes(self) -> dict[tuple[Direction, str], StepOutcome]:
        """What is on record, as the rules take it."""
        return {(one.direction, one.step): one.outcome for one in self.records}


class SagaLookup(Sagas):
    """Looks a saga up by its name and id."""

    def position(self, name: str, identifier: str) -> Steps[int | None]:
        """Where it is; None if there is none."""
        positions = yield from self.positions_of(name, [identifier])
        return positions[0] if positions else None

    def find(self, name: str, position: int) -> Steps[FoundSaga | None]:
        """The saga at a position and everything around it."""
        queue = f"{SAGA_QUEUE}{name}"
        # Delivery first: a saga that ends meanwhile is then found twice, and not nowhere.
        delivery = yield from self.delivery_of(queue, position)
        listed = yield from self.read([position])
        found = yield Query(
            f"SELECT m.position, m.queue, 0, 0, 0, 0, {self.columns} FROM {self.outbox} m WHERE m.position = :position",
            {"position": position},
        )
        turned = yield Query(
            f"SELECT direction, error_code, error_message FROM {self.saga} WHERE position = :position",
            {"position": position},
        )
        if not (listed and found.rows and turned.rows):
            return None
        direction, code, message = turned.rows[0]
        workers = yield from StatusReader(self.names).workers()
        return FoundSaga(
            saga=listed[0],
            direction=Direction(direction),
            turned_by=(text(code), text(message)),
            message=self.message(found.rows[0]),
            records=(yield from self.records(position)),
            delivery=None if listed[0].ended_at else delivery,
            events=(yield from self._events(position)),
            workers=tuple(worker for worker in workers if worker.queue == queue),
            history=tuple((yield from AuditTrail(self.names).of_message(position))),
        )

    def names_known(self) -> Steps[list[str]]:
        """Names of sagas that are open, or for which a worker is alive."""
        queues: set[str] = set()
        for stored in Stored:
            queues |= set((yield from self.queues_of(stored, None)))
        for worker in (yield from StatusReader(self.names).workers()):
            if worker.queue.startswith(SAGA_QUEUE):
                queues.add(worker.queue)
        return sorted(queue.removeprefix(SAGA_QUEUE) for queue in queues)

    def children(self, identifier: str, steps: Collection[str]) -> Steps[list[ListedSaga]]:
        """Sagas whose id is that of this one, a slash and a step's name, under the names that are known."""
        names = yield from self.names_known()
        keys = [saga_key(name, f"{identifier}/{step}") for name in names for step in steps]
        positions: list[int] = []
        if keys:
            positions = yield from self.with_keys(keys)
        return (yield from self.read(positions))

    def records(self, position: int) -> Steps[tuple[StepRecord, ...]]:
        """What is on record of its steps, in order."""
        started, finished = self.dialect.readable("started"), self.dialect.readable("finished")
        found = yield Query(
            f"SELECT direction, step, outcome, attempts, worker, {started}, {finished}, result, data, error_code, "
            f"error_message FROM {self.tables['saga_step']} WHERE position = :position ORDER BY number, finished",
            {"position": position},
        )
        return tuple(self._record(row) for row in found.rows)

    def _record(self, row: Row) -> StepRecord:
        direction, step, outcome, attempts, worker, started, finished, result, data, code, message = row
        moment = self.dialect.read_moment
        return StepRecord(
            *(Direction(direction), text(step), StepOutcome(outcome), attempts, text(worker)),
            *(moment(started), moment(finished)),
            *(_bytes(result), _bytes(data)),
            *(text(code), text(message)),
        )

    def delivery_of(self, queue: str, position: int) -> Steps[SagaDelivery | None]:
        """Its delivery; None if it has ended."""
        due, leased_until, failed_at = (
            f"nullif({self.dialect.readable(name)}, {self.dialect.never})"
            for name in ("due", "leased_until", "failed_at")
        )
        found = yield Query(
            f"SELECT state, leased_until > {self.now}, owner, {leased_until}, {due}, {self.dialect.whole('attempts')}, "
            f"{self.dialect.whole('claims')}, {failed_at}, error_code, error_message FROM {self.delivery} "
            f"WHERE {unsettled()} AND queue = :queue AND lane = {NO_LANE} AND position = :position",
            {"queue": queue, "position": position},
        )
        if not found.rows:
            return None
        state, leased, owner, until, due, attempts, claims, failed, code, message = found.rows[0]
        moment = self.dialect.read_moment
        return SagaDelivery(
            *(Stored(state), bool(leased), text(owner), moment(until), moment(due), attempts, claims, moment(failed)),
            *(text(code), text(message)),
        )

    def _events(self, position: int) -> Steps[tuple[PendingEvent, ...]]:
        received_at = self.dialect.readable("received_at")
        found = yield Query(
            f"SELECT name, message_id, {received_at}, payload FROM {self.tables['saga_event']} "
            "WHERE position = :position ORDER BY received_at, message_id",
            {"position": position},
        )
        return tuple(
            PendingEvent(text(name), text(identifier), self.dialect.read_moment(at), _bytes(payload))
            for name, identifier, at, payload in found.rows
        )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else as_bytes(value)
