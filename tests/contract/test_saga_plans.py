"""Lists and counts of sagas read few rows, however many sagas have ended: measured on each database."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import make_url

from postroom.rules.saga_state import SagaState
from postroom.store.admin.saga_filter import SagaFilter
from postroom.store.admin.sagas import Sagas
from postroom.store.connections.kinds import driver_kind
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.steps import Query, run
from tests.contract.plan_support import explain
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Result, Steps
    from tests.conftest import FreshDatabase

    Execute = Callable[[Query], Result]

ENDED = 200_000
"""One in a hundred was compensated."""
OPEN = 800
"""In all stored states, of two names, one in two going back."""
PAGE = 50
MOST = {"postgresql": 10 * PAGE, "mariadb": 20 * PAGE, "sqlite": 2_000 * PAGE}
"""Rows that a statement may look at for a page; on SQLite, steps of its machine. To read all would be far more."""

_NUMBERS = {
    "postgresql": "(SELECT n FROM generate_series({first}, {last}) n) numbers",
    "mariadb": "(SELECT seq AS n FROM seq_{first}_to_{last}) numbers",
    "sqlite": "(WITH RECURSIVE r (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM r WHERE n < {last}) "
    "SELECT n FROM r) numbers",
}
_SAGAS = """
    INSERT INTO {saga} (position, name, id, direction, outcome)
    SELECT n, CASE WHEN n % 2 = 0 THEN 'orders' ELSE 'returns' END, n, {direction}, {outcome} FROM {numbers}"""
_DELIVERIES = """
    INSERT INTO {delivery} (state, queue, position, error_code)
    SELECT n % 4, CASE WHEN n % 2 = 0 THEN 'saga:orders' ELSE 'saga:returns' END, n,
        CASE WHEN n % 20 = 1 THEN 'STEP_MISSING' ELSE '' END FROM {numbers}"""


def fill(kind: str, names: Names, execute: Execute) -> None:
    """Ended sagas, and open ones among them: the newest and the oldest."""
    parts = {(1, OPEN // 2): True, (OPEN // 2 + 1, ENDED): False, (ENDED + 1, ENDED + OPEN // 2): True}
    for (first, last), is_open in parts.items():
        words = {**names.mapping(), "numbers": _NUMBERS[kind].format(first=first, last=last)}
        compensated = "CASE WHEN n % 100 = 0 THEN {} ELSE {} END"
        words |= {"direction": compensated.format(1, 0), "outcome": compensated.format(2, 1)}
        if is_open:
            words |= {"direction": "(n / 4) % 2" if kind != "mariadb" else "(n DIV 4) % 2", "outcome": "0"}
            execute(Query(_DELIVERIES.format(**words)))
        execute(Query(_SAGAS.format(**words)))


class Measured:
    """A database with many sagas, and what a statement costs there."""

    def __init__(self, kind: str, url: str, stack: ExitStack) -> None:
        self.kind = kind
        store = stack.enter_context(closing(Store(url)))
        store.call(lambda connection: upgrade(connection, store.names))
        self.names = store.names
        if kind == "sqlite":
            path = make_url(url).database
            assert path is not None
            self._sqlite = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
            self._execute: Execute = driver_kind(self._sqlite).execute
        elif kind == "postgresql":
            plain = stack.enter_context(psycopg.connect(url, autocommit=True))
            self._execute = driver_kind(plain).execute
        else:
            self._execute = stack.enter_context(store.session())
        fill(kind, self.names, self._execute)

    def analyse(self) -> None:
        tables = self.names.mapping()
        for table in ("saga", "delivery"):
            verb = "ANALYZE TABLE" if self.kind == "mariadb" else "ANALYZE"
            self._execute(Query(f"{verb} {tables[table]}"))

    def costs(self, steps: Steps[object]) -> list[float]:
        """What each statement of an operation costs."""
        costs: list[float] = []

        def measure(query: Query) -> Result:
            costs.append(self._cost(query))
            return self._execute(query)

        run(steps, measure)
        return costs

    def _cost(self, query: Query) -> float:
        if self.kind == "postgresql":
            return max(explain(self._execute, query, generic=generic).visited() for generic in (False, True))
        if self.kind == "mariadb":
            self._execute(Query("FLUSH STATUS"))
            self._execute(query)
            read = self._execute(Query("SHOW SESSION STATUS LIKE 'Handler_read%'"))
            return float(sum(int(count) for _, count in read.rows))
        steps = 0

        def count() -> None:
            nonlocal steps
            steps += 100

        self._sqlite.set_progress_handler(count, 100)
        self._execute(query)
        self._sqlite.set_progress_handler(None, 0)
        return steps


@pytest.fixture(scope="module", params=KINDS)
def measured(request: pytest.FixtureRequest, module_database: FreshDatabase) -> Iterator[Measured]:
    with ExitStack() as stack:
        yield Measured(request.param, module_database(request.param), stack)


OF_A_NAME = "of a name"
"""No index helps with ended ones of a name: without statistics, PostgreSQL reads them all."""
LISTS = {
    "all": SagaFilter(),
    OF_A_NAME: SagaFilter("orders"),
    **{str(state): SagaFilter(states=[state]) for state in SagaState},
    "parked, of a name": SagaFilter("orders", states=[SagaState.PARKED]),
    "with an error": SagaFilter(states=[SagaState.STRANDED], code="STEP_MISSING"),
}


def test_S_5_a_list_reads_few_rows_however_many_sagas_have_ended(measured: Measured) -> None:
    sagas = Sagas(measured.names)
    for round_ in ("never analysed", "analysed"):
        for name, which in LISTS.items():
            if name == OF_A_NAME and round_ == "never analysed":
                continue
            for before in (None, ENDED):
                costs = measured.costs(sagas.listed(which, PAGE, before))
                assert max(costs) <= MOST[measured.kind] + 4 * OPEN, f"{name}, {round_}, before {before}: {costs}"
        measured.analyse()


def test_S_5_open_sagas_are_counted_without_reading_those_that_ended(measured: Measured) -> None:
    most = {"postgresql": 5 * OPEN, "mariadb": 20 * OPEN, "sqlite": 200 * OPEN}
    costs = measured.costs(Sagas(measured.names).open_counts())
    assert max(costs) <= most[measured.kind], costs


def test_S_5_to_read_all_sagas_would_cost_far_more(measured: Measured) -> None:
    """So the limits above mean something."""
    assert max(measured.costs(Sagas(measured.names).ended_counts())) > 2 * MOST[measured.kind]
