"""Wait for an event or a time, and receive events. Both lock the instance's delivery, so that none is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.store.saga.step_log import DONE
from postroom.store.saga.values import LOST, Entry, Event, Received, Waiting
from postroom.store.sql.dialect import text
from postroom.store.sql.rows import as_bytes
from postroom.store.sql.states import becomes, in_state, ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.starting import Starting
    from postroom.store.saga.step_log import StepLog
    from postroom.store.saga.tables import Held


class WaitingForEvents:
    def __init__(self, log: StepLog, starting: Starting) -> None:
        self._sql = log.sql
        self._log = log
        self._starting = starting

    def wait(self, claimed: Claimed, step: str, event: str | None, due_in: float) -> Steps[Waiting]:
        """Return an event of this name that is there, and keep the lease; else give it up until one comes or it is due.

        The step is put on record as waiting, so that its time counts from now. If `due_in` is 0 or less it only looks,
        and the lease is kept. `event`: None for a sleep. `LOST` if the lease is lost, or the step is already done.
        """
        return (yield from self._sql.transaction(self._wait, claimed, step, event, due_in))

    def _wait(self, claimed: Claimed, step: str, event: str | None, due_in: float) -> Steps[Waiting]:
        held = yield from self._sql.lock([claimed])
        if not held:
            return LOST
        known = (yield from self._log.on_record([claimed.position]))[claimed.position]
        row = known.get((Direction.FORWARD, step))
        if row not in (None, StepOutcome.WAITING):
            return LOST
        if row is None:
            entry = Entry(Direction.FORWARD, step, StepOutcome.WAITING)
            yield from self._log.write_entries(held[claimed.lease], known, [entry])
        found = None if event is None else (yield from self._look(claimed.position, event))
        if found is None and due_in > 0:
            yield self._sleep(claimed.position, due_in)
        elif row is None:
            yield from self._log.go_on([held[claimed.lease]])
        return found

    def _look(self, position: int, event: str) -> Steps[Event | None]:
        """The first event of this name. In a statement of its own, after the lock: one may have come before it."""
        found = yield Query(
            f"SELECT message_id, payload FROM {self._sql.event} WHERE position = :position AND name = :event "
            "ORDER BY received_at, message_id LIMIT 1",
            {"position": position, "event": event},
        )
        for identifier, payload in found.rows:
            return Event(UUID(text(identifier)), event, b"" if payload is None else as_bytes(payload))
        return None

    def _sleep(self, position: int, due_in: float) -> Query:
        sql = self._sql
        return Query(
            f"UPDATE {sql.delivery_by_key} SET {becomes(Transition.WAIT)}, due = {sql.dialect.later(':seconds')}, "
            f"attempts = 0, claims = 0, error_code = '', error_message = '', failed_at = {sql.dialect.never}, "
            f"{sql.free()} WHERE {ready()} AND {sql.one}",
            {**sql.place(position), "seconds": float(due_in)},
        )

    def receive(self, claimed: Claimed, saga_id: str, event: str, payload: bytes | None) -> Steps[Received]:
        """Hand an event to the instance with this id, wake it if it waits, and settle the signal, in one transaction.

        Nothing is written if the lease on the signal is lost, or if there is no such instance, which may come yet. A
        signal that comes after the end is settled, too late.
        """
        return (yield from self._sql.transaction(self._receive, claimed, saga_id, event, payload))

    def _receive(self, claimed: Claimed, saga_id: str, event: str, payload: bytes | None) -> Steps[Received]:
        held = yield from self._sql.lock([claimed])
        if not held:
            return Received.LEASE_LOST
        position = yield from self._starting.position_of(saga_id)
        if position is None:
            return Received.UNKNOWN
        state = yield from self._sql.lock_in_any_state(position)
        if state is None:
            return (yield from self._too_late(held[claimed.lease], position))
        yield self._event(claimed, position, event, payload)
        if state is Stored.SCHEDULED:
            yield self._wake(position)
        yield from self._settle(held[claimed.lease])
        return Received.DELIVERED

    def _too_late(self, signal: Held, position: int) -> Steps[Received]:
        found = yield Query(f"SELECT outcome FROM {self._sql.saga} WHERE position = :at", {"at": position})
        if not found.rows or found.rows[0][0] == SagaOutcome.OPEN:
            return Received.UNKNOWN  # its delivery was removed by hand
        yield from self._settle(signal)
        return Received.ENDED

    def _event(self, claimed: Claimed, position: int, event: str, payload: bytes | None) -> Query:
        sql = self._sql
        as_id = "::text::uuid" if sql.names.dialect == "postgresql" else ""
        return Query(
            sql.dialect.insert_missing(
                sql.event,
                "position, message_id, name, payload",
                f"(:position, :message{as_id}, :event, {sql.bytes_of('payload')})",
            ),
            {
                "position": position,
                "message": str(claimed.message.id),
                "event": event,
                "payload": sql.as_bytes(payload),
            },
        )

    def _wake(self, position: int) -> Query:
        sql = self._sql
        return Query(
            f"UPDATE {sql.delivery_by_key} SET due = {sql.now} WHERE {in_state(Stored.SCHEDULED)} AND {sql.one}",
            sql.place(position),
        )

    def _settle(self, signal: Held) -> Steps[None]:
        sql = self._sql
        yield Query(f"DELETE FROM {sql.delivery} WHERE {ready()} AND {sql.one}", sql.place(signal.position))
        yield Query(
            f"INSERT INTO {sql.receipt} (position, attempts, outcome) VALUES (:position, :attempts, :outcome) "
            f"{sql.dialect.replace_receipt}",
            {"position": signal.position, "attempts": signal.attempts + 1, "outcome": DONE},
        )
