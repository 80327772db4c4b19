"""The log of two-phase commits: one row decides, whoever writes it first, and only before the deadline."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest

from postroom.rules.twophase_ids import transaction_id
from postroom.rules.twophase_plan import Decision
from postroom.store.admin.retention import SettledTransactions, swept
from postroom.store.sql.steps import Query, run
from postroom.store.twophase.log import LogRow, StillDeciding, TwoPhaseLog
from tests.contract.store_drivers import Room, only_on, only_with_row_locks
from tests.contract.waiting import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.sql.steps import Result, Steps

BRANCHES = {"shop": "pr1:0a0b0c0d:x:shop", "bank": "pr1:0a0b0c0d:x:bank:7"}
DAY = 86_400.0
on_each_database = only_on("sqlite3", "psycopg", "asyncpg", "pymysql")


class Log:
    """The log of a room, in one word each."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.steps = TwoPhaseLog(room.names)
        self._numbers = iter(range(1_000_000))

    def new(self, seconds: float = 30) -> tuple[str, int]:
        """A transaction's id, and its deadline in so many seconds."""
        deadline = self.room.run(self.steps.clock()) + int(seconds * 1000)
        return transaction_id(deadline, f"{next(self._numbers):012x}"), deadline

    def decide(self, tx: str, deadline_ms: int) -> bool:
        return self.room.run(self.steps.decide(tx, BRANCHES, deadline_ms))

    def resolve(self, tx: str, deadline_ms: int) -> Decision:
        return self.room.run(self.steps.resolve(tx, deadline_ms))

    def open(self, seconds: float = 30) -> str:
        tx, deadline = self.new(seconds)
        self.room.run(self.steps.open(tx, BRANCHES, deadline))
        return tx

    def committed(self, seconds: float = 30) -> str:
        tx, deadline = self.new(seconds)
        assert self.decide(tx, deadline)
        return tx

    def row(self, tx: str) -> LogRow | None:
        return self.room.run(self.steps.rows([tx])).get(tx)

    def unsettled(self, limit: int = 100, **options: Any) -> list[str]:
        return [row.id for row in self.room.run(self.steps.unsettled(limit, **options))]


@pytest.fixture
def log(room: Room) -> Log:
    return Log(room)


class Holder:
    """The holder's connection, in a transaction that ends when the test says so."""

    def __init__(self, execute: Callable[[Query], Result]) -> None:
        self.execute = execute

    def run(self, steps: Steps[Any]) -> Any:
        return run(steps, self.execute)

    def end(self, how: str) -> None:
        self.execute(Query(how))


@pytest.fixture
def holder(room: Room) -> Iterator[Holder]:
    with room.producer.session() as execute:
        execute(Query(room.dialect.begin))
        yield Holder(execute)


class _Watched:
    """The room as `waiting` looks at it."""

    def __init__(self, room: Room) -> None:
        self.store = room.producer
        self.rows = room.select


@contextmanager
def held_up(room: Room, steps: Steps[Any]) -> Iterator[Callable[[], Any]]:
    """Run an operation on the room's driver, and go on when it waits for a lock."""
    with waiting(_Watched(room), lambda: room.run(steps)) as background:  # type: ignore[arg-type]  # all that it uses
        yield background.result


def test_the_scope_is_made_once(room: Room, log: Log) -> None:
    scope = room.run(log.steps.scope())
    assert len(bytes.fromhex(scope)) == 4
    assert room.run(log.steps.scope()) == room.producer.run(log.steps.scope()) == scope


@on_each_database
def test_of_two_who_make_the_scope_at_once_both_get_the_same(room: Room, log: Log) -> None:
    others: list[str] = []

    def overtaken(execute: Callable[[Query], Result], query: Query) -> Result:
        if query.text.startswith("INSERT"):  # it has seen none
            others.append(room.run(log.steps.scope()))
        return execute(query)

    with room.producer.session() as execute:
        assert [run(log.steps.scope(), partial(overtaken, execute))] == others


def test_the_clock_does_not_depend_on_the_time_zone(room: Room, log: Log) -> None:
    zone = {"postgresql": "SET TIME ZONE '{}'", "mysql": "SET time_zone = '{}'"}.get(room.names.dialect, "SELECT '{}'")

    def elsewhere() -> Steps[int]:
        yield Query(zone.format("+05:30"))
        now = yield from log.steps.clock()
        yield Query(zone.format("+00:00"))
        return now

    assert abs(room.run(elsewhere()) - time.time() * 1000) < 5_000


def test_T_1_a_decision_is_made_before_the_deadline_alone(log: Log) -> None:
    tx, deadline = log.new()
    assert log.decide(tx, deadline)
    row = log.row(tx)
    assert row is not None
    assert row.decided_at is not None
    assert row._replace(decided_at=None) == LogRow(tx, Decision.COMMIT, BRANCHES, deadline, None, None, "")
    assert abs(row.decided_at.timestamp() - time.time()) < 5
    late, passed = log.new(seconds=-1)
    assert not log.decide(late, passed)
    assert log.row(late) is None


