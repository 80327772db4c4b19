"""Abort an instance: take the lease from whoever has it, so that the running step cannot commit, and turn back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import UnusableConnection
from postroom.rules.failures import cut
from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_PLAN, saga_key
from postroom.rules.saga_plan import Direction, SagaOutcome, past_pivot, pivot_may_have_happened
from postroom.store.admin.audit import ACTOR_LENGTH, Note, audit
from postroom.store.saga.plan_header import plan_from_header
from postroom.store.saga.values import Aborted
from postroom.store.sql.dialect import text
from postroom.store.sql.rows import headers_of
from postroom.store.sql.states import in_state, ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.rules.saga_plan import Plan
    from postroom.store.saga.step_log import StepLog

ABORTED = "ABORTED"
"""The error code of an instance that was aborted."""
ABORT = "saga_aborted"


class Aborting:
    def __init__(self, log: StepLog) -> None:
        self._sql = log.sql
        self._log = log

    def abort(self, id: str, by: str, reason: str) -> Steps[Aborted]:
        """Turn an instance back, in the transaction that is open on the caller's connection.

        A step that is running cannot commit any more. Unless it is `ABORTED` nothing is written. Raises
        `SagaNotDecodable` if its plan cannot be read, and `UnusableConnection` if the transaction cannot see whether
        it has passed its pivot.
        """
        sql = self._sql
        found = yield Query(
            f"SELECT position, id, headers FROM {sql.outbox} WHERE idempotency_key = :key",
            {"key": saga_key(sql.saga_name, id)},
        )
        for position, message, headers in found.rows:
            plan = headers_of(text(headers) if isinstance(headers, bytes) else headers).get(SAGA_PLAN, "")
            return (yield from self._abort(int(position), text(message), plan, Note(by, reason)))
        return Aborted.UNKNOWN

    def _abort(self, position: int, message: str, header: str, note: Note) -> Steps[Aborted]:
        """Lock the delivery; only then read what is on record, in statements of their own."""
        sql = self._sql
        state = yield from sql.lock_in_any_state(position)
        found = yield Query(
            f"SELECT direction, outcome, id FROM {sql.saga} WHERE position = :at{sql.latest}", {"at": position}
        )
        if not found.rows:
            return Aborted.UNKNOWN
        direction, outcome, identifier = found.rows[0]
        if outcome != SagaOutcome.OPEN:
            return Aborted.ENDED
        if state is None:
            return Aborted.LOST
        if direction == Direction.BACK:
            return Aborted.ALREADY_BACK
        if (yield from self._is_bound(position, plan_from_header(header), state)):
            return Aborted.PAST_PIVOT
        yield from self._turn(position, state, note)
        details = {"saga": sql.saga_name, "id": text(identifier)}
        yield from audit(sql.names, ABORT, note, [(position, message, details)])
        return Aborted.ABORTED

    def _is_bound(self, position: int, plan: Plan, state: Stored) -> Steps[bool]:
        """Whether it only goes forward. Raises `UnusableConnection`."""
        if not any(step.pivot for step in plan):
            return False
        yield from self._require_the_present()
        known = (yield from self._log.on_record([position], self._sql.latest))[position]
        # Of a parked one an operator has seen whether its pivot happened.
        return past_pivot(plan, known) or (state is not Stored.DEAD and pivot_may_have_happened(plan, known))

    def _require_the_present(self) -> Steps[None]:
        """Refuse a transaction that sees steps only if they were done before it began."""
        if self._sql.names.dialect != "postgresql":
            return  # there, a lock or `latest` shows what is
        found = yield Query("SELECT current_setting('transaction_isolation')")
        isolation = text(found.rows[0][0])
        if isolation in {"repeatable read", "serializable"}:
            raise UnusableConnection(
                f"a transaction in {isolation.upper()} cannot see whether the saga has passed its pivot since the "
                "transaction began: abort it in one in READ COMMITTED, or with `postroom sagas abort`"
            )

    def _turn(self, position: int, state: Stored, note: Note) -> Steps[None]:
        sql = self._sql
        yield Query(
            f"UPDATE {sql.saga} SET direction = {int(Direction.BACK)}, error_code = :code, error_message = :text, "
            "aborted_by = :by WHERE position = :position",
            {
                "code": ABORTED,
                "text": cut(note.reason),
                "by": cut(note.actor, ACTOR_LENGTH) or "unknown",
                "position": position,
            },
        )
        yield Query(
            f"UPDATE {sql.delivery_by_key} SET {ready()}, due = {sql.dialect.never}, attempts = 0, claims = 0, "
            f"error_code = '', error_message = '', failed_at = {sql.dialect.never}, {sql.free()} "
            f"WHERE {in_state(state)} AND {sql.one}",
            sql.place(position),
        )
