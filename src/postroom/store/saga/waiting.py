"""Wait for an event or a time, and receive events. Both lock the instance's delivery, so that none is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from postroom.rules.failures import cut
from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.rules.saga_state import STEP_MISSING
from postroom.store.saga.step_log import DONE
from postroom.store.saga.values import LOST, Entry, Event, Locked, Received, Waiting
from postroom.store.sql.dialect import text
from postroom.store.sql.rows import as_bytes
from postroom.store.sql.states import becomes, in_state, ready
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.leases import Claimed
    from postroom.store.saga.starting import Starting
    from postroom.store.saga.step_log import StepLog
    from postroom.store.saga.tables import Held


class WaitingForEvents:
    def __init__(self, log: StepLog, starting: Starting) -> None:
        self._sql = log.sql
        self._log = log
        self._starting = starting
        self._as_id = "::text::uuid" if log.sql.names.dialect == "postgresql" else ""

    def wait(
        self,
        claimed: Claimed,
        step: str,
        event: str | None,
        due_in: float,
        after: UUID | None = None,
        unreadable: str = "",
    ) -> Steps[Waiting | Locked]:
        """Return an event of this name that is there, and keep the lease; else give it up until one comes or it is due.

        The step is put on record as waiting, so that its time counts from now. If `due_in` is 0 or less it only looks,
        and the lease is kept. `event`: None for a sleep. Only events behind `after` count; if those up to there are
        `unreadable`, that is what the instance is stranded by. `LOST` if the lease is lost, or the step is done.
        """
        look = None if event is None else self._look(claimed.position, event, after)
        sleep = self._sleep(claimed.position, due_in, unreadable)
        return (yield from self._sql.unless_locked(self._wait, claimed, step, look, sleep if due_in > 0 else None))

    def _wait(self, claimed: Claimed, step: str, look: Query | None, sleep: Query | None) -> Steps[Waiting]:
        held = yield from self._sql.lock_now(claimed)
        if held is None:
            return LOST
        known = (yield from self._log.on_record([claimed.position]))[claimed.position]
        row = known.get((Direction.FORWARD, step))
        if row not in (None, StepOutcome.WAITING):
            return LOST
        if row is None:
            entry = Entry(Direction.FORWARD, step, StepOutcome.WAITING)
            yield from self._log.write_entries(held, known, [entry])
        # The event is looked for in a statement of its own, after the lock: one may have come before it.
        found = None if look is None else _first((yield look).rows)
        if found is None and sleep is not None:
            yield sleep
        elif row is None:
            yield from self._log.go_on([held])
        return found

    def _look(self, position: int, event: str, after: UUID | None) -> Query:
        """The first event of this name, or the first behind another one."""
        here = f"FROM {self._sql.event} WHERE position = :position AND"
        order, behind, params = "received_at, message_id", "", {"position": position, "event": event}
        if after is not None:
            behind = f" AND ({order}) > (SELECT {order} {here} message_id = :after{self._as_id})"
            params["after"] = str(after)
        return Query(f"SELECT message_id, name, payload {here} name = :event{behind} ORDER BY {order} LIMIT 1", params)

    def _sleep(self, position: int, due_in: float, unreadable: str) -> Query:
        sql = self._sql
        return Query(
            f"UPDATE {sql.delivery_by_key} SET {becomes(Transition.WAIT)}, due = {sql.dialect.later(':seconds')}, "
            "attempts = 0, claims = 0, error_code = :code, error_message = :text, "
            f"failed_at = {sql.now if unreadable else sql.dialect.never}, {sql.free()} WHERE {ready()} AND {sql.one}",
            {
                **sql.place(position),
                "seconds": float(due_in),
                "code": STEP_MISSING if unreadable else "",
                "text": cut(unreadable),
            },
        )

    def receive(
        self, claimed: Claimed, saga_id: str, event: str, payload: bytes | None, *, existed: bool = False
    ) -> Steps[Received | Locked]:
        """Hand an event to the instance with this id, wake it if it waits, and settle the signal, in one transaction.

        Nothing is written if the lease on the signal is lost, or if there is no such instance, which may come yet. A
        signal that comes after the end is settled, too late. `existed`: the instance was there when the signal's sender
        began, as the parent of a child was; if it is not there, it was removed after its end.
        """
        return (yield from self._sql.unless_locked(self._receive, claimed, saga_id, event, payload, existed))

    def _receive(
        self,
        claimed: Claimed,
        saga_id: str,
        event: str,
        payload: bytes | None,
        existed: bool,  # noqa: FBT001 - as in `receive`
    ) -> Steps[Received]:
        held = yield from self._sql.lock_now(claimed)
        if held is None:
            return Received.LEASE_LOST
        position = yield from self._starting.position_of(saga_id)
        if position is None and existed:
            yield from self._settle(held)
            return Received.ENDED
        if position is None:
            return Received.UNKNOWN
        state = yield from self._sql.lock_in_any_state(position, now=True)
        if state is None:
            return (yield from self._too_late(held, position))
        yield self._event(claimed, position, event, payload)
        if state is Stored.SCHEDULED:
            yield self._wake(position)
        yield from self._settle(held)
        return Received.DELIVERED

    def _too_late(self, signal: Held, position: int) -> Steps[Received]:
        found = yield Query(f"SELECT outcome FROM {self._sql.saga} WHERE position = :at", {"at": position})
        if not found.rows or found.rows[0][0] == SagaOutcome.OPEN:
            return Received.UNKNOWN  # its delivery was removed by hand
        yield from self._settle(signal)
        return Received.ENDED

    def _event(self, claimed: Claimed, position: int, event: str, payload: bytes | None) -> Query:
        sql = self._sql
        return Query(
            sql.dialect.insert_missing(
                sql.event,
                "position, message_id, name, payload",
                f"(:position, :message{self._as_id}, :event, {sql.bytes_of('payload')})",
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


def _first(rows: Sequence[Row]) -> Event | None:
    for identifier, name, payload in rows:
        return Event(UUID(text(identifier)), name, b"" if payload is None else as_bytes(payload))
    return None