def test_T_1_what_recovery_aborted_is_not_committed_any_more(log: Log) -> None:
    tx, deadline = log.new()
    assert log.resolve(tx, deadline) is Decision.ABORT
    assert not log.decide(tx, deadline)
    assert log.resolve(tx, deadline) is Decision.ABORT
    row = log.row(tx)
    assert row is not None
    assert (row.decision, row.participants) == (Decision.ABORT, {})


def test_T_1_recovery_finds_what_was_decided_though_the_answer_was_lost(log: Log) -> None:
    tx, deadline = log.new()
    assert log.decide(tx, deadline)
    assert log.resolve(tx, deadline) is Decision.COMMIT


@pytest.mark.parametrize(("how", "decision"), [("COMMIT", Decision.COMMIT), ("ROLLBACK", Decision.ABORT)])
def test_T_1_a_decision_that_has_not_committed_is_waited_for_and_then_respected(
    room: Room, log: Log, holder: Holder, how: str, decision: Decision
) -> None:
    tx, deadline = log.new()
    assert holder.run(log.steps.decide(tx, BRANCHES, deadline))
    began = time.monotonic()
    with pytest.raises(StillDeciding, match=tx):
        log.resolve(tx, deadline)
    assert 0.5 < time.monotonic() - began < 20
    holder.end(how)
    assert log.resolve(tx, deadline) is decision


@only_with_row_locks
@pytest.mark.parametrize(("how", "decided"), [("COMMIT", False), ("ROLLBACK", True)])
def test_T_1_who_decides_while_recovery_aborts_waits_for_it(
    room: Room, log: Log, holder: Holder, how: str, *, decided: bool
) -> None:
    tx, deadline = log.new()
    assert holder.run(log.steps._resolve(tx, deadline)) is Decision.ABORT
    with held_up(room, log.steps.decide(tx, BRANCHES, deadline)) as result:
        holder.end(how)
        assert result() is decided


_OWN_ID = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
_CUT_OFF = (psycopg.OperationalError, pymysql.OperationalError)
_KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}


@only_on("psycopg", "pymysql")
def test_T_1_a_holder_that_is_cut_off_before_its_commit_has_not_decided(room: Room, log: Log) -> None:
    tx, deadline = log.new()
    with suppress(*_CUT_OFF), room.producer.session() as execute:
        [[own_id]] = execute(Query(_OWN_ID[room.names.dialect])).rows
        execute(Query(room.dialect.begin))
        assert run(log.steps.decide(tx, BRANCHES, deadline), execute)
        room.execute(_KILL[room.names.dialect].format(own_id))
        execute(Query("COMMIT"))
        raise AssertionError("the connection is still there")
    assert log.resolve(tx, deadline) is Decision.ABORT


@pytest.mark.parametrize("waits", [False, True])
def test_waiting_for_a_second_does_not_outlast_its_transaction(
    room: Room, log: Log, holder: Holder, *, waits: bool
) -> None:
    tx, deadline = log.new()
    if waits:
        holder.run(log.steps.decide(tx, BRANCHES, deadline))
    else:
        holder.end("ROLLBACK")
    limit = {
        "postgresql": "SHOW lock_timeout",
        "mysql": "SELECT @@innodb_lock_wait_timeout",
        "sqlite": "PRAGMA busy_timeout",
    }[room.names.dialect]

    def limits() -> Steps[list[Any]]:
        before = yield Query(limit)
        try:
            yield from log.steps.resolve(tx, deadline)
        except StillDeciding:
            assert waits
        after = yield Query(limit)
        return [before.rows[0][0], after.rows[0][0]]

    before, after = room.run(limits())
    assert before == after


@only_on("psycopg")
@pytest.mark.parametrize(("set_to", "used"), [("off", "on"), ("local", "local"), ("remote_write", "remote_write")])
def test_a_decision_is_durable_though_the_holders_session_commits_asynchronously(
    log: Log, holder: Holder, set_to: str, used: str
) -> None:
    holder.execute(Query(f"SET LOCAL synchronous_commit = '{set_to}'"))
    tx, deadline = log.new()
    holder.run(log.steps.decide(tx, BRANCHES, deadline))
    assert holder.execute(Query("SHOW synchronous_commit")).rows[0][0] == used
    holder.end("ROLLBACK")


