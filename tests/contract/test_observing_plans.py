"""What a dashboard reads costs the same however much is stored: measured on PostgreSQL with many rows."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom.rules.lifecycle import State
from postroom.store.admin.change_token import ChangeToken
from postroom.store.admin.dead_letter_groups import GroupedDeadLetters
from postroom.store.admin.inbox_ledger_lookup import InboxLookup, LedgerLookup
from postroom.store.admin.message_filter import Filter
from postroom.store.admin.message_list import MessageList, Wanted
from postroom.store.admin.newest_first import SCAN
from postroom.store.admin.overview import OverviewReader
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.stores import Store
from postroom.store.outbox.flow import Flow
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, run
from tests.contract.plan_support import explain, forget_statistics, statistics_of_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.sql.steps import Result, Steps
    from tests.conftest import FreshDatabase

    Execute = Callable[[Query], Result]

MESSAGES = 200_000
"""One in ten is dead, one in ten pending, the others are sent; one in three has a key."""
NAMES = Names.of("postgresql")
KEYED = "CASE WHEN n % 3 = 0 THEN n % 5000 END"
LANE = "CASE WHEN n % 3 = 0 THEN n % 16 ELSE -1 END"
LOAD = (
    "ALTER TABLE postroom.outbox SET (autovacuum_enabled = off)",
    "ALTER TABLE postroom.outbox_delivery SET (autovacuum_enabled = off)",
    "ALTER TABLE postroom.outbox_receipt SET (autovacuum_enabled = off)",
    f"""INSERT INTO postroom.outbox (position, id, topic, type, payload, content_type, created_at)
    SELECT n, lpad(to_hex(n), 32, '0')::uuid, 'topic.' || n % 20, 'type', '{{}}', 'application/json',
        now() - ({MESSAGES} - n) * interval '1 s' FROM generate_series(1, {MESSAGES}) n""",
    f"""INSERT INTO postroom.outbox_receipt (position, outcome) SELECT n, 'sent' FROM generate_series(1, {MESSAGES}) n
    WHERE n % 10 > 1""",
    f"""INSERT INTO postroom.outbox_delivery (state, lane, position, key_hash, failed_at, error_code, error_message)
    SELECT CASE WHEN n % 10 = 0 THEN 3 ELSE 0 END, {LANE}, n, {KEYED}, now(), 'REJECTED', 'no account ' || n
    FROM generate_series(1, {MESSAGES}) n WHERE n % 10 < 2""",
    "INSERT INTO postroom.inbox (consumer, message_id) SELECT 'c' || n % 3, 'm' || n FROM generate_series(1, 30000) n",
    """INSERT INTO postroom.idempotency (scope, idempotency_key, digest) SELECT 's' || n % 100, 'k' || n, 'd'
    FROM generate_series(1, 30000) n""",
    """INSERT INTO postroom.flow (minute, queue, kind, run)
    SELECT n, 'default', 'sent', 1 FROM generate_series(1, 30000) n""",
)


@pytest.fixture(scope="module")
def sessions(module_database: FreshDatabase) -> Iterator[dict[str, Execute]]:
    url = module_database("postgresql")
    with closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        with psycopg.connect(url, autocommit=True) as connection, store.session() as with_settings:
            for statement in LOAD:
                connection.execute(statement.encode())
            yield {"plain": driver_kind(connection).execute, "ours": with_settings}


STATISTICS: dict[str, tuple[Callable[[Execute], object], str]] = {
    "analysed, in a plain session": (lambda execute: execute(Query("ANALYZE")), "plain"),
    "never analysed": (forget_statistics, "ours"),
    "of a moment when all was settled": (statistics_of_nothing, "ours"),
}


@pytest.fixture(scope="module", params=STATISTICS)
def measured(request: pytest.FixtureRequest, sessions: dict[str, Execute]) -> Callable[[Steps[object]], float]:
    """Give `measured(steps)`: the most rows that a node of one of its statements looks at, whatever is known of them.

    What the planner is told is that of each moment in turn.
    """
    prepare, session = STATISTICS[request.param]
    prepare(sessions["plain"])
    execute = sessions[session]

    def measured(steps: Steps[object]) -> float:
        most = 0.0

        def measure(query: Query) -> Result:
            nonlocal most
            plan = explain(execute, query, generic=False)
            assert plan.sequential() == [], f"{query.text}: {plan}"
            most = max(most, plan.visited())
            return execute(query)

        run(steps, measure)
        return most

    return measured


NOW = datetime.now(UTC)
READS: dict[str, tuple[Callable[[], Steps[object]], int]] = {
    "overview": (lambda: OverviewReader(NAMES, most=1000).overview(), 4_000),
    "change token": (lambda: ChangeToken(NAMES).read(), 1_000),
    "messages": (lambda: MessageList(NAMES).listed(Wanted()), 4_000),
    "sent": (lambda: MessageList(NAMES).listed(Wanted(State.SENT)), 4_000),
    "dead": (lambda: MessageList(NAMES).listed(Wanted(State.DEAD)), 4_000),
    "pending": (lambda: MessageList(NAMES).listed(Wanted(State.PENDING)), 4_000),
    "of a queue": (lambda: MessageList(NAMES).listed(Wanted(queue="default")), SCAN),
    "nothing found": (lambda: MessageList(NAMES).listed(Wanted(topic="none")), SCAN),
    "no error found": (lambda: MessageList(NAMES).listed(Wanted(error="none")), SCAN),
    "a day ago": (lambda: MessageList(NAMES).listed(Wanted(until=NOW - timedelta(days=1))), SCAN),
    "dead letters": (lambda: GroupedDeadLetters(NAMES).listed(), 4_000),
    "no dead letter found": (lambda: GroupedDeadLetters(NAMES).listed(Filter(topic="none")), SCAN),
    "groups": (lambda: GroupedDeadLetters(NAMES).groups(most=1_000), 4_000),
    "marks": (lambda: InboxLookup(NAMES).marks("m-7"), 10),
    "ledger": (lambda: LedgerLookup(NAMES).entries("k7", None, 50), 300),
    "flow": (lambda: Flow(NAMES).by_minute(29_900, 1, None), 200),
}


@pytest.mark.parametrize("read", READS)
def test_V_6_a_page_reads_few_rows_from_an_index(measured: Callable[[Steps[object]], float], read: str) -> None:
    steps, most = READS[read]
    assert measured(steps()) <= most
