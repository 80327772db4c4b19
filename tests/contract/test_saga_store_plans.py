"""The databases' plans for sagas beside 100,000 that have ended: nothing is read from end to end."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from postroom.rules.ordering import NO_LANE
from postroom.rules.saga_plan import SagaOutcome
from postroom.saga import messages
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.stores import Store
from postroom.store.outbox.leases import Claimed
from postroom.store.saga.saga_store import SagaStore
from postroom.store.saga.values import LogItem
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, Result, Steps, run
from tests.contract.plan_support import explain
from tests.contract.stored_sagas import NAME, done, failed, start_message, undone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import FreshDatabase

    Execute = Callable[[Query], Result]

ENDED = 100_000
OPEN = 20_000
"""A quarter of them ready, waiting, to be tried again, and parked."""
TOKEN = 4711
BATCH = 100
TABLES = ("outbox", "outbox_delivery", "outbox_receipt", "saga", "saga_step", "saga_event")

_EACH = {
    "outbox": (
        "position, id, queue, topic, type, payload, content_type, headers, idempotency_key, digest",
        """n, lpad(to_hex(n), 32, '0')::uuid, 'saga:place_order', 'saga:place_order', 'start', '{}', 'application/json',
        '{"postroom-saga-id": "1", "postroom-saga-plan": "[]"}', 'postroom:saga:place_order:' || n, 'digest'""",
    ),
    "saga": (
        "position, name, id, outcome",
        "n, 'place_order', n::text, CASE WHEN n > {ended} THEN 0 ELSE 1 + n % 50 / 49 END",
    ),
    "saga_step": ("position, direction, step, outcome, number", "n, 0, 'step-' || s, 1, s"),
    "saga_event": ("position, message_id, name", "n, lpad(to_hex(n), 32, '0')::uuid, 'parcel'"),
}
EVERYTHING = ENDED + OPEN


def load(execute: Execute) -> None:
    """Fill the tables of PostgreSQL."""
    for table in TABLES:
        execute(Query(f"ALTER TABLE postroom.{table} SET (autovacuum_enabled = off)"))
    for table, (columns, values) in _EACH.items():
        steps = "CROSS JOIN generate_series(0, 2) s" if table == "saga_step" else ""
        chosen = values.replace("{ended}", str(ENDED))
        execute(
            Query(
                f"INSERT INTO postroom.{table} ({columns}) SELECT {chosen} "
                f"FROM generate_series(1, {EVERYTHING}) n {steps}"
            )
        )
    execute(Query(f"SELECT setval(pg_get_serial_sequence('postroom.outbox', 'position'), {EVERYTHING + 1})"))
    execute(
        Query(
            "INSERT INTO postroom.outbox_receipt (position, outcome) "
            f"SELECT n, 'sent' FROM generate_series(1, {ENDED}) n"
        )
    )
    execute(
        Query(
            "INSERT INTO postroom.outbox_delivery (state, queue, lane, position, token, claims, leased_until, due) "
            f"SELECT n % 4, 'saga:place_order', {NO_LANE}, n, {TOKEN}, 1, 'infinity', '2999-01-01' "
            f"FROM generate_series({ENDED + 1}, {EVERYTHING}) n"
        )
    )


@pytest.fixture(scope="module")
def execute(module_database: FreshDatabase) -> Iterator[Execute]:
    url = module_database("postgresql")
    with closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))
    with psycopg.connect(url, autocommit=True) as connection:
        execute = driver_kind(connection).execute
        load(execute)
        yield execute


@pytest.fixture(scope="module", params=["never analysed", "analysed"])
def statistics(request: pytest.FixtureRequest, execute: Execute) -> str:
    if request.param == "analysed":
        for table in TABLES:
            execute(Query(f"ANALYZE postroom.{table}"))
    return str(request.param)


def held(numbers: range, id: str = "") -> list[Claimed]:
    """Instances that a worker holds: every fourth is ready."""
    message = start_message(id or "order-7")
    return [Claimed(number, NO_LANE, TOKEN, 0, 1, message) for number in numbers if number % 4 == 0]


def operations(store: SagaStore, first: int, last: int) -> dict[str, Callable[[], Steps[Any]]]:
    """What workers, callers and operators do to those that are open, at the positions from first to last."""
    claimed, *many = held(range(first, last))
    signal = messages.signal_message(NAME, str(claimed.position), "parcel", None)
    waits = next(number for number in range(first, last) if number % 4 == 1)
    return {
        "start": lambda: store.start(start_message("new"), 60),
        "start again": lambda: existing(store.start(start_message(str(claimed.position), b"other"), 60)),
        "position": lambda: store.position_of(str(claimed.position)),
        "read": lambda: store.read([one.position for one in many[:BATCH]]),
        "holds": lambda: store.holds(claimed),
        "log": lambda: store.log(claimed, [done("reserve", b"1")]),
        "log several": lambda: store.log(claimed, [done("reserve", b"1"), done("charge")]),
        "log with an event": lambda: store.log(claimed, [done("reserve")], event=signal.id),
        "log the end": lambda: store.log(claimed, [undone("reserve")], SagaOutcome.COMPENSATED),
        "log many": lambda: store.log_many([LogItem(one, [done("reserve")]) for one in many[:BATCH]]),
        "end many": lambda: store.log_many([LogItem(one, [done("a")], SagaOutcome.COMPLETED) for one in many[:BATCH]]),
        "turn": lambda: store.turn(claimed, [failed("reserve")], "reserve", "NO", "", token=7),
        "wait": lambda: store.wait(claimed, "delivered", "other", 60),
        "event": lambda: store.wait(claimed, "delivered", "parcel", 60),
        "receive": lambda: store.receive(many[1], str(waits), "parcel", b"1"),
        "park": lambda: store.park(claimed, "reserve", "NO", "", attempted=True),
        "put back": lambda: store.put_back(claimed, "STEP_MISSING", "", 30),
        "abort": lambda: store.abort(str(waits), "ann", ""),
    }


def existing(steps: Steps[Any]) -> Steps[Any]:
    try:
        return (yield from steps)
    except Exception as conflict:  # noqa: BLE001 - the statements count
        return conflict


def statements(steps: Steps[Any], execute: Execute) -> Iterator[Query]:
    """Each statement of an operation, before it is run, in a transaction that is rolled back."""
    execute(Query("BEGIN"))
    try:
        query = next(steps)
        while True:
            if query.text.split()[0] not in {"BEGIN", "START", "COMMIT", "ROLLBACK", "SAVEPOINT"}:
                yield query
                query = steps.send(execute(query))
            else:
                query = steps.send(Result([]))
    except StopIteration:
        pass
    finally:
        execute(Query("ROLLBACK"))


POSTGRESQL = Names.of("postgresql")


@pytest.mark.parametrize("operation", operations(SagaStore(POSTGRESQL, NAME), ENDED + 1, EVERYTHING))
def test_postgresql_finds_sagas_by_their_keys(execute: Execute, statistics: str, operation: str) -> None:
    store = SagaStore(POSTGRESQL, NAME)
    steps = operations(store, ENDED + 1, EVERYTHING)[operation]()
    seen = 0
    for query in statements(steps, execute):
        seen += 1
        for generic in (False, True):
            plan = explain(execute, query, generic=generic, within=True)
            scans = {node.get("Relation Name") for node in plan.nodes if node["Node Type"].endswith("Seq Scan")}
            where = f"{operation}, {statistics}, {'generic' if generic else 'custom'}: {query.text[:2000]} {plan.nodes}"
            assert scans.isdisjoint(TABLES), where
            assert plan.visited() <= 10 * BATCH, where
    assert seen


def test_sqlite_finds_sagas_by_their_keys(fresh_database: FreshDatabase) -> None:
    with closing(Store(fresh_database("sqlite"))) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        sagas = SagaStore(store.names, NAME)
        with store.session() as execute:
            for _ in range(4):
                run(sagas.sql.transaction(sagas.start, start_message(str(uuid4())), 60), execute)
            execute(Query(f"UPDATE {sagas.sql.delivery} SET token = {TOKEN}"))
            for name, operation in operations(sagas, 1, 20).items():
                for query in statements(operation(), execute):
                    plan = execute(Query(f"EXPLAIN QUERY PLAN {query.text}", query.params)).rows
                    tables = {*"dmst", *map(store.names.bare, TABLES)}
                    scans = [row[3] for row in plan if row[3].startswith("SCAN") and row[3].split()[1] in tables]
                    assert not [scan for scan in scans if "USING" not in scan], f"{name}: {query.text}: {scans}"
