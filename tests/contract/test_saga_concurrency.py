"""Two workers, an operator and a signal at one instance, at the same time: each rule with two real transactions."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import make_url

from postroom.errors import UnusableConnection
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import PlannedStep, SagaOutcome
from postroom.store.connections.kinds import driver_kind
from postroom.store.saga.values import LOCKED, Aborted, Event, Logged, LogItem, Received
from postroom.store.sql.db_errors import is_undone
from postroom.store.sql.steps import Query, run
from tests.contract.store_drivers import only_on, only_with_row_locks
from tests.contract.stored_sagas import Sagas, done, start_message
from tests.contract.trap_support import until_commit
from tests.contract.waiting import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.store.outbox.leases import Claimed
    from postroom.store.sql.steps import Result, Steps
    from tests.contract.store_drivers import Room

    Execute = Callable[[Query], Result]

on_servers = only_on("psycopg", "asyncpg", "pymysql")
PIVOT = (PlannedStep("charge", pivot=True), PlannedStep("ship"))


@pytest.fixture
def sagas(room: Room) -> Sagas:
    return Sagas(room)


class Other:
    """Another connection with a transaction of its own, which ends when the test says so."""

    def __init__(self, room: Room, execute: Execute) -> None:
        self.execute = execute
        self.begin = Query(room.dialect.begin)

    def run(self, steps: Steps[Any]) -> Any:
        """Run in an open transaction."""
        self.execute(self.begin)
        return run(steps, self.execute)

    def commit(self) -> None:
        self.execute(Query("COMMIT"))


@pytest.fixture
def other(room: Room) -> Iterator[Other]:
    with room.producer.session() as execute:
        yield Other(room, execute)


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


def logged(sagas: Sagas, claimed: Claimed, *steps: str, end: SagaOutcome | None = None) -> Steps[Logged]:
    """A step's log, in a transaction of its own."""
    return sagas.store.sql.transaction(sagas.store.log, claimed, [done(step) for step in steps], end)


@on_servers
def test_nobody_claims_an_instance_whose_step_is_about_to_commit(room: Room, sagas: Sagas, other: Other) -> None:
    """Lock, not only look: after a plain SELECT another worker claimed it, and both effects stayed."""
    claimed = sagas.running()
    room.advance(31)
    assert other.run(sagas.store.log(claimed, [done("reserve")])) is Logged.WRITTEN
    assert sagas.claim(worker="other") == []
    other.commit()
    [again] = sagas.claim(worker="other")
    assert list(sagas.steps(again.position)) == [(0, "reserve")]


@on_servers
def test_a_step_waits_for_a_claim_and_then_finds_its_lease_lost(room: Room, sagas: Sagas, other: Other) -> None:
    claimed = sagas.running()
    room.advance(31)
    if room.driver.kind == "postgresql":
        assert len(other.run(sagas.queue.rows.claim("other", 1, 30, due=False)).messages) == 1
    else:
        until_commit(sagas.queue.rows.claim("other", 1, 30, due=False), other.execute)
    with held_up(room, logged(sagas, claimed, "reserve")) as result:
        other.commit()
        assert result() is Logged.LEASE_LOST
    assert sagas.steps(claimed.position) == {}


@on_servers
def test_two_steps_of_a_group_commit_one_after_the_other(room: Room, sagas: Sagas, other: Other) -> None:
    claimed = sagas.running()
    assert other.run(sagas.store.log(claimed, [done("hotel")])) is Logged.WRITTEN
    with held_up(room, logged(sagas, claimed, "flight")) as result:
        other.commit()
        assert result() is Logged.WRITTEN
    assert set(sagas.steps(claimed.position)) == {(0, "hotel"), (0, "flight")}


