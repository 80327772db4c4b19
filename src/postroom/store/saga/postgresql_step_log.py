"""The record of steps on PostgreSQL: locked, checked and written in one statement, for one instance or for many."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from postroom.rules.failures import CODE_LENGTH, cut
from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import SagaOutcome, StepOutcome
from postroom.store.outbox.postgresql.given import IS_GIVEN, deliveries_given, given_deliveries, numbers, texts
from postroom.store.saga.step_log import DONE, WORKER_LENGTH, StepLog
from postroom.store.saga.tables import Held
from postroom.store.saga.values import Logged
from postroom.store.sql.states import ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from postroom.store.saga.tables import SagaTables
    from postroom.store.saga.values import Entry, LogItem

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
_UNCLEAN = "attempts > 0 OR claims <> 1 OR error_code <> '' AS unclean"
_BY_ENDS = (
    f"CASE WHEN position = ANY (ARRAY(SELECT position FROM gone WHERE ends = {int(SagaOutcome.COMPENSATED)})) "
    f"THEN {int(SagaOutcome.COMPENSATED)} ELSE {int(SagaOutcome.COMPLETED)} END"
)
_KEY = "position || ' ' || direction || ' ' || step"


class PostgreSQLStepLog(StepLog):
    """Writes one entry for each instance in one statement; several entries of one come together only if it turns."""

    def __init__(self, sql: SagaTables) -> None:
        super().__init__(sql)
        self._for_one = cache(self._make_for_one)
        self._for_many = cache(self._make_for_many)

    def log_many(self, items: Sequence[LogItem]) -> Steps[list[Logged]]:
        """Write the entries of many instances. One statement commits by itself; what is told needs more."""
        if not items or not _is_simple(items) or any(item.tell is not None for item in items):
            return (yield from super().log_many(items))
        query = self._statement(items)
        [row] = yield from self.sql.statement(query.text, query.params)
        return (yield from self.locked_or_lost(items, _logged(items, *row)))

    def write(self, items: Sequence[LogItem], *, skip_locked: bool = False) -> Steps[list[Logged]]:
        """Write what is held and not on record yet, in the caller's transaction."""
        if not skip_locked or not _is_simple(items):
            return (yield from super().write(items, skip_locked=skip_locked))
        found = yield self._statement(items)
        logged = _logged(items, *found.rows[0])
        yield from self._tell_of(items, logged)
        return logged

    def write_one(self, item: LogItem) -> Steps[Logged]:
        """Write what the caller rolls back unless it is `WRITTEN`."""
        if not _is_simple([item]):
            return (yield from super().write_one(item))
        logged = yield from self._write_one(item)
        yield from self._tell_of([item], [logged])
        return logged

    def _tell_of(self, items: Sequence[LogItem], logged: Sequence[Logged]) -> Steps[None]:
        ended = zip(items, logged, strict=True)
        yield from self.tell([item.tell for item, one in ended if item.tell is not None and one is Logged.WRITTEN])

    def _write_one(self, item: LogItem) -> Steps[Logged]:
        """Write one entry: a statement with constants is far cheaper to plan than the one for many.

        It deletes the delivery although the entry was there before: then the caller rolls back.
        """
        fields = _fields(item.entries)
        found = yield Query(
            self._for_one(item.end),
            {
                **self.sql.place(item.claimed.position),
                "token": item.claimed.token,
                **{name: value for name, [value] in fields.items()},
            },
        )
        [[locked, written, unclean]] = found.rows
        if not written:
            return Logged.DONE_BEFORE if locked else Logged.LEASE_LOST
        if unclean and item.end is None:
            held = Held(item.claimed.position, item.claimed.token, 1, 1, "")
            yield from self.go_on([held], keeps_attempts=item.keeps_attempts)
        return Logged.WRITTEN

    def _statement(self, items: Sequence[LogItem]) -> Query:
        ends = any(item.end is not None for item in items)
        fields = _fields([item.entries[0] for item in items])
        params: dict[str, Any] = {
            "queue": self.sql.queue,
            **deliveries_given([item.claimed for item in items]),
            **{name: _ARRAYS[_ENTRY[name]](values) for name, values in fields.items()},
            "kept": numbers([int(item.keeps_attempts) for item in items]),
            "expected": len(items),
        }
        if ends:
            params["ends"] = numbers([int(item.end or SagaOutcome.OPEN) for item in items])
        return Query(self._for_many(ends=ends), params)

    def _make_for_one(self, end: SagaOutcome | None) -> str:
        sql = self.sql
        one = f"FROM {sql.delivery} WHERE {ready()} AND {sql.one} AND token = :token"
        columns = f"position, attempts, {_UNCLEAN}"
        locked = f"MATERIALIZED (SELECT {columns} {one} FOR UPDATE)"
        if end is not None:
            locked = f"(DELETE {one} RETURNING {columns})"
        given = {name: f":{name}::{kind}" for name, kind in _ENTRY.items()}
        return f"""
            WITH held AS {locked}, written AS ({self._entries(given)}
            ){"" if end is None else self._close("held", str(int(end)))}
            SELECT count(*), (SELECT count(*) FROM written), bool_or(unclean) FROM held"""

    def _make_for_many(self, *, ends: bool) -> str:
        given = given_deliveries(**_ENTRY, kept="smallint", **({"ends": "smallint"} if ends else {}))
        return f"""
            WITH {given}, held AS MATERIALIZED (
                SELECT given.*, d.attempts, {_UNCLEAN}
                FROM given JOIN {self.sql.delivery} d ON {IS_GIVEN} AND d.token = given.token
                ORDER BY d.position FOR UPDATE OF d SKIP LOCKED
            ), written AS ({self._entries({name: f"held.{name}" for name in _ENTRY})}
            ), clean AS ({self._progress("held.ends = 0" if ends else "true")}
            ){self._ends() if ends else ""}
            SELECT count(*), CASE WHEN count(*) < :expected THEN (SELECT array_agg({_KEY}) FROM held) END,
                CASE WHEN count(*) < :expected THEN array_agg({_KEY}) END
            FROM written"""

    def _entries(self, given: Mapping[str, str]) -> str:
        """Insert rows for what is held, or replace those that wait. `given`: where the fields of an entry are."""
        sql = self.sql
        replaced = ("outcome", "attempts", "worker", "finished", "result", "data", "error_code", "error_message")
        return f"""
                INSERT INTO {sql.step} AS w (position, direction, step, outcome, number, attempts, worker, started,
                    finished, result, data, error_code, error_message)
                SELECT held.position, {given["direction"]}, {given["step"]}, {given["outcome"]},
                    (SELECT count(*) FROM {sql.step} earlier WHERE earlier.position = held.position),
                    CASE WHEN {given["outcome"]} = {int(StepOutcome.SKIPPED)} THEN 0 ELSE held.attempts + 1 END,
                    {given["worker"]}, {sql.dialect.later(given["ago"])}, {sql.now}, {given["result"]}, {given["data"]},
                    {given["code"]}, {given["message"]}
                FROM held
                ON CONFLICT (position, direction, step)
                DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in replaced)}
                WHERE w.outcome = {int(StepOutcome.WAITING)}
                RETURNING w.position, w.direction, w.step"""

    def _progress(self, goes_on: str) -> str:
        """Forget attempts, claims and error: what made progress has not failed."""
        return f"""
                UPDATE {self.sql.delivery} d SET attempts = d.attempts * held.kept, claims = 1, error_code = '',
                    error_message = '', failed_at = {self.sql.dialect.never}
                FROM held WHERE {IS_GIVEN.replace("given.", "held.")} AND held.unclean AND {goes_on}
                AND (held.position, held.direction, held.step) IN (SELECT position, direction, step FROM written)"""

    def _ends(self) -> str:
        """Delete the deliveries of those that end with what was written. An aggregate: a join would be quadratic."""
        return f""", gone AS (
                DELETE FROM {self.sql.delivery} d USING (
                    SELECT state, queue, lane, position, max(ends) AS ends FROM (
                        SELECT state, queue, lane, position, ends FROM held WHERE ends > 0
                        UNION ALL SELECT {_PLACE}, position, 0::smallint FROM written
                    ) found GROUP BY state, queue, lane, position HAVING count(*) > 1 AND max(ends) > 0
                ) given WHERE {IS_GIVEN} RETURNING d.position, d.attempts, given.ends
            ){self._close("gone", _BY_ENDS)}"""

    def _close(self, gone: str, outcome: str) -> str:
        """Write the receipts of deliveries that are gone, and close their instances.

        Those are found by an array: for a join, without statistics, all instances would be read.
        """
        sql = self.sql
        return f""", receipts AS (
                INSERT INTO {sql.receipt} (position, attempts, outcome)
                SELECT position, attempts + 1, '{DONE}' FROM {gone} {sql.dialect.replace_receipt}
            ), closed AS (
                UPDATE {sql.saga} SET outcome = {outcome}, ended = {sql.now}
                WHERE position = ANY (ARRAY(SELECT position FROM {gone}))
            )"""


