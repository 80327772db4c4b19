"""K-1, K-3: of transactions that begin the same key at once one runs, whatever the others see or wait for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroom.errors import LeaseLost
from postroom.idempotency import Conflict, Decision, InProgress, Ledger, Replay, Response, Run, Start, digest_of
from postroom.store.sql.db_errors import code_of
from tests.contract import clock
from tests.contract.connection_kinds import KINDS, Kind
from tests.contract.waiting import waiting
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.connection_callers import Caller

LEDGER = Ledger()
DIGEST = digest_of("POST", "/orders", "", b"{}")
CREATED = Response(201, (), b"{}")
TWINS = 8
BY_NAME = {kind.name: kind for kind in KINDS}

SERIALIZATION_FAILURE = "40001"
DEADLOCK = 1213


def kinds(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", [pytest.param(BY_NAME[name], id=name) for name in names])


on_each_database = kinds("sqlite3", "aiosqlite", "psycopg", "asyncpg", "PyMySQL", "aiomysql")
with_row_locks = kinds("psycopg", "asyncpg", "Session, psycopg", "PyMySQL", "asyncmy")


@pytest.fixture
def other(kind: Kind, database: Database) -> Iterator[Caller]:
    with kind.open(database.url) as caller:
        caller.begin()
        yield caller


@pytest.fixture
def key() -> str:
    return str(uuid4())


def begin(caller: Caller, key: str) -> Decision:
    decision: Decision = caller.ledger(LEDGER, "begin", key, DIGEST)
    return decision


def run_of(decision: Decision) -> Run:
    assert isinstance(decision, Run)
    return decision


def next_transaction(caller: Caller) -> None:
    caller.commit()
    caller.begin()


def at_once(kind: Kind, database: Database, request: Callable[[Caller], Any]) -> list[Any]:
    """What each of several connections gets that make the request at the same time."""
    ready = threading.Barrier(TWINS)

    def one(_: int) -> Any:
        with kind.open(database.url) as caller:
            ready.wait()
            caller.begin()
            return request(caller)

    with ThreadPoolExecutor(TWINS) as threads:
        return list(threads.map(one, range(TWINS)))


def nothing(_caller: Caller, _database: Database, _key: str) -> None:
    """The key is new."""


def abandoned(caller: Caller, database: Database, key: str) -> None:
    run_of(begin(caller, key))
    caller.commit()
    clock.advance(database.store, 31)


def failed(caller: Caller, _: Database, key: str) -> None:
    run = run_of(begin(caller, key))
    assert caller.ledger(LEDGER, "fail", run.entry)
    caller.commit()


def expired(caller: Caller, database: Database, key: str) -> None:
    run = run_of(begin(caller, key))
    caller.ledger(LEDGER, "finish", run.entry, CREATED)
    caller.commit()
    clock.advance(database.store, 90_000)


@on_each_database
@pytest.mark.parametrize("before", [nothing, abandoned, failed, expired])
def test_K_1_of_twins_one_runs_and_the_others_are_told(
    before: Callable[[Caller, Database, str], None], kind: Kind, database: Database, caller: Caller, key: str
) -> None:
    def request(twin: Caller) -> Decision:
        decision = begin(twin, key)
        twin.commit()
        return decision

    before(caller, database, key)
    decisions = at_once(kind, database, request)
    assert sorted(type(decision).__name__ for decision in decisions) == ["InProgress"] * (TWINS - 1) + ["Run"]


@on_each_database
@pytest.mark.parametrize("before", [nothing, abandoned])
def test_K_3_twins_that_do_all_in_one_transaction_have_one_effect(
    before: Callable[[Caller, Database, str], None], kind: Kind, database: Database, caller: Caller, key: str
) -> None:
    effects = []

    def request(twin: Caller) -> Response | None:
        match begin(twin, key):
            case Run(entry):
                statement, row = business_row()
                twin.sql(statement)
                twin.ledger(LEDGER, "finish", entry, CREATED)
                twin.commit()
                effects.append(row)
                return CREATED
            case Replay(response):
                twin.commit()
                return response
            case InProgress() | Conflict():
                return None

    before(caller, database, key)
    assert at_once(kind, database, request) == [CREATED] * TWINS
    assert len(effects) == 1
    assert database.has_business(*effects)


@with_row_locks
def test_K_3_when_the_one_before_is_rolled_back_the_one_that_waits_runs(
    caller: Caller, other: Caller, database: Database, key: str
) -> None:
    run_of(begin(caller, key))
    with waiting(database, lambda: begin(other, key)) as twin:
        caller.rollback()
        assert run_of(twin.result()).start is Start.NEW
    other.commit()


@with_row_locks
def test_K_3_when_the_one_before_commits_the_one_that_waits_gets_its_response(
    caller: Caller, other: Caller, database: Database, key: str
) -> None:
    entry = run_of(begin(caller, key)).entry
    with waiting(database, lambda: begin(other, key)) as twin:
        caller.ledger(LEDGER, "finish", entry, CREATED)
        caller.commit()
        assert twin.result() == Replay(CREATED)
    other.commit()


@with_row_locks
def test_K_3_nobody_waits_for_a_run_that_is_in_progress(caller: Caller, other: Caller, key: str) -> None:
    entry = run_of(begin(caller, key)).entry
    next_transaction(caller)
    caller.ledger(LEDGER, "finish", entry, CREATED)
    assert isinstance(begin(other, key), InProgress)
    next_transaction(other)
    caller.commit()
    assert begin(other, key) == Replay(CREATED)
    other.commit()


@with_row_locks
def test_K_3_a_zombie_waits_for_who_takes_over_and_is_refused(
    caller: Caller, other: Caller, database: Database, key: str
) -> None:
    zombie = run_of(begin(caller, key)).entry
    next_transaction(caller)
    clock.advance(database.store, 31)
    successor = run_of(begin(other, key)).entry
    with waiting(database, lambda: caller.ledger(LEDGER, "finish", zombie, CREATED)) as late:
        other.commit()
        with pytest.raises(LeaseLost):
            late.result()
    caller.rollback()
    other.begin()
    other.ledger(LEDGER, "finish", successor, CREATED)
    other.commit()


@with_row_locks
def test_K_3_who_would_take_over_waits_for_a_run_that_finishes_late_and_gets_its_response(
    caller: Caller, other: Caller, database: Database, key: str
) -> None:
    entry = run_of(begin(caller, key)).entry
    next_transaction(caller)
    clock.advance(database.store, 31)
    caller.ledger(LEDGER, "finish", entry, CREATED)
    with waiting(database, lambda: begin(other, key)) as twin:
        caller.commit()
        assert twin.result() == Replay(CREATED)
    other.commit()


@on_each_database
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "open"])
def test_K_3_a_run_whose_connection_is_lost_frees_its_key(
    committed: bool,  # noqa: FBT001 - a case
    kind: Kind,
    database: Database,
    key: str,
) -> None:
    with kind.open(database.url) as crashed:
        crashed.begin()
        run_of(begin(crashed, key))
        if committed:
            crashed.commit()
    with kind.open(database.url) as caller:
        caller.begin()
        if committed:
            assert isinstance(begin(caller, key), InProgress)
            next_transaction(caller)
            clock.advance(database.store, 31)
        assert run_of(begin(caller, key)).start is (Start.ABANDONED if committed else Start.NEW)
        caller.commit()


@kinds("PyMySQL", "asyncmy", "Session, pymysql")
def test_K_1_a_snapshot_that_is_older_than_a_takeover_does_not_run(
    caller: Caller, other: Caller, database: Database, key: str
) -> None:
    run_of(begin(caller, key))
    next_transaction(caller)
    clock.advance(database.store, 31)
    caller.sql("SELECT 1 FROM business")  # under REPEATABLE READ, what is read from now on is as of now
    successor = run_of(begin(other, key)).entry
    next_transaction(other)
    assert isinstance(begin(caller, key), InProgress)
    next_transaction(caller)
    caller.sql("SELECT 1 FROM business")
    other.ledger(LEDGER, "finish", successor, CREATED)
    other.commit()
    assert not isinstance(begin(caller, key), Run)
    caller.commit()


@kinds("psycopg", "asyncpg")
def test_K_1_under_repeatable_read_one_runs_and_serialization_failures_are_passed_on(
    kind: Kind, database: Database, key: str
) -> None:
    def request(twin: Caller) -> object:
        twin.sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        twin.sql("SELECT 1 FROM business")
        try:
            decision = begin(twin, key)
            twin.commit()
        except Exception as error:  # noqa: BLE001 - the driver's own
            twin.rollback()
            return code_of(error)
        return type(decision)

    answers = at_once(kind, database, request)
    assert answers.count(Run) == 1
    assert set(answers) <= {Run, InProgress, SERIALIZATION_FAILURE}


@kinds("psycopg", "PyMySQL")
def test_K_3_twins_that_wait_for_one_that_is_rolled_back_do_not_run_twice(
    kind: Kind, database: Database, caller: Caller, key: str
) -> None:
    """On MySQL some may be told of a deadlock, and begin again."""
    run_of(begin(caller, key))

    def request(twin: Caller) -> object:
        try:
            decision = begin(twin, key)
            twin.commit()
        except Exception as error:  # noqa: BLE001 - the driver's own
            twin.rollback()
            return code_of(error)
        return type(decision)

    with waiting(database, lambda: at_once(kind, database, request), sessions=TWINS) as twins:
        caller.rollback()
        answers = twins.result()
    assert answers.count(Run) == 1
    assert set(answers) <= {Run, InProgress, DEADLOCK}
