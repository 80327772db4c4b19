"""Partitions on PostgreSQL: add them ahead of time, and truncate those whose messages are all settled and old.

A partition is locked against writers while what must stay is looked for. Producers write to newer ones, so they do not
notice. Then it is truncated, and the few messages that must stay are put back, in the same transaction.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from postroom.rules.partitions import Range, to_add
from postroom.rules.saga_plan import SagaOutcome
from postroom.store.admin.ages import Ages
from postroom.store.schema.partition_ddl import TABLES, partition_statements
from postroom.store.sql.db_errors import is_denied, is_lock_timeout, is_missing_table
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

DAY = 86_400.0
LEFT_TO_PARTITIONS = 2 * DAY
"""Seconds after which old messages are removed row by row, if their partition has not been emptied."""
MOST_KEPT = 10_000
"""With more messages that must stay, a partition is left to be cleaned row by row."""
T = TypeVar("T")

LOCK_TIMEOUT = "SET LOCAL lock_timeout = '500ms'"
"""Whoever wants the lock next waits behind us, so we do not wait for long; the next cleanup tries again."""
_READ_WHOLE = (
    "SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; "
    "SET LOCAL max_parallel_workers_per_gather = 0"
)
"""A partition is read as a whole, unlike what our sessions are set up for, and by one process: there is no hurry."""
_BOUNDS = re.compile(r"FROM \((MINVALUE|'?\d+'?)\) TO \('?(\d+)'?\)")


class Existing(NamedTuple):
    """A partition that is there."""

    name: str
    """Of the outbox's part, without the prefix."""
    range: Range

    @property
    def receipts(self) -> str:
        return self.name.replace(TABLES[0], TABLES[1], 1)


class Partitions(Operations):
    """Reads and changes the partitions of the outbox and its receipts."""

    def existing(self) -> Steps[list[Existing]]:
        """All but the default one, oldest first; none if the outbox is not partitioned."""
        found = yield Query(
            "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c "
            "ON c.oid = i.inhrelid WHERE i.inhparent = to_regclass(:outbox::text) AND c.relispartition",
            {"outbox": self.outbox},
        )
        parts: list[Existing] = []
        for name, bounds in found.rows:
            between = _BOUNDS.search(bounds or "")  # none if another cleanup has just dropped it
            if between is not None:
                start = 0 if between[1] == "MINVALUE" else int(between[1].strip("'"))
                parts.append(Existing(name.removeprefix(self.names.prefix), Range(start, int(between[2]))))
        return sorted(parts, key=lambda part: part.range)

    def next_position(self) -> Steps[int]:
        """The position that the next message gets, or a little more."""
        found = yield Query(
            "SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence(:outbox::text, 'position')::regclass), 0)",
            {"outbox": self.outbox},
        )
        return int(found.rows[0][0]) + 1

    def add_ahead(self, per_day: int) -> Steps[None]:
        """Add the partitions that are missing, unless another cleanup is about to."""
        yield Query(LOCK_TIMEOUT)
        locked = yield Query("SELECT pg_try_advisory_xact_lock(hashtextextended('postroom partitions', 0))")
        parts = yield from self.existing()
        if not (locked.rows[0][0] and parts):
            return
        position = yield from self.next_position()
        for part in to_add(position, parts[-1].range.end, per_day):
            for statement in partition_statements(self.names, part):
                yield Query(statement)

    def empty(self, part: Existing, seconds: float) -> Steps[int | None]:
        """Remove what is settled and old; returns how many messages that were. None if too many must stay."""
        messages, receipts = self.names.table(part.name), self.names.table(part.receipts)
        yield Query(f"{LOCK_TIMEOUT}; {_READ_WHOLE}", script=True)
        yield Query(f"LOCK TABLE ONLY {messages}, ONLY {receipts} IN SHARE ROW EXCLUSIVE MODE")
        is_new = f"NOT r.sent_at <= {self.dialect.later(':ago')}"
        saga = self.tables["saga"]
        within = f"position >= {part.range.start} AND position < {part.range.end}"
        found = yield Query(
            f"SELECT m.position FROM {messages} m LEFT JOIN {receipts} r ON r.position = m.position "
            f"WHERE r.position IS NULL OR {is_new} "
            f"UNION SELECT r.position FROM {receipts} r WHERE {is_new} "
            f"UNION SELECT position FROM {saga} WHERE {within} AND outcome = {int(SagaOutcome.OPEN)} "
            f"LIMIT {MOST_KEPT + 1}",
            {"ago": -float(seconds)},
        )
        if len(found.rows) > MOST_KEPT:
            return None
        kept = whole_numbers(sorted(position for [position] in found.rows))
        stays = f"position IN ({kept})"
        counted = yield Query(f"SELECT count(*), count(*) FILTER (WHERE {stays}) FROM {messages}")
        [[before, staying]] = counted.rows
        if before == staying:
            return 0
        goes = f"{within} AND position NOT IN ({kept})" if found.rows else within
        for table in (self.names.table("outbox_key"), *(self.tables[name] for name in _BESIDE)):
            yield Query(f"DELETE FROM {table} WHERE {goes}")
        copies = {"postroom_messages": messages, "postroom_receipts": receipts} if found.rows else {}
        for copy, table in copies.items():
            yield Query(f"CREATE TEMPORARY TABLE {copy} ON COMMIT DROP AS SELECT * FROM {table} WHERE {stays}")
        streamed: list[int] = []
        if copies:
            # The publication shows what is inserted into the stream, and nothing else. This was read already.
            hidden = yield Query(f"UPDATE {next(iter(copies))} SET streamed = false WHERE streamed RETURNING position")
            streamed = sorted(position for [position] in hidden.rows)
        yield Query(f"TRUNCATE {messages}, {receipts}")
        for copy, table in copies.items():
            yield Query(f"INSERT INTO {table} SELECT * FROM {copy}")
        if streamed:
            yield Query(f"UPDATE {messages} SET streamed = true WHERE position IN ({whole_numbers(streamed)})")
        return int(before - staying)

    def drop(self, part: Existing) -> Steps[bool]:
        """Drop a partition if it is empty. That locks the whole outbox for a moment; returns False if it stays."""
        yield Query(LOCK_TIMEOUT)
        tables = [self.names.table(part.name), self.names.table(part.receipts)]
        yield Query(f"LOCK TABLE ONLY {tables[0]}, ONLY {tables[1]} IN SHARE ROW EXCLUSIVE MODE")
        found = yield Query(" UNION ALL ".join(f"(SELECT 1 FROM {table} LIMIT 1)" for table in tables))
        if found.rows:
            return False
        yield Query(f"DROP TABLE {', '.join(tables)}")
        return True