@on_servers
@pytest.mark.parametrize("tell", [False, True], ids=["in one statement", "in several"])
def test_the_logs_of_many_do_not_wait_for_one_that_is_locked(
    room: Room, sagas: Sagas, other: Other, *, tell: bool
) -> None:
    """As of a saga that an application aborts in a transaction that it leaves open."""
    aborted, free, gone = (sagas.running(id=f"order-{n}") for n in (1, 2, 3))
    lost = msgspec.structs.replace(gone, token=gone.token + 1)
    assert other.run(sagas.store.abort("order-1", "ann", "")) is Aborted.ABORTED
    told = start_message("told") if tell else None
    items = [LogItem(one, [done("reserve")]) for one in (aborted, lost)]
    items.append(LogItem(free, [done("reserve")], SagaOutcome.COMPLETED, told))
    assert room.run(sagas.store.log_many(items)) == [Logged.LOCKED, Logged.LEASE_LOST, Logged.WRITTEN]
    assert list(sagas.steps(free.position)) == [(0, "reserve")]
    other.commit()
    assert room.run(sagas.store.log_many(items[:1])) == [Logged.LEASE_LOST]


@on_servers
def test_a_repeated_step_waits_for_the_first_and_is_refused(room: Room, sagas: Sagas, other: Other) -> None:
    """As a worker does whose answer to COMMIT was lost, and who has not read again."""
    claimed = sagas.running()
    assert other.run(sagas.store.log(claimed, [done("reserve")])) is Logged.WRITTEN
    with held_up(room, logged(sagas, claimed, "reserve")) as result:
        other.commit()
        assert result() is Logged.DONE_BEFORE


@on_servers
def test_what_a_worker_writes_alone_comes_again_where_its_instance_is_locked(
    room: Room, sagas: Sagas, other: Other
) -> None:
    """It shares a connection with all other instances, which would wait with it."""
    store, claimed = sagas.store, sagas.running(id="order-7")
    signal = signalled(sagas, "order-7")
    writes: dict[str, Callable[[], Steps[Any]]] = {
        "read": lambda: store.sql.unless_locked(store.holds, claimed),
        "turn": lambda: store.turn(claimed, [], "reserve", "TIMEOUT", "", token=77),
        "wait": lambda: store.wait(claimed, "delivered", "parcel", 60),
        "park": lambda: store.park(claimed, "reserve", "TIMEOUT", "", attempted=True),
        "put back": lambda: store.put_back(claimed, "STEP_MISSING", "", 30),
        "signal": lambda: store.receive(signal, "order-7", "parcel", b"1"),
    }
    assert other.run(store.log(claimed, [done("reserve")])) is Logged.WRITTEN
    assert {name: room.run(write()) for name, write in writes.items()} == dict.fromkeys(writes, LOCKED)
    other.commit()
    assert room.run(writes["read"]()) is True
    assert list(sagas.read(claimed.position).rows) == [(0, "reserve")]
    assert room.run(writes["signal"]()) is Received.DELIVERED


@on_servers
def test_an_abort_waits_for_a_step_and_sees_it(room: Room, sagas: Sagas, other: Other) -> None:
    """With a flag for the worker to read, the step committed beside an accepted abort."""
    claimed = sagas.running(id="order-7", plan=PIVOT)
    other.run(sagas.store.log(claimed, [done("charge")]))
    with held_up(room, sagas.store.sql.transaction(sagas.store.abort, "order-7", "ann", "")) as result:
        other.commit()
        assert result() is Aborted.PAST_PIVOT
    assert sagas.row(claimed.position).direction == 0


@on_servers
def test_a_step_waits_for_an_abort_and_cannot_commit(room: Room, sagas: Sagas, other: Other) -> None:
    claimed = sagas.running(id="order-7")
    assert other.run(sagas.store.abort("order-7", "ann", "")) is Aborted.ABORTED
    with held_up(room, logged(sagas, claimed, "reserve")) as result:
        other.commit()
        assert result() is Logged.LEASE_LOST
    assert sagas.steps(claimed.position) == {}


@on_servers
def test_an_abort_finds_a_delivery_that_moves_to_another_state(room: Room, sagas: Sagas, other: Other) -> None:
    claimed = sagas.running(id="order-7")
    until_commit(sagas.store.wait(claimed, "delivered", "parcel", 60), other.execute)
    with held_up(room, sagas.store.sql.transaction(sagas.store.abort, "order-7", "ann", "")) as result:
        other.commit()
        assert result() is Aborted.ABORTED
    assert room.delivery(claimed.position).state == Stored.READY


