"""Two-phase commits whose connections are lost at each statement, before and after it takes effect."""

from __future__ import annotations

import itertools
import sqlite3
import threading
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from sqlalchemy.engine import make_url

from postroom import TwoPhaseCommit, schema
from postroom.errors import TransactionAborted, TransactionInDoubt
from postroom.twophase import recovery as recovering
from tests.acceptance.waiting import PATIENCE, POLL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.sql.steps import Query
    from postroom.twophase.lines import Line, Opener
    from tests.conftest import FreshDatabase

TIMEOUT = 3.0
MODES = ("before", "after")


class Fault:
    """Loses the connection at one statement, counted over all connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0
        self._mode = ""
        self.happened = False

    @contextmanager
    def at(self, statement: int, mode: str) -> Iterator[None]:
        """Lose it at this statement, before or after the server has done it."""
        self._left, self._mode, self.happened = statement, mode, False
        yield
        self._left = 0

    def is_now(self) -> str:
        with self._lock:
            self._left -= 1
            self.happened = self.happened or self._left == 0
            return self._mode if self._left == 0 else ""


class FaultyLine:
    """A line whose connection may be lost."""

    def __init__(self, line: Line, fault: Fault) -> None:
        self._line = line
        self._fault = fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)

    def execute(self, query: Query) -> Any:
        mode = self._fault.is_now()
        result = None if mode == "before" else self._line.execute(query)
        if mode:
            self._line.given.close()  # the driver's own: the server notices at once
            self._line.break_off()
            raise ConnectionResetError("lost")
        return result


def make_faulty(opener: Opener, fault: Fault) -> None:
    plain = opener.open
    opener.open = lambda: FaultyLine(plain(), fault)  # type: ignore[method-assign]  # all that a line has


class Bank:
    """Accounts in a database of one kind."""

    def __init__(self, url: str) -> None:
        self._at = make_url(url)
        schema.create(url)
        self.execute("CREATE TABLE accounts (id VARCHAR(50) PRIMARY KEY)")

    def connect(self) -> Any:
        at = self._at
        if at.get_backend_name() == "postgresql":
            return psycopg.connect(at.set(drivername="postgresql").render_as_string(hide_password=False))
        options: dict[str, Any] = {"host": at.host, "user": at.username, "password": at.password or ""}
        return pymysql.connect(**options, port=at.port or 3306, database=at.database, autocommit=True)

    def execute(self, sql: str) -> list[Any]:
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            found = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return found

    def ids(self) -> set[str]:
        return {id_ for [id_] in self.execute("SELECT id FROM accounts")}

    def prepared(self) -> int:
        if self._at.get_backend_name() == "postgresql":
            sql = "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()"
            return int(self.execute(sql)[0][0])
        return len(self.execute("XA RECOVER"))


def log_apart(url: str) -> Callable[[], sqlite3.Connection]:
    schema.create(url)
    return lambda: sqlite3.connect(make_url(url).database or "", check_same_thread=False)


@pytest.fixture(autouse=True)
def recover_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovery leaves the first seconds after a decision to its coordinator: here it is gone."""
    monkeypatch.setattr(recovering, "SETTLING", 0.0)


@pytest.mark.parametrize("holder", ["postgresql", "mariadb", None])
def test_T_1_T_2_a_connection_that_is_lost_at_any_statement_breaks_nothing(
    holder: str | None, fresh_database: FreshDatabase
) -> None:
    banks = {kind: Bank(fresh_database(kind)) for kind in ("postgresql", "mariadb")}
    transfers = TwoPhaseCommit(
        log=holder or log_apart(fresh_database("sqlite")),
        participants={kind: bank.connect for kind, bank in banks.items()},
        timeout=TIMEOUT,
    )
    fault = Fault()
    for opener in {id(one): one for one in (*transfers.openers.values(), transfers.log)}.values():
        make_faulty(opener, fault)

    committed, aborted = transfer_with_faults(transfers, fault)
    assert committed
    assert aborted
    recover_with_faults(transfers, fault, lambda: not any(bank.prepared() for bank in banks.values()))

    ids = [bank.ids() for bank in banks.values()]
    assert ids[0] == ids[1]
    assert committed <= ids[0]
    assert not aborted & ids[0]
    transfers.close()


def transfer_with_faults(transfers: TwoPhaseCommit, fault: Fault) -> tuple[set[str], set[str]]:
    """Lose a connection at each statement of a transaction in turn; returns what was told to have happened, or not."""
    committed, aborted = set(), set()
    for statement in itertools.count(1):
        for mode in MODES:
            one = f"{mode} {statement}"
            try:
                with fault.at(statement, mode), transfers.begin() as transaction:
                    for name in transfers.participants:
                        transaction[name].cursor().execute(f"INSERT INTO accounts VALUES ('{one}')")
            except TransactionAborted:
                aborted.add(one)
            except (TransactionInDoubt, OSError):  # an OSError: it could not begin
                continue
            else:
                committed.add(one)
        if not fault.happened:
            return committed, aborted
    raise AssertionError("unreachable")


def recover_with_faults(transfers: TwoPhaseCommit, fault: Fault, is_done: Callable[[], bool]) -> None:
    """Lose a connection at each statement of recovery in turn, until there is nothing left to recover."""
    end = time.monotonic() + PATIENCE
    for number in itertools.count(2):
        assert time.monotonic() < end
        try:
            with fault.at(number // 2, MODES[number % 2]):
                recovered = transfers.recover()
        except OSError:  # that was the log's connection
            continue
        assert recovered.problems == {}
        if fault.happened:
            continue
        if is_done() and not recovered.waiting:
            return
        time.sleep(POLL)
