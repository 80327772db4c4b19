"""The databases' plans for two-phase commits beside 50,000 that are settled: nothing is read from end to end."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from postroom.rules.twophase_ids import transaction_id
from postroom.rules.twophase_plan import Decision
from postroom.store.admin.retention import SettledTransactions, swept
from postroom.store.admin.transactions import Transactions
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query
from postroom.store.twophase.log import TwoPhaseLog
from postroom.store.twophase.recovery_queue import RecoveryQueue
from tests.contract.plan_support import explain
from tests.contract.test_saga_store_plans import statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.sql.steps import Result, Steps
    from tests.conftest import FreshDatabase

    Execute = Callable[[Query], Result]

SETTLED, UNSETTLED, OLD = 50_000, 100, 50
MESSAGES = 50_000
BATCH = 100
TABLES = ("twophase", "outbox", "outbox_delivery")
DAY_MS = 86_400_000


def ids() -> list[tuple[str, int]]:
    """Transactions and their deadlines: a few from before the retention, and many within it; the newest last."""
    now = int(time.time() * 1000)
    old = [now - 8 * DAY_MS + n for n in range(OLD)]
    new = [now - DAY_MS + n for n in range(SETTLED + UNSETTLED)]
    return [(transaction_id(deadline, f"{n:012x}"), deadline) for n, deadline in enumerate([*old, *new])]


IDS = ids()
NEW = [tx for tx, _ in IDS[-UNSETTLED:]]


@pytest.fixture(scope="module")
def execute(module_database: FreshDatabase) -> Iterator[Execute]:
    url = module_database("postgresql")
    with closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))
    with psycopg.connect(url, autocommit=True) as connection:
        execute = driver_kind(connection).execute
        for table in TABLES:
            execute(Query(f"ALTER TABLE postroom.{table} SET (autovacuum_enabled = off)"))
        columns = "id, decision, participants, deadline_ms, settled_at"
        with connection.cursor().copy(f"COPY postroom.twophase ({columns}) FROM STDIN") as rows:
            for tx, deadline in IDS[:-UNSETTLED]:
                rows.write_row((tx, 1, "{}", deadline, "2020-01-01"))
            for tx, deadline in IDS[-UNSETTLED:]:
                rows.write_row((tx, 1, "{}", deadline, None))
        execute(
            Query(
                "INSERT INTO postroom.outbox (position, id, topic, content_type, aggregate_id) "
                "SELECT n, lpad(to_hex(n), 32, '0')::uuid, 'orders', 'text/plain', n::text "
                f"FROM generate_series(1, {MESSAGES}) n"
            )
        )
        execute(
            Query(
                "INSERT INTO postroom.outbox_delivery (queue, position) SELECT CASE WHEN n % 1000 = 0 THEN 'twophase' "
                f"ELSE 'default' END, n FROM generate_series(1, {MESSAGES}) n"
            )
        )
        execute(Query(f"SELECT setval(pg_get_serial_sequence('postroom.outbox', 'position'), {MESSAGES + 1})"))
        yield execute


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
def statistics(request: pytest.FixtureRequest, execute: Execute) -> str:
    if request.param == "analysed":
        for table in TABLES:
            execute(Query(f"ANALYZE postroom.{table}"))
    return str(request.param)


def operations(names: Names) -> dict[str, Callable[[], Steps[Any]]]:
    """What coordinators, recovery and operators do."""
    log, listed = TwoPhaseLog(names), Transactions(names)
    soon = int(time.time() * 1000) + 600_000
    new = transaction_id(soon, "0" * 12)
    return {
        "decide": lambda: log.decide(new, {}, soon),
        "open": lambda: log.open(new, {}, soon),
        "decide an open one": lambda: log.decide_open(NEW[0], Decision.COMMIT),
        "resolve": lambda: log._resolve(NEW[0], soon),
        "rows": lambda: log.rows(NEW),
        "unsettled": lambda: log.unsettled(BATCH),
        "unsettled behind some": lambda: log.unsettled(BATCH, after=NEW[10], seconds=60),
        "settle": lambda: log.settle(*NEW[:10]),
        "note a problem": lambda: log.note_problem(NEW[0], "damaged"),
        "clean up": lambda: swept(SettledTransactions(names, 7 * 86_400), BATCH),
        "add to the queue": lambda: RecoveryQueue(names).add(NEW),
        "list": listed.listed,
        "find": lambda: listed.find(NEW[0], lock=True),
        "how recovery goes": lambda: listed.recovery_of(NEW[0]),
    }


@pytest.mark.parametrize("operation", operations(Names.of("postgresql")))
def test_postgresql_finds_transactions_by_their_keys(execute: Execute, statistics: str, operation: str) -> None:
    seen = 0
    for query in statements(operations(Names.of("postgresql"))[operation](), execute):
        seen += 1
        for generic in (False, True):
            plan = explain(execute, query, generic=generic, within=True)
            scans = {node.get("Relation Name") for node in plan.nodes if node["Node Type"].endswith("Seq Scan")}
            where = f"{operation}, {statistics}, {'generic' if generic else 'custom'}: {query.text[:2000]} {plan.nodes}"
            assert scans.isdisjoint(TABLES), where
            assert plan.visited() <= 10 * BATCH, where
    assert seen


def test_sqlite_finds_transactions_by_their_keys(fresh_database: FreshDatabase) -> None:
    with closing(Store(fresh_database("sqlite"))) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        with store.session() as execute:
            for name, operation in operations(store.names).items():
                for query in statements(operation(), execute):
                    plan = execute(Query(f"EXPLAIN QUERY PLAN {query.text}", query.params)).rows
                    tables = {*"dm", *map(store.names.bare, TABLES)}
                    scans = [row[3] for row in plan if row[3].startswith("SCAN") and row[3].split()[1] in tables]
                    assert not [scan for scan in scans if "USING" not in scan], f"{name}: {query.text}: {scans}"
