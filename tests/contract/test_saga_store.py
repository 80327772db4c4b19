"""Instances of sagas in the database: started, read, logged, ended, turned and parked, on every driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from postroom.errors import IdempotencyConflict
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import SagaOutcome, StepOutcome
from postroom.store.saga.values import Entry, Logged, LogItem
from tests.contract.stored_sagas import FORWARD, NAME, Row, Sagas, done, failed, start_message

if TYPE_CHECKING:
    from postroom.store.sql.steps import Steps
    from tests.contract.store_drivers import Room

DONE, FAILED, SKIPPED = int(StepOutcome.DONE), int(StepOutcome.FAILED), int(StepOutcome.SKIPPED)


@pytest.fixture
def sagas(room: Room) -> Sagas:
    return Sagas(room)


def test_an_instance_begins_with_its_message_its_delivery_and_its_row(room: Room, sagas: Sagas) -> None:
    recorded = sagas.in_transaction(sagas.store.start, start_message("order-7", b'{"n":7}'), 900)
    assert not recorded.duplicate
    position = room.run(sagas.store.position_of("order-7"))
    assert position is not None
    assert room.delivery(position)[:3] == (Stored.READY, f"saga:{NAME}", -1)
    instance = sagas.read(position)
    assert (instance.name, instance.id, instance.rows) == (NAME, "order-7", {})
    assert (instance.direction, instance.outcome) == (FORWARD, SagaOutcome.OPEN)
    assert instance.remaining is not None
    assert 890 < instance.remaining <= 900
    assert 0 <= instance.age < 10
    assert sagas.read(sagas.start()).remaining is None
    assert room.run(sagas.store.position_of("order-8")) is None
    assert room.run(sagas.store.read([])) == room.run(sagas.store.read([10**9])) == {}


def test_the_same_id_and_data_are_the_same_instance_and_other_data_a_conflict(room: Room, sagas: Sagas) -> None:
    position = sagas.start("order-7", data=b'{"n":7}')
    again = sagas.in_transaction(sagas.store.start, start_message("order-7", b'{"n":7}', plan=()), 5)
    assert again.duplicate
    assert room.ids([position]) == [again.id]
    with pytest.raises(IdempotencyConflict):
        sagas.in_transaction(sagas.store.start, start_message("order-7", b'{"n":8}'), None)
    assert room.select("SELECT count(*) FROM {saga}") == [(1,)]
    assert room.positions() == [position]


def test_a_step_is_logged_with_what_it_returned_and_changed(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    result, data = b'"\x00\xff\'\\"', b'{"n":8}'
    first = [Entry(FORWARD, "when", StepOutcome.SKIPPED), done("reserve", result, data=data, worker="web1:7")]
    assert sagas.log(claimed, *first) is Logged.WRITTEN
    assert sagas.log(claimed, done("charge")) is Logged.WRITTEN
    instance = sagas.read(claimed.position)
    assert list(instance.rows) == [(FORWARD, "when"), (FORWARD, "reserve"), (FORWARD, "charge")]
    row = instance.rows[FORWARD, "reserve"]
    assert (row.outcome, row.attempts, row.result, row.data) == (StepOutcome.DONE, 1, result, data)
    assert 0.2 < row.waited < 10  # it ran for a quarter of a second before it was logged
    assert instance.rows[FORWARD, "when"].attempts == 0
    assert room.select("SELECT worker FROM {saga_step} WHERE step = 'reserve'") == [("web1:7",)]
    assert room.delivery(claimed.position).token == claimed.token


def test_a_lost_lease_logs_nothing_and_late_work_that_nobody_took_over_counts(room: Room, sagas: Sagas) -> None:
    late = sagas.running()
    room.advance(31)
    assert sagas.log(late, done("reserve")) is Logged.WRITTEN
    assert room.run(sagas.store.holds(late))
    [other] = sagas.claim(worker="other")
    assert not room.run(sagas.store.holds(late))
    for attempt in (
        lambda: sagas.log(late, done("charge")),
        lambda: sagas.log(late, end=SagaOutcome.COMPLETED),
        lambda: room.run(sagas.store.log_many([LogItem(late, [done("charge")])]))[0],
    ):
        assert attempt() is Logged.LEASE_LOST
    assert not room.run(sagas.store.turn(late, [failed("charge")], "charge", "A", "b", token=7))
    assert not room.run(sagas.store.park(late, "charge", "A", "b", attempted=True))
    assert not room.run(sagas.store.put_back(late, "A", "b", 30))
    assert room.delivery(other.position).token == other.token
    assert list(sagas.steps(other.position)) == [(0, "reserve")]
    assert sagas.row(other.position) == Row(0, 0, "", "", "", "")
    assert room.audit() == []


def test_a_step_on_record_is_not_logged_again_and_stops_no_other(room: Room, sagas: Sagas) -> None:
    first, second = sagas.running(), sagas.running()
    assert sagas.log(first, done("reserve", b"1")) is Logged.WRITTEN
    again = [LogItem(first, [done("reserve", b"2")]), LogItem(second, [done("reserve", b"3")])]
    assert room.run(sagas.store.log_many(again)) == [Logged.DONE_BEFORE, Logged.WRITTEN]
    assert [sagas.read(one.position).rows[FORWARD, "reserve"].result for one in (first, second)] == [b"1", b"3"]


def test_a_repeated_log_in_the_callers_transaction_says_so(sagas: Sagas) -> None:
    claimed = sagas.running()
    assert sagas.log(claimed, done("reserve")) is Logged.WRITTEN
    with pytest.raises(_RolledBack) as refused:
        sagas.in_transaction(_or_roll_back, sagas.store.log(claimed, [done("reserve")]))
    assert refused.value.args == (Logged.DONE_BEFORE,)


class _RolledBack(Exception):
    pass


def _or_roll_back(steps: Steps[Logged]) -> Steps[None]:
    raise _RolledBack((yield from steps))