def _is_simple(items: Sequence[LogItem]) -> bool:
    return all(len(item.entries) == 1 for item in items)


def _fields(entries: Sequence[Entry]) -> dict[str, list[Any]]:
    return {
        "direction": [int(one.direction) for one in entries],
        "step": [one.step for one in entries],
        "outcome": [int(one.outcome) for one in entries],
        "ago": [-float(one.seconds) for one in entries],
        "worker": [cut(one.worker, WORKER_LENGTH) for one in entries],
        "result": [one.result for one in entries],
        "data": [one.data for one in entries],
        "code": [cut(one.error_code, CODE_LENGTH) for one in entries],
        "message": [cut(one.error_message) for one in entries],
    }


def _logged(
    items: Sequence[LogItem], count: int, held: Sequence[str] | None, written: Sequence[str] | None
) -> list[Logged]:
    """`held` and `written` are keys; they come only if not everything was written."""
    if count == len(items):
        return [Logged.WRITTEN] * count
    ours, done = set(held or ()), set(written or ())
    keys = [f"{item.claimed.position} {int(item.entries[0].direction)} {item.entries[0].step}" for item in items]
    return [Logged.WRITTEN if key in done else Logged.DONE_BEFORE if key in ours else Logged.LEASE_LOST for key in keys]


def _byte_strings(values: Sequence[bytes | None]) -> str:
    return texts(None if value is None else rf"\x{value.hex()}" for value in values)


_ARRAYS: dict[str, Callable[[Any], str]] = {
    "smallint": numbers,
    "float8": numbers,
    "text": texts,
    "bytea": _byte_strings,
}
