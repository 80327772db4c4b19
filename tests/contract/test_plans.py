"""The databases' plans for the lease protocol: on PostgreSQL with a million delivered, a million scheduled and more.

They must not depend on statistics: those are missing after `init`, and soon out of date in tables whose size swings
between nothing and millions. Nor on the settings of the store's sessions, which PgBouncer may drop.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom.message import Message
from postroom.rules.ordering import NO_LANE, Order
from postroom.store.admin.backlog import BacklogReader
from postroom.store.admin.inspection.traffic import Traffic
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.stores import Store
from postroom.store.outbox.leases import Claimed, Dead, GivenBack, Lane, Retry, Sent
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.writers import WRITERS
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, Steps, run
from postroom.store.stream.records import LOOKED_AT, StreamRecords
from tests.contract.plan_support import (
    DUE_ROWS,
    analyse,
    explain,
    forget_statistics,
    load,
    statistics_of,
    statistics_of_nothing,
)
from tests.contract.store_drivers import lost_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.sql.steps import Result, Row
    from tests.conftest import FreshDatabase
    from tests.contract.plan_support import Execute

    Shown = Callable[..., None]

BATCH = 500
LANES = 16
TOKEN = 4711
KEY = "outbox_delivery_key"
DUE = "outbox_delivery_due"
PRIMARY_KEY = "outbox_delivery_pkey"

NAMES = Names.of("postgresql")
HOLD = QueueStore(NAMES)
SKIP = QueueStore(NAMES, order=Order.SKIP)
STREAM = StreamRecords(NAMES)


@pytest.fixture(scope="module")
def url(module_database: FreshDatabase) -> str:
    url = module_database("postgresql")
    store = new_store(url)
    load(url)
    with store.session() as execute:
        # What is settled and renewed in these tests is held by one worker: all lanes, and the first messages.
        execute(Query(f"UPDATE postroom.outbox_lane SET token = {TOKEN}, leased_until = 'infinity'"))
        execute(
            Query(
                f"UPDATE postroom.outbox_delivery SET token = {TOKEN}, leased_until = 'infinity' WHERE ctid IN ("
                "SELECT ctid FROM postroom.outbox_delivery WHERE state = 0 AND queue = 'default' AND lane = -1 "
                f"ORDER BY position LIMIT {BATCH})"
            )
        )
    store.close()
    return url


@pytest.fixture(scope="module")
def sessions(url: str) -> Iterator[dict[str, Execute]]:
    store = Store(url)
    with store.session() as with_settings, psycopg.connect(url, autocommit=True) as plain:
        yield {"the store's session": with_settings, "a plain session": driver_kind(plain).execute}
    store.close()


OUTAGE = """
    SELECT 2, n % 17 - 1, n, n % 500, statement_timestamp() - interval '1 hour' FROM generate_series(1, 20000) n"""
QUIET = "SELECT 1, n % 17 - 1, n, n % 500, statement_timestamp() + n * interval '1 s' FROM generate_series(1, 20000) n"
BUSY = "SELECT 0, n % 17 - 1, n, n % 500, '-infinity' FROM generate_series(1, 20000) n"

STATISTICS: dict[str, Callable[[Execute], None]] = {
    "never analysed": forget_statistics,
    "analysed": analyse,
    "of a moment when all was settled": statistics_of_nothing,
    "of an outage, when all had failed": lambda execute: statistics_of(execute, OUTAGE),
    "of a quiet time, when all was scheduled": lambda execute: statistics_of(execute, QUIET),
    "of a busy time, when all was pending": lambda execute: statistics_of(execute, BUSY),
}


@pytest.fixture(scope="module", params=STATISTICS)
def statistics(request: pytest.FixtureRequest, sessions: dict[str, Execute]) -> str:
    name: str = request.param
    STATISTICS[name](sessions["a plain session"])
    return name


@pytest.fixture
def shown(sessions: dict[str, Execute], statistics: str) -> Shown:
    """Give `shown(operation, indexes, rows)`: its first statement takes these indexes, and looks at few more rows."""

    def shown(steps: Steps[object], indexes: set[str], rows: int = BATCH) -> None:
        query = next(steps)
        for session, generic in product(sessions, (False, True)):
            plan = explain(sessions[session], query, generic=generic)
            where = f"with a {'generic' if generic else 'custom'} plan in {session}, statistics {statistics}: {plan}"
            assert plan.sequential() == [], where
            assert plan.indexes("outbox_delivery") == indexes, where
            assert plan.visited() <= 2 * rows + 2 * LANES, where
            assert plan.thrown_away() <= rows + LANES * LANES, where

    return shown


@pytest.fixture(scope="module")
def mine(sessions: dict[str, Execute]) -> list[Claimed]:
    """Messages that are leased, one by one and by their lanes, a batch of each."""
    message = Message.new("orders")
    rows: list[Row] = []
    for which in (f"lane = -1 AND token = {TOKEN}", "lane >= 0"):
        found = sessions["a plain session"](
            Query(
                "SELECT position, lane FROM postroom.outbox_delivery WHERE state = 0 AND queue = 'default' "
                f"AND {which} ORDER BY position LIMIT {BATCH}"
            )
        )
        rows += found.rows
    assert len(rows) == 2 * BATCH
    return [Claimed(position, lane, TOKEN, 0, 1, message) for position, lane in rows]


def lanes() -> list[Lane]:
    return [Lane(number, TOKEN) for number in range(LANES)]


def test_a_claim_of_what_is_ready_reads_its_batch_in_the_primary_key(shown: Shown) -> None:
    shown(HOLD.rows.claim("worker", BATCH, 30, due=False), {PRIMARY_KEY})


def test_a_claim_of_what_is_due_reads_its_batch_in_the_due_index(shown: Shown) -> None:
    shown(HOLD.rows.claim("worker", BATCH, 30, due=True), {DUE})


@pytest.mark.parametrize("operations", [HOLD, SKIP], ids=["hold", "skip"])
def test_lanes_are_read_by_the_primary_key_with_a_probe_of_the_key_index_for_each_message(
    shown: Shown, operations: QueueStore
) -> None:
    shown(operations.lanes.read(lanes(), BATCH, 15), {PRIMARY_KEY, KEY}, rows=BATCH * LANES)


def test_lanes_promote_what_is_due_by_the_due_index(shown: Shown) -> None:
    shown(HOLD.lanes.promote(lanes()), {DUE}, rows=DUE_ROWS // 2)


def test_receipts_are_settled_by_the_primary_key(shown: Shown, mine: list[Claimed]) -> None:
    shown(HOLD.settlements.settle([Sent(one, "offset 1") for one in mine]), {PRIMARY_KEY}, rows=len(mine))


def test_failures_are_settled_by_the_primary_key(shown: Shown, mine: list[Claimed]) -> None:
    failures = [Dead(one, "X", "no") if one.position % 2 else Retry(one, 5, "X", "no") for one in mine]
    shown(HOLD.settlements.settle(failures), {PRIMARY_KEY}, rows=len(mine))


def test_messages_are_given_back_by_the_primary_key(shown: Shown, mine: list[Claimed]) -> None:
    shown(HOLD.settlements.settle([GivenBack(one) for one in mine]), {PRIMARY_KEY}, rows=len(mine))


def test_leases_are_renewed_by_the_primary_key(shown: Shown, mine: list[Claimed]) -> None:
    shown(HOLD.renewals.renew(mine[:BATCH], lanes(), 30), {PRIMARY_KEY}, rows=BATCH)


def test_the_stream_asks_which_keys_are_held_by_both_indexes_and_looks_at_few_of_each_lane(shown: Shown) -> None:
    hashes = {10_000_000 + n: (10_000_000 + n) % LANES for n in range(BATCH)}
    shown(STREAM.held_keys("default", hashes), {PRIMARY_KEY, KEY}, rows=LOOKED_AT * LANES)


def test_the_stream_finds_what_is_on_record_by_primary_keys(shown: Shown, mine: list[Claimed]) -> None:
    places = [(one.position, one.lane) for one in mine] + [(n, NO_LANE) for n in range(1, BATCH)]
    shown(STREAM.unrecorded(places, {"default", "other"}), {PRIMARY_KEY}, rows=8 * len(places))


def test_a_claim_and_a_renewal_update_rows_in_place(fresh_database: FreshDatabase) -> None:
    """A HOT update: no index entry is written, and the old version goes without a vacuum."""
    store = new_store(fresh_database("postgresql"))
    with store.session() as execute:
        execute(Query("ALTER TABLE postroom.outbox_delivery SET (autovacuum_enabled = off)"))
        execute(
            Query(
                "INSERT INTO postroom.outbox (id, topic, content_type) "
                "SELECT gen_random_uuid(), 'orders', 'text/plain' FROM generate_series(1, 20000)"
            )
        )
        execute(Query("INSERT INTO postroom.outbox_delivery (position) SELECT position FROM postroom.outbox"))
        claims = [run(HOLD.rows.claim("a worker's name", BATCH, 30), execute) for _ in range(20)]
        assert updates(execute) == (10_000, 10_000)
        for claim in claims:
            assert lost_by(run(HOLD.renewals.renew(claim.messages, [], 30), execute)) == ([], [])
        assert updates(execute) == (20_000, 20_000)
    store.close()


def updates(execute: Execute) -> tuple[int, int]:
    """How many updates of deliveries there were, and how many of them were HOT."""
    execute(Query("SELECT pg_stat_force_next_flush()"))
    [counts] = execute(
        Query("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox_delivery'")
    ).rows
    return (counts[0], counts[1])


def statements_of_all_operations(store: Store, operations: QueueStore) -> list[Query]:
    """Every statement on deliveries that the lease protocol makes, run once."""
    writer = WRITERS[store.names.dialect](store.names)
    store.run(operations.sql.transaction(writer.add, [Message.new("t", key=key) for key in [None, *"abcdefgh"] * 5]))
    seen: list[Query] = []
    with store.session() as execute:

        def noting(query: Query) -> Result:
            seen.append(query)
            return execute(query)

        lanes = run(operations.lanes.take("worker", 30), noting)
        run(operations.lanes.promote(lanes), noting)
        ordered = run(operations.lanes.read(lanes, 10, 30), noting).messages
        free = run(operations.rows.claim("worker", 10, 30), noting).messages
        assert lost_by(run(operations.renewals.renew(free, lanes, 30), noting)) == ([], [])
        mine = [*free, *ordered]
        assert run(operations.settlements.settle([Retry(one, 0, "X", "no") for one in mine[::2]]), noting) == []
        assert run(operations.settlements.settle([Sent(one) for one in mine[1::2]]), noting) == []
        assert run(operations.lanes.promote(lanes), noting)
    return [query for query in seen if operations.sql.delivery in query.text and not query.text.startswith("INSERT")]


either_order = pytest.mark.parametrize("order", Order)


@either_order
def test_sqlite_finds_what_it_needs_by_whole_keys(fresh_database: FreshDatabase, order: Order) -> None:
    store = new_store(fresh_database("sqlite"))
    queries = statements_of_all_operations(store, QueueStore(store.names, order=order))
    with store.session() as execute:
        steps = {row[3] for query in queries for row in execute(explained("EXPLAIN QUERY PLAN", query)).rows}
    store.close()
    assert "SEARCH b USING COVERING INDEX postroom_outbox_delivery_key (queue=? AND key_hash=? AND position<?)" in steps
    of_deliveries = {step for step in steps if step.split()[1] in {"b", "d", "f", "postroom_outbox_delivery"}}
    assert not {step for step in of_deliveries if step.startswith("SCAN") or step.endswith("(state=? AND queue=?)")}


@either_order
def test_mariadb_probes_the_key_index_for_each_message(fresh_database: FreshDatabase, order: Order) -> None:
    store = new_store(fresh_database("mariadb"))
    queries = statements_of_all_operations(store, QueueStore(store.names, order=order))
    with store.session() as execute:
        steps = [row for query in queries for row in execute(explained("EXPLAIN", query)).rows]
    store.close()
    probes = {(access, index, length) for _, _, table, access, _, index, length, *_ in steps if table == "b"}
    # All of the index but the position: queue, key and state.
    assert probes == {("ref", "postroom_outbox_delivery_key", "269")}


def test_mariadb_locks_of_what_is_due_only_what_it_takes(fresh_database: FreshDatabase) -> None:
    store = new_store(fresh_database("mariadb"))
    with store.session() as execute:
        for lane in (-1, 3):
            execute(
                Query(
                    "INSERT INTO postroom_outbox_delivery (state, lane, position, key_hash, due) "
                    f"SELECT 2, {lane}, seq + {lane + 1} * 10000, seq, utc_timestamp(6) - INTERVAL seq SECOND "
                    "FROM seq_1_to_10000"
                )
            )
        execute(Query("ANALYZE TABLE postroom_outbox_delivery"))
        operations = QueueStore(store.names)
        lanes = run(operations.lanes.take("worker", 30), execute)
        for operation in (operations.rows.claim("worker", 100, 30), operations.lanes.promote(lanes)):
            before = rows_read(execute)
            run(operation, execute)
            assert rows_read(execute) - before < 5000
    store.close()


@pytest.mark.parametrize("key", [None, "one"])
@pytest.mark.parametrize("sent", [1, 3, 700])
def test_mariadb_settles_a_run_without_waiting_for_its_locked_neighbours(
    fresh_database: FreshDatabase, sent: int, key: str | None
) -> None:
    store = new_store(fresh_database("mariadb"))
    operations = QueueStore(store.names)
    writer = WRITERS[store.names.dialect](store.names)
    store.run(operations.sql.transaction(writer.add, [Message.new("t", key=key) for _ in range(sent + 2)]))
    with store.session() as execute, store.session() as other:
        execute(Query("SET SESSION innodb_lock_wait_timeout = 1"))
        if key is None:
            claimed = run(operations.rows.claim("worker", sent + 2, 30), execute).messages
        else:
            claimed = run(
                operations.lanes.read(run(operations.lanes.take("w", 30), execute), sent + 2, 30), execute
            ).messages
        other(Query("BEGIN"))
        for one in (claimed[0], claimed[-1]):
            locked = f"state = 0 AND queue = 'default' AND lane = {one.lane} AND position = {one.position}"
            other(Query(f"SELECT 1 FROM postroom_outbox_delivery WHERE {locked} FOR UPDATE"))
        assert run(operations.settlements.settle([Sent(one) for one in claimed[1:-1]]), execute) == []
        other(Query("ROLLBACK"))
        assert execute(Query("SELECT count(*) FROM postroom_outbox_receipt")).rows[0] == (sent,)
    store.close()


def test_V_1_mariadb_does_not_read_a_busy_key_once_for_each_of_its_messages(fresh_database: FreshDatabase) -> None:
    store = new_store(fresh_database("mariadb"))
    with store.session() as execute:
        for rows in (
            "SELECT CASE WHEN seq = 1 THEN 3 ELSE 0 END, 3, seq, 77 FROM seq_1_to_5000",
            "SELECT 3, -1, seq, NULL FROM seq_5001_to_10000",
        ):
            execute(Query(f"INSERT INTO postroom_outbox_delivery (state, lane, position, key_hash) {rows}"))
        execute(Query("ANALYZE TABLE postroom_outbox_delivery"))
        [[plain]] = execute(Query("SELECT count(*) FROM postroom_outbox_delivery")).rows
        for read in (BacklogReader(store.names).backlog(), Traffic(store.names).held_keys()):
            before = rows_read(execute)
            run(read, execute)
            assert rows_read(execute) - before < 10 * plain
    store.close()


def rows_read(execute: Execute) -> int:
    """How many rows this session has read in the order of an index: with all that was due, it sorted them."""
    [[_, count]] = execute(Query("SHOW SESSION STATUS LIKE 'Handler_read_next'")).rows
    return int(count)


def explained(how: str, query: Query) -> Query:
    return Query(f"{how} {query.text}", query.params)


def new_store(url: str) -> Store:
    store = Store(url)
    store.call(lambda connection: upgrade(connection, store.names))
    return store
