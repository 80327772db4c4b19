"""The record of steps on PostgreSQL: locked, checked and written in one statement, for one instance or for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.failures import CODE_LENGTH, cut
from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import SagaOutcome, StepOutcome
from postroom.store.outbox.postgresql.given import IS_GIVEN, deliveries_given, given_deliveries, numbers, texts
from postroom.store.saga.step_log import DONE, WORKER_LENGTH, StepLog
from postroom.store.saga.values import Logged
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.saga.values import LogItem

_ENTRY = {
    "direction": "smallint",
    "step": "text",
    "outcome": "smallint",
    "ago": "float8",
    "worker": "text",
    "result": "bytea",
    "data": "bytea",
    "code": "text",
    "message": "text",
}
_PLACE = f'{int(Stored.READY)}::smallint, :queue::text COLLATE "C", {NO_LANE}::smallint'
_KEY = "position || ' ' || direction || ' ' || step"


class PostgreSQLStepLog(StepLog):
    """Writes one entry for each instance in one statement; several entries of one come together only if it turns."""

    def log_many(self, items: Sequence[LogItem]) -> Steps[list[Logged]]:
        """Write the entries of many instances. One statement commits by itself; what is told needs more."""
        if not items or not _is_simple(items) or any(item.tell is not None for item in items):
            return (yield from super().log_many(items))
        query = self._statement(items)
        [row] = yield from self.sql.statement(query.text, query.params)
        return _logged(items, *row)

    def write(self, items: Sequence[LogItem]) -> Steps[list[Logged]]:
        """Write what is held and not on record yet."""
        if not _is_simple(items):
            return (yield from super().write(items))
        found = yield self._statement(items)
        logged = _logged(items, *found.rows[0])
        ended = zip(items, logged, strict=True)
        yield from self.tell([item.tell for item, one in ended if item.tell is not None and one is Logged.WRITTEN])
        return logged

    def _statement(self, items: Sequence[LogItem]) -> Query:
        ends = any(item.end is not None for item in items)
        steps = f"""
            WITH {given_deliveries(**_ENTRY, **({"ends": "smallint"} if ends else {}))}, held AS MATERIALIZED (
                SELECT given.*, d.attempts, d.attempts > 0 OR d.claims <> 1 OR d.error_code <> '' AS unclean
                FROM given JOIN {self.sql.delivery} d ON {IS_GIVEN} AND d.token = given.token
                ORDER BY d.position FOR UPDATE OF d
            ), written AS ({self._entries()}
            ), clean AS ({self._progress("held.ends = 0" if ends else "true")}
            ){self._ends() if ends else ""}
            SELECT count(*), CASE WHEN count(*) < :expected THEN (SELECT array_agg({_KEY}) FROM held) END,
                CASE WHEN count(*) < :expected THEN array_agg({_KEY}) END
            FROM written"""
        entries = [item.entries[0] for item in items]
        params: dict[str, Any] = {
            "queue": self.sql.queue,
            **deliveries_given([item.claimed for item in items]),
            "direction": numbers([int(one.direction) for one in entries]),
            "step": texts(one.step for one in entries),
            "outcome": numbers([int(one.outcome) for one in entries]),
            "ago": numbers([-float(one.seconds) for one in entries]),
            "worker": texts(cut(one.worker, WORKER_LENGTH) for one in entries),
            "result": texts(map(_bytes, (one.result for one in entries))),
            "data": texts(map(_bytes, (one.data for one in entries))),
            "code": texts(cut(one.error_code, CODE_LENGTH) for one in entries),
            "message": texts(cut(one.error_message) for one in entries),
            "expected": len(items),
        }
        if ends:
            params["ends"] = numbers([int(item.end or SagaOutcome.OPEN) for item in items])
        return Query(steps, params)

    def _entries(self) -> str:
        """Rows that are not there, or wait."""
        sql = self.sql
        replaced = ("outcome", "attempts", "worker", "finished", "result", "data", "error_code", "error_message")
        return f"""
                INSERT INTO {sql.step} AS w (position, direction, step, outcome, number, attempts, worker, started,
                    finished, result, data, error_code, error_message)
                SELECT position, direction, step, outcome,
                    (SELECT count(*) FROM {sql.step} earlier WHERE earlier.position = held.position),
                    CASE WHEN outcome = {int(StepOutcome.SKIPPED)} THEN 0 ELSE attempts + 1 END,
                    worker, {sql.dialect.later("ago")}, {sql.now}, result, data, code, message
                FROM held
                ON CONFLICT (position, direction, step)
                DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in replaced)}
                WHERE w.outcome = {int(StepOutcome.WAITING)}
                RETURNING w.position, w.direction, w.step"""

    def _progress(self, goes_on: str) -> str:
        """Forget attempts, claims and error: what made progress has not failed."""
        return f"""
                UPDATE {self.sql.delivery} d SET attempts = 0, claims = 1, error_code = '', error_message = '',
                    failed_at = {self.sql.dialect.never}
                FROM held WHERE {IS_GIVEN.replace("given.", "held.")} AND held.unclean AND {goes_on}
                AND (held.position, held.direction, held.step) IN (SELECT position, direction, step FROM written)"""

    def _ends(self) -> str:
        sql = self.sql
        return f""", gone AS (
                DELETE FROM {sql.delivery} d USING (
                    SELECT state, queue, lane, position, max(ends) AS ends FROM (
                        SELECT state, queue, lane, position, ends FROM held WHERE ends > 0
                        UNION ALL SELECT {_PLACE}, position, 0::smallint FROM written
                    ) found GROUP BY state, queue, lane, position HAVING count(*) > 1 AND max(ends) > 0
                ) given WHERE {IS_GIVEN} RETURNING d.position, d.attempts, given.ends
            ), receipts AS (
                INSERT INTO {sql.receipt} (position, attempts, outcome)
                SELECT position, attempts + 1, '{DONE}' FROM gone {sql.dialect.replace_receipt}
            ), closed AS (
                UPDATE {sql.saga} s SET outcome = gone.ends, ended = {sql.now} FROM gone
                WHERE s.position = gone.position
            )"""


def _is_simple(items: Sequence[LogItem]) -> bool:
    return all(len(item.entries) == 1 for item in items)


def _logged(
    items: Sequence[LogItem], count: int, held: Sequence[str] | None, written: Sequence[str | None] | None
) -> list[Logged]:
    if count == len(items):
        return [Logged.WRITTEN] * count
    keys = [f"{item.claimed.position} {int(item.entries[0].direction)} {item.entries[0].step}" for item in items]
    return [
        Logged.WRITTEN if key in (written or ()) else Logged.DONE_BEFORE if key in (held or ()) else Logged.LEASE_LOST
        for key in keys
    ]


def _bytes(value: bytes | None) -> str | None:
    return None if value is None else rf"\x{value.hex()}"