@on_servers
def test_an_abort_waits_for_the_end_and_comes_too_late(room: Room, sagas: Sagas, other: Other) -> None:
    claimed = sagas.running(id="order-7")
    other.run(sagas.store.log(claimed, [done("ship")], SagaOutcome.COMPLETED))
    with held_up(room, sagas.store.sql.transaction(sagas.store.abort, "order-7", "ann", "")) as result:
        other.commit()
        assert result() is Aborted.ENDED


@contextmanager
def with_an_old_view(room: Room, other: Other) -> Iterator[None]:
    """The other transaction is in REPEATABLE READ, and has read: it sees the rows as they are now, whatever follows."""
    on_postgresql = room.names.dialect == "postgresql"
    begin = Query("BEGIN ISOLATION LEVEL REPEATABLE READ") if on_postgresql else other.begin
    if not on_postgresql:
        other.execute(Query("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    try:
        other.execute(begin)
        other.execute(Query(f"SELECT count(*) FROM {room.tables['delivery']}"))
        yield
        other.commit()
    finally:
        if not on_postgresql:
            other.execute(Query("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"))


@only_on("pymysql")
def test_an_abort_under_repeatable_read_finds_a_delivery_that_moved(room: Room, sagas: Sagas, other: Other) -> None:
    """MariaDB shows a transaction for ever where a row was when it first read."""
    claimed = sagas.running(id="order-7")
    with with_an_old_view(room, other):
        room.run(sagas.store.wait(claimed, "delivered", "parcel", 60))
        assert run(sagas.store.abort("order-7", "ann", ""), other.execute) is Aborted.ABORTED
    assert room.delivery(claimed.position).state == Stored.READY


@only_on("pymysql")
def test_an_abort_under_repeatable_read_sees_that_the_saga_has_ended(room: Room, sagas: Sagas, other: Other) -> None:
    claimed = sagas.running(id="order-7")
    with with_an_old_view(room, other):
        sagas.log(claimed, done("ship"), end=SagaOutcome.COMPLETED)
        assert run(sagas.store.abort("order-7", "ann", ""), other.execute) is Aborted.ENDED


@on_servers
def test_an_abort_under_repeatable_read_undoes_nothing_past_the_pivot(room: Room, sagas: Sagas, other: Other) -> None:
    """The pivot is not in its view: MariaDB is asked for the latest, and PostgreSQL, which has no way to, is not."""
    claimed = sagas.running(id="order-7", plan=PIVOT)
    with with_an_old_view(room, other):
        sagas.log(claimed, done("charge"))
        if room.names.dialect == "postgresql":
            with pytest.raises(UnusableConnection, match="READ COMMITTED"):
                run(sagas.store.abort("order-7", "ann", ""), other.execute)
        else:
            assert run(sagas.store.abort("order-7", "ann", ""), other.execute) is Aborted.PAST_PIVOT
    assert sagas.row(claimed.position).direction == 0


@on_servers
def test_an_event_in_between_is_seen_by_who_begins_to_wait(room: Room, sagas: Sagas, other: Other) -> None:
    """Without the lock, or in the statement that takes it, the event was never seen."""
    claimed = sagas.running(id="order-7")
    signal = signalled(sagas, "order-7")
    until_commit(sagas.store.receive(signal, "order-7", "parcel", b"1"), other.execute)
    wait = partial(sagas.store.wait, claimed, "delivered", "parcel", 60)
    assert room.run(wait()) is LOCKED
    other.commit()
    assert isinstance(room.run(wait()), Event)
    assert room.run(sagas.store.sql.unless_locked(sagas.store.holds, claimed)) is True


@on_servers
def test_an_event_comes_after_who_begins_to_wait_and_wakes_him(room: Room, sagas: Sagas, other: Other) -> None:
    claimed = sagas.running(id="order-7")
    receive = partial(sagas.store.receive, signalled(sagas, "order-7"), "order-7", "parcel", b"1")
    until_commit(sagas.store.wait(claimed, "delivered", "parcel", 60), other.execute)
    assert room.run(receive()) is LOCKED
    other.commit()
    assert room.run(receive()) is Received.DELIVERED
    assert [one.position for one in sagas.claim()] == [claimed.position]


@on_servers
def test_a_zombie_waits_for_the_turn_and_cannot_commit(room: Room, sagas: Sagas, other: Other) -> None:
    claimed = sagas.running()
    until_commit(sagas.store.turn(claimed, [], "reserve", "TIMEOUT", "", token=77), other.execute)
    with held_up(room, logged(sagas, claimed, "reserve")) as result:
        other.commit()
        assert result() is Logged.LEASE_LOST
    assert sagas.steps(claimed.position) == {}


@only_with_row_locks
def test_a_start_and_a_signal_wait_for_nobody(room: Room, sagas: Sagas) -> None:
    """A signal only adds a message, so that a caller never waits for a step that runs."""
    claimed = sagas.running(id="order-7")
    with room.producer.session() as execute:
        execute(Query(room.dialect.begin))
        run(sagas.store.log(claimed, [done("reserve")]), execute)
        sagas.signal("order-7")
        sagas.start()
        execute(Query("ROLLBACK"))


@only_on("psycopg")
def test_above_read_committed_a_heartbeat_in_mid_step_undoes_it(room: Room, sagas: Sagas, other: Other) -> None:
    """PostgreSQL raises 40001, which the worker takes as a reason to run the step again, not as a failed attempt."""
    claimed = sagas.running()
    other.execute(Query("BEGIN ISOLATION LEVEL REPEATABLE READ"))
    other.execute(Query("SELECT 1"))
    assert room.run(sagas.queue.renewals.renew([claimed], [], 30)).lost == []
    with pytest.raises(Exception, match="could not serialize access") as undone:
        run(sagas.store.log(claimed, [done("reserve")]), other.execute)
    assert is_undone(undone.value)
    other.execute(Query("ROLLBACK"))
    other.execute(Query("BEGIN ISOLATION LEVEL REPEATABLE READ"))
    assert run(sagas.store.log(claimed, [done("reserve")]), other.execute) is Logged.WRITTEN
    other.commit()
    assert list(sagas.steps(claimed.position)) == [(0, "reserve")]


@only_on("sqlite3")
@pytest.mark.parametrize("first", ["touch", "read"])
def test_on_sqlite_a_step_touches_its_delivery_before_it_reads(room: Room, sagas: Sagas, first: str) -> None:
    """One that reads first is refused at once as soon as a heartbeat has written: no waiting helps."""
    claimed = sagas.running()
    step = sqlite3.connect(str(make_url(room.url).database), isolation_level=None, timeout=0)
    execute = driver_kind(step).execute
    heartbeat = sqlite3.connect(str(make_url(room.url).database), isolation_level=None, timeout=0)
    try:
        execute(Query("BEGIN"))
        if first == "touch":
            assert run(sagas.store.begin(claimed), execute)
        execute(Query(f"SELECT count(*) FROM {room.tables['outbox']}"))
        renew = f"UPDATE {room.tables['delivery']} SET leased_until = '2999-01-01 00:00:00.000'"
        if first == "touch":
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                heartbeat.execute(renew)  # the heartbeat waits instead, which it can
            assert run(sagas.store.log(claimed, [done("reserve")]), execute) is Logged.WRITTEN
            execute(Query("COMMIT"))
        else:
            heartbeat.execute(renew)
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                run(sagas.store.log(claimed, [done("reserve")]), execute)
    finally:
        step.close()
        heartbeat.close()
    assert bool(sagas.steps(claimed.position)) is (first == "touch")


@only_on("sqlite")
def test_on_sqlite_a_step_that_lost_its_lease_finds_out_before_it_begins(room: Room, sagas: Sagas) -> None:
    late = sagas.running()
    room.advance(31)
    assert len(sagas.claim(worker="other")) == 1
    assert not sagas.in_transaction(sagas.store.begin, late)


def signalled(sagas: Sagas, id: str) -> Claimed:
    """A signal that a worker has claimed."""
    message = sagas.signal(id)
    [signal] = [one for one in sagas.claim() if one.message.id == message.id]
    return signal
