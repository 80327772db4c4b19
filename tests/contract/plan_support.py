"""What the tests of query plans share: a big outbox on PostgreSQL, its statistics, and plans as numbers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from postroom.store.sql.steps import Query, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postroom.store.sql.steps import Result

    Execute = Callable[[Query], Result]

DELIVERED = 1_000_000
SCHEDULED = 1_000_000
PENDING = 100_000
FAILED = 20_000
"""Half of them dead, half waiting for a retry; each on a key of its own, with a pending message behind one in ten."""
DUE_ROWS = 2_000
"""Scheduled ones whose time has come."""

TABLES = ("outbox", "outbox_delivery", "outbox_receipt")

_EVERYTHING = DELIVERED + SCHEDULED + PENDING + FAILED + DUE_ROWS

# Statistics change only when the tests say so.
_NO_AUTOVACUUM = [f"ALTER TABLE postroom.{table} SET (autovacuum_enabled = off)" for table in (*TABLES, "outbox_lane")]
_MESSAGES = f"""
    INSERT INTO postroom.outbox (position, id, topic, payload, content_type)
    SELECT n, lpad(to_hex(n), 32, '0')::uuid, 'orders', '{{}}', 'application/json'
    FROM generate_series(1, {_EVERYTHING}) n"""
_RECEIPTS = f"""
    INSERT INTO postroom.outbox_receipt (position, outcome, attempts)
    SELECT n, 'sent', 0 FROM generate_series(1, {DELIVERED}) n"""
_FAILED_DELIVERIES = f"""
    INSERT INTO postroom.outbox_delivery (state, lane, position, key_hash, due)
    SELECT CASE WHEN n % 4 < 2 THEN 2 ELSE 3 END, n % 16, n, n, statement_timestamp() + interval '1 day'
    FROM generate_series({DELIVERED + 1}, {DELIVERED + FAILED}) n"""
# Scheduled and pending ones in turn; half of them have a key.
_OTHER_DELIVERIES = f"""
    INSERT INTO postroom.outbox_delivery (state, lane, position, key_hash, due)
    SELECT CASE WHEN pending THEN 0 ELSE 1 END, CASE WHEN keyed THEN key_hash % 16 ELSE -1 END, n,
        CASE WHEN keyed THEN key_hash END,
        CASE WHEN pending THEN '-infinity' WHEN due THEN statement_timestamp() - interval '1 minute'
            ELSE statement_timestamp() + interval '30 days' + n * interval '1 ms' END
    FROM (
        SELECT n, n % 11 = 0 AS pending, n > {_EVERYTHING - DUE_ROWS} AS due, n % 2 = 0 AS keyed,
            CASE WHEN n % 1100 = 0 THEN {DELIVERED} + n % {FAILED} ELSE 10000000 + n % 5000 END AS key_hash
        FROM generate_series({DELIVERED + FAILED + 1}, {_EVERYTHING}) n
    ) new"""


def load(url: str) -> None:
    """Fill the tables, side by side: what is delivered, scheduled far ahead, due, failed and pending."""
    _execute(url, _NO_AUTOVACUUM)
    with ThreadPoolExecutor() as threads:
        parts = [[_MESSAGES], [_FAILED_DELIVERIES, _OTHER_DELIVERIES], [_RECEIPTS]]
        for loaded in [threads.submit(_execute, url, part) for part in parts]:
            loaded.result()


def _execute(url: str, statements: Sequence[str]) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def forget_statistics(execute: Execute) -> None:
    """Bring the tables back to the state before their first ANALYZE."""
    execute(Query("SET allow_system_table_mods = on"))
    for table in TABLES:
        execute(Query(f"DELETE FROM pg_statistic WHERE starelid = 'postroom.{table}'::regclass"))
        execute(Query(f"UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = 'postroom.{table}'::regclass"))


def statistics_of_nothing(execute: Execute) -> None:
    """Give the deliveries the statistics of a moment when all were settled, and the table had kept its pages."""
    forget_statistics(execute)
    execute(
        Query(
            "UPDATE pg_class SET reltuples = 0, relpages = pg_relation_size(oid) / 8192 "
            "WHERE oid = 'postroom.outbox_delivery'::regclass"
        )
    )


def analyse(execute: Execute) -> None:
    for table in TABLES:
        execute(Query(f"ANALYZE postroom.{table}"))


def statistics_of(execute: Execute, rows: str) -> None:
    """Give the deliveries the statistics of another time, when the table held only these rows."""
    forget_statistics(execute)
    execute(Query("CREATE TABLE at_that_time (LIKE postroom.outbox_delivery INCLUDING DEFAULTS)"))
    execute(Query(f"INSERT INTO at_that_time (state, lane, position, key_hash, due) {rows}"))
    execute(Query("ANALYZE at_that_time"))
    execute(
        Query(
            "UPDATE pg_statistic SET starelid = 'postroom.outbox_delivery'::regclass "
            "WHERE starelid = 'at_that_time'::regclass"
        )
    )
    execute(Query("DROP TABLE at_that_time"))


@dataclass(frozen=True)
class Plan:
    """A plan that was run: which ways it took to the rows, and how many it looked at."""

    nodes: list[dict[str, Any]]
    milliseconds: float

    def sequential(self) -> list[str]:
        """Tables that were read from end to end; the sixteen rows of lanes do not count."""
        scans = (node["Relation Name"] for node in self.nodes if node["Node Type"].endswith("Seq Scan"))
        return [table for table in scans if table in TABLES]

    def indexes(self, table: str) -> set[str]:
        names = {node["Index Name"] for node in self.nodes if "Index Name" in node}
        return {name for name in names if name.startswith(f"{table}_") and not name.startswith("outbox_receipt")}

    def visited(self) -> float:
        """The most rows that one node looked at, taken or not."""
        return max(map(_looked_at, self.nodes))

    def thrown_away(self) -> float:
        """Rows that were fetched only to be filtered out."""
        return float(sum(node.get("Rows Removed by Filter", 0) * node["Actual Loops"] for node in self.nodes))


def explain(execute: Execute, query: Query, *, generic: bool, within: bool = False) -> Plan:
    """Prepare the statement, run it and take it back; `within`: in a transaction that is open."""
    begin, take_back = ("SAVEPOINT explained", "ROLLBACK TO SAVEPOINT explained") if within else ("BEGIN", "ROLLBACK")
    text, order = render(query.text, "numeric_dollar")
    values = ", ".join(sql.Literal(query.params[name]).as_string() for name in order)
    given = f"({values})" if values else ""
    execute(Query(f"SET plan_cache_mode = force_{'generic' if generic else 'custom'}_plan"))
    execute(Query(f"PREPARE statement AS {text}"))
    execute(Query(begin))
    try:
        [[[explained]]] = execute(Query(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE statement {given}")).rows
    finally:
        execute(Query(take_back))
        execute(Query("DEALLOCATE statement"))
    return Plan(list(_nodes(explained["Plan"])), explained["Execution Time"])


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _looked_at(node: dict[str, Any]) -> float:
    removed = sum(
        node.get(f"Rows Removed by {how}", 0) for how in ("Filter", "Join Filter", "Index Recheck", "Conflict Filter")
    )
    return float((node["Actual Rows"] + removed) * node["Actual Loops"])
