"""Inbox.once and Inbox.barrier: each effect once, on every kind of connection, and under concurrency."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroom import Inbox, RetryPolicy
from postroom.errors import InvalidMessage, InvalidSetting
from postroom.rules.saga_calls import call_headers
from postroom.rules.saga_plan import Direction
from postroom.store.sql.db_errors import is_lock_timeout, is_undone
from tests.contract.connection_kinds import KINDS
from tests.contract.schema_support import engine_for, execute
from tests.contract.write_support import business_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from tests.contract.connection_callers import Caller
    from tests.contract.write_support import Database, Databases

INBOX = Inbox("billing")
DO, UNDO = Direction.FORWARD, Direction.BACK
each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])


class Effects:
    """A handler of the caller's kind, sync or async, that counts its calls."""

    def __init__(self, caller: Caller) -> None:
        self.calls = 0
        self.function: Callable[[int], Any] = self._async if caller.runner else self._sync

    def _sync(self, number: int) -> int:
        self.calls += 1
        return number * 2

    async def _async(self, number: int) -> int:
        return self._sync(number)


@each_kind
def test_I_1_once_runs_the_function_the_first_time_alone(caller: Caller, database: Database) -> None:
    effects, identifier = Effects(caller), uuid4()
    done = caller.inbox(INBOX, "once", identifier, effects.function, 21)
    assert (bool(done), done.first_time, done.result) == (True, True, 42)
    caller.commit()
    caller.begin()
    again = caller.inbox(INBOX, "once", str(identifier), effects.function, number=21)
    assert (bool(again), again.first_time, again.result) == (False, False, None)
    caller.commit()
    assert effects.calls == 1
    assert database.has_mark("billing", identifier)


@each_kind
def test_I_1_once_forgets_what_was_rolled_back(caller: Caller, database: Database) -> None:
    effects, identifier = Effects(caller), uuid4()
    assert caller.inbox(INBOX, "once", identifier, effects.function, 1)
    statement, row = business_row()
    caller.sql(statement)
    caller.rollback()
    assert not database.has_mark("billing", identifier)
    assert not database.has_business(row)
    caller.begin()
    assert caller.inbox(INBOX, "once", identifier, effects.function, 1)
    caller.commit()
    assert effects.calls == 2


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.name == "sqlite3"])
def test_I_1_once_refuses_what_it_cannot_run_before_it_marks(caller: Caller, database: Database) -> None:
    async def later() -> None: ...

    identifier = uuid4()
    with pytest.raises(InvalidSetting, match=r"later is async: use `await inbox.aonce\(…\)` with an async connection"):
        INBOX.once(caller.connection, identifier, later)
    with pytest.raises(InvalidSetting, match="the function of once is of type int, which cannot be called"):
        INBOX.once(caller.connection, identifier, 7)  # type: ignore[arg-type]  # a mistake of the caller's
    caller.commit()
    assert not database.has_mark("billing", identifier)


def call(step: str, direction: Direction) -> dict[str, str]:
    return call_headers("place_order", "order-7", step, direction)


@each_kind
def test_S_4_repeated_empty_and_hanging_calls_are_stopped_at_the_barrier(caller: Caller) -> None:
    def passes(step: str, direction: Direction) -> bool:
        passed: bool = caller.inbox(INBOX, "barrier", call(step, direction))
        caller.commit()
        caller.begin()
        return passed

    usual, empty, other = (str(uuid4()) for _ in range(3))
    assert [passes(usual, direction) for direction in (DO, DO, UNDO, UNDO, DO)] == [True, False, True, False, False]
    assert [passes(empty, direction) for direction in (UNDO, UNDO, DO, UNDO)] == [False] * 4
    assert passes(other, DO)
    assert caller.inbox(Inbox("shipping"), "barrier", call(usual, DO))  # a service of its own
    caller.rollback()


@each_kind
def test_S_4_the_barrier_forgets_what_was_rolled_back(caller: Caller) -> None:
    step = str(uuid4())
    for direction in (DO, UNDO):
        assert caller.inbox(INBOX, "barrier", call(step, direction))
        caller.rollback()
        caller.begin()
        assert caller.inbox(INBOX, "barrier", call(step, direction))
        caller.commit()
        caller.begin()
    caller.rollback()


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.name == "psycopg"])
def test_S_4_headers_that_are_no_call_leave_the_transaction_as_it_was(caller: Caller) -> None:
    with pytest.raises(InvalidMessage, match=r"header postroom-saga-step of the saga's call is missing"):
        INBOX.barrier(caller.connection, {"postroom-saga": "place_order/7", "postroom-saga-direction": "do"})
    assert INBOX.barrier(caller.connection, {name.upper(): value for name, value in call(str(uuid4()), DO).items()})
    caller.rollback()


ROUNDS = 50


class Undone(Exception):
    """The database undid the transaction, or the handler failed: run it again."""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
def test_S_4_in_random_concurrent_rounds_nothing_is_done_twice_or_left_behind(kind: str, databases: Databases) -> None:
    seed = random.randrange(2**32)  # noqa: S311 - to choose what happens
    chance = random.Random(seed)  # noqa: S311 - to choose what happens
    url = databases[kind].url.render_as_string(hide_password=False)
    with engine_for(url) as engine, ThreadPoolExecutor(4) as threads:
        execute(engine, "CREATE TABLE effect (step varchar(40), direction varchar(10))")
        for _ in range(ROUNDS):
            _round(chance, engine.begin, threads, f"seed {seed}")


def _round(chance: random.Random, begin: Callable[[], Any], threads: ThreadPoolExecutor, shown: str) -> None:
    """Some calls of one step at once, each repeated until it commits; some fail in their handlers before."""
    step = str(uuid4())
    directions = [chance.choice([DO, UNDO]) for _ in range(chance.randint(1, 4))]
    failures = [chance.randint(0, 1) for _ in directions]
    together = threading.Barrier(len(directions))

    def handle(connection: Connection, direction: Direction) -> None:
        if INBOX.barrier(connection, call(step, direction)):
            connection.exec_driver_sql(f"INSERT INTO effect VALUES ('{step}', '{direction.name}')")

    def receive(direction: Direction, failing: int) -> None:
        left = failing
        together.wait(30)

        @RetryPolicy.table([0.001, 0.01, 0.1], max_attempts=50).retrying(retry_on=Undone)
        def attempt() -> None:
            nonlocal left
            try:
                with begin() as connection:
                    handle(connection, direction)
                    if left:
                        left -= 1
                        raise Undone  # noqa: TRY301 - as a handler fails
            except Exception as error:
                if is_undone(error) or is_lock_timeout(error):
                    raise Undone from error
                raise

        attempt()

    list(threads.map(receive, directions, failures))
    with begin() as connection:
        found = connection.exec_driver_sql(f"SELECT direction FROM effect WHERE step = '{step}'").scalars().all()
    done, undone = found.count("FORWARD"), found.count("BACK")
    expected = {(0, 0), (1, 1)} if UNDO in directions else {(1, 0)}
    if DO not in directions:
        expected = {(0, 0)}
    assert (done, undone) in expected, (shown, directions, failures)