def test_an_open_transaction_is_decided_once(room: Room, log: Log) -> None:
    tx = log.open(seconds=-1)
    assert log.resolve(tx, 0) is Decision.OPEN
    assert room.run(log.steps.decide_open(tx, Decision.COMMIT))  # the deadline does not matter
    assert room.run(log.steps.decide_open(tx, Decision.COMMIT))
    assert not room.run(log.steps.decide_open(tx, Decision.ABORT))
    assert room.run(log.steps.resolve_open(tx, Decision.ABORT)) is Decision.COMMIT
    row = log.row(tx)
    assert row is not None
    assert (row.decision, row.participants, row.settled_at) == (Decision.COMMIT, BRANCHES, None)
    aborted = log.open()
    assert room.run(log.steps.resolve_open(aborted, Decision.ABORT)) is Decision.ABORT
    assert not room.run(log.steps.decide_open(aborted, Decision.COMMIT))
    assert log.unsettled() == [tx, aborted]  # its participants may still have to be told
    assert not room.run(log.steps.decide_open("unknown", Decision.COMMIT))
    assert room.run(log.steps.resolve_open("unknown", Decision.COMMIT)) is Decision.ABORT


def test_an_open_transaction_that_is_being_decided_is_left_alone(room: Room, log: Log) -> None:
    tx = log.open()
    with room.producer.session() as execute:
        holder = Holder(execute)
        holder.end(room.dialect.begin)
        assert holder.run(log.steps.decide_open(tx, Decision.COMMIT))
        with pytest.raises(StillDeciding):
            room.run(log.steps.resolve_open(tx, Decision.ABORT))
        holder.end("COMMIT")
    assert room.run(log.steps.resolve_open(tx, Decision.ABORT)) is Decision.COMMIT


def test_what_is_settled_is_not_looked_at_again(room: Room, log: Log) -> None:
    first, second, third, opened = log.committed(10), log.committed(20), log.committed(30), log.open(40)
    aborted, deadline = log.new(-1)
    log.resolve(aborted, deadline)
    assert log.unsettled() == [first, second, third, opened]
    assert log.unsettled(2) == [first, second]
    assert log.unsettled(after=second) == [third, opened]
    assert log.unsettled(seconds=60) == []
    room.run(log.steps.settle(first, opened, "unknown"))
    room.run(log.steps.settle())
    assert log.unsettled() == [second, third, opened]
    settled = log.row(first)
    room.run(log.steps.settle(first))
    assert log.row(first) == settled
    room.advance(61)
    assert log.unsettled(seconds=60) == [second, third, opened]


def test_a_problem_is_on_record_until_the_transaction_is_settled(room: Room, log: Log) -> None:
    aborted, deadline = log.new(-1)
    log.resolve(aborted, deadline)
    room.run(log.steps.note_problem(aborted, "\0only a superuser may finish it: " + "é" * 600))
    [row] = room.run(log.steps.unsettled(10))
    assert (row.id, row.settled_at, len(row.problem)) == (aborted, None, 512)
    assert row.problem.startswith("only a superuser")
    room.run(log.steps.settle(aborted))
    row = log.row(aborted) or row
    assert (row.problem, row.settled_at is None) == ("", False)


def test_a_row_that_somebody_has_spoilt_stops_no_other(room: Room, log: Log) -> None:
    spoilt, other = log.committed(10), log.committed(20)
    room.execute("UPDATE {twophase} SET participants = 'bank' WHERE id = :tx", tx=spoilt)
    assert list(room.run(log.steps.rows([spoilt, other]))) == log.unsettled() == [other]
    assert log.resolve(spoilt, 0) is Decision.COMMIT
    assert [one.participants for one in room.admin().transactions()] == [BRANCHES, {}]


@on_each_database
def test_many_rows_are_read_in_chunks(room: Room, log: Log) -> None:
    known = [log.committed() for _ in range(3)]
    asked = [*known, *(log.new()[0] for _ in range(600))]
    assert set(room.run(log.steps.rows(asked))) == set(known)
    assert room.run(log.steps.rows([])) == {}


def test_L_15_transactions_go_when_they_are_settled_and_their_deadlines_passed_long_ago(room: Room, log: Log) -> None:
    """An abort whose deadline is still ahead must stay, or its coordinator could yet decide to commit."""
    old = {seconds: log.open(seconds) for seconds in (-8 * DAY, -6 * DAY, 60)}
    unsettled = log.open(-8 * DAY)
    for tx in (*old.values(), unsettled):
        room.run(log.steps.resolve_open(tx, Decision.ABORT))
    room.run(log.steps.settle(*old.values()))
    assert room.run(swept(SettledTransactions(room.names, 7 * DAY))) == 0
    room.advance(7.5 * DAY)
    [recent] = [log.open(-8 * DAY)]
    room.run(log.steps.resolve_open(recent, Decision.COMMIT))
    room.run(log.steps.settle(recent))
    told: list[int] = []
    assert room.run(swept(SettledTransactions(room.names, 7 * DAY), 1, told.append)) == sum(told) == 1
    assert log.row(old[-8 * DAY]) is None
    room.run(swept(SettledTransactions(room.names, 0)))
    left = [tx for tx in (*old.values(), unsettled, recent) if log.row(tx)]
    assert left == [old[60], unsettled]
    assert room.admin().cleanup(days=0).transactions == 0