_BESIDE = ("attempt", "saga_event", "saga_step", "saga")
"""Tables with what belongs to messages and has no partitions."""


class OldPartitions(Partitions):
    """Goes once through the partitions: adds what is missing, and empties and drops what is old, one at a time.

    Does nothing if the outbox is not partitioned, or if the database's user does not own it. A lock that cannot be had
    soon is left for the next time.
    """

    def __init__(self, names: Names, seconds: float) -> None:
        super().__init__(names)
        self.done = names.dialect != "postgresql"
        self._seconds = seconds
        self._ages = Ages(names)
        self._left: list[Existing] | None = None

    def page(self, rows: int) -> Steps[int]:
        """Take the next step; returns how many messages were removed."""
        del rows  # a partition is a page
        if self.done:
            return 0
        if self._left is None:
            self._left = yield from self._begin()
            self.done = not self._left
            return 0
        part = self._left.pop(0)
        self.done = not self._left
        removed = yield from self._unless_locked(self.transaction(self.empty, part, self._seconds))
        if removed is not None:
            yield from self._unless_locked(self.transaction(self.drop, part))
        return removed or 0

    def _begin(self) -> Steps[list[Existing]]:
        """Add partitions ahead; returns those that are old."""
        parts = yield from self.existing()
        if not parts:
            return []
        per_day = yield from self._ages.settled_since(DAY)
        yield from self._unless_locked(self.transaction(self.add_ahead, per_day))
        position = yield from self.next_position()
        last = yield from self._ages.last_settled(self._seconds)
        return [part for part in parts if part.range.end <= min(last + 1, position)]

    def _unless_locked(self, steps: Steps[T]) -> Steps[T | None]:
        try:
            return (yield from steps)
        except Exception as error:
            if is_denied(error):
                self.done = True
                return None
            if not (is_lock_timeout(error) or is_missing_table(error)):  # missing: another cleanup has dropped it
                raise
            return None
