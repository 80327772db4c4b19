"""Instances of sagas in the database: started, read, logged, ended, turned and parked, on every driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from postroom.errors import IdempotencyConflict
from postroom.rules.lifecycle import Stored
from postroom.rules.saga_plan import SagaOutcome, StepOutcome
from postroom.saga import messages
from postroom.store.outbox.leases import Retry
from postroom.store.saga.values import Entry, Logged, LogItem
from tests.contract.store_drivers import only_on
from tests.contract.stored_sagas import BACK, FORWARD, NAME, Row, Sagas, done, failed, start_message, undone

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


def test_the_last_log_ends_the_instance_and_tells_who_waits_for_it(room: Room, sagas: Sagas) -> None:
    parent, child = Sagas(room, "parent"), sagas.running()
    tell = messages.signal_message("parent", "order-1", "shipped", {"n": 1})
    assert sagas.log(child, done("reserve"), end=SagaOutcome.COMPLETED, tell=tell) is Logged.WRITTEN
    assert room.find_delivery(child.position) is None
    assert room.receipts() == {child.position: "sent"}
    assert sagas.row(child.position).outcome == SagaOutcome.COMPLETED
    assert room.select("SELECT count(*) FROM {saga} WHERE ended >= started") == [(1,)]
    [told] = parent.claim()
    assert told.message.id == tell.id
    assert sagas.log(child, done("reserve")) is Logged.LEASE_LOST


def test_an_instance_whose_step_is_refused_does_not_end(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    sagas.log(claimed, done("reserve"))
    tell = messages.signal_message("parent", "order-1", "shipped", None)
    [logged] = room.run(sagas.store.log_many([LogItem(claimed, [done("reserve")], SagaOutcome.COMPLETED, tell)]))
    assert logged is Logged.DONE_BEFORE
    assert sagas.read(claimed.position).outcome is SagaOutcome.OPEN
    assert room.positions() == [claimed.position]


def test_many_are_logged_and_ended_at_once(room: Room, sagas: Sagas) -> None:
    for _ in range(6):
        sagas.start()
    [*going, undone_one, lost, ended] = claimed = sagas.claim()
    room.select("UPDATE {delivery} SET token = 1 WHERE position = :position", position=lost.position)
    tell = messages.signal_message("parent", "order-1", "shipped", {"n": 1})
    logged = room.run(
        sagas.store.log_many(
            [
                LogItem(ended, [done("ship", b"1")], SagaOutcome.COMPLETED, tell),
                *(LogItem(one, [done("reserve", b"2"), done("charge", data=b"{}")]) for one in going),
                LogItem(lost, [done("reserve")]),
                LogItem(undone_one, [], SagaOutcome.COMPENSATED),
            ]
        )
    )
    assert logged == [*[Logged.WRITTEN] * 4, Logged.LEASE_LOST, Logged.WRITTEN]
    assert [sagas.read(one.position).outcome for one in claimed] == [0, 0, 0, 2, 0, 1]
    assert room.receipts() == {ended.position: "sent", undone_one.position: "sent"}
    assert [len(sagas.steps(one.position)) for one in claimed] == [2, 2, 2, 0, 0, 1]
    assert sagas.read(going[1].position).rows[FORWARD, "charge"].data == b"{}"
    assert len(Sagas(room, "parent").claim()) == 1
    assert room.run(sagas.store.log_many([])) == []


def test_several_items_of_one_instance_are_each_judged_alone(room: Room, sagas: Sagas) -> None:
    """As the calls of a group are logged, which end at about the same time."""
    claimed = sagas.running()
    items = [LogItem(claimed, [done(step)]) for step in ("hotel", "flight", "car")]
    assert room.run(sagas.store.log_many(items)) == [Logged.WRITTEN] * 3
    old = msgspec.structs.replace(claimed, token=claimed.token + 1)
    items = [
        LogItem(old, [done("late")]),
        LogItem(claimed, [done("train"), done("taxi")]),
        LogItem(claimed, [done("hotel")]),
        LogItem(claimed, [done("train")]),
        LogItem(claimed, [done("bus")]),
    ]
    lost, before, written = Logged.LEASE_LOST, Logged.DONE_BEFORE, Logged.WRITTEN
    assert room.run(sagas.store.log_many(items)) == [lost, written, before, before, written]
    steps = ["hotel", "flight", "car", "train", "taxi", "bus"]
    assert sagas.steps(claimed.position) == {(0, step): DONE for step in steps}


def test_progress_forgets_what_failed_before_it(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    room.run(sagas.queue.settlements.settle([Retry(claimed, 0, "TIMEOUT", "no answer")]))
    [again] = sagas.claim()
    assert (again.attempts, again.claims) == (1, 1)
    assert sagas.log(again, done("reserve")) is Logged.WRITTEN
    assert sagas.read(again.position).rows[FORWARD, "reserve"].attempts == 2
    delivery = room.delivery(again.position)
    assert (delivery.attempts, delivery.claims, delivery.error_code, delivery.error_message) == (0, 1, "", "")
    room.advance(31)
    [third] = sagas.claim()
    assert third.claims == 2
    [logged] = room.run(sagas.store.log_many([LogItem(third, [done("charge")])]))
    assert logged is Logged.WRITTEN
    assert room.delivery(third.position).claims == 1
    assert sagas.read(third.position).rows[FORWARD, "charge"].attempts == 1


def test_one_of_a_group_that_is_done_keeps_the_attempts_of_the_others(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    room.run(sagas.queue.settlements.settle([Retry(claimed, 0, "TIMEOUT", "no answer")]))
    [again] = sagas.claim()
    assert sagas.log(again, done("hotel"), keeps_attempts=True) is Logged.WRITTEN
    items = [LogItem(again, [done(step)], keeps_attempts=True) for step in ("flight", "car")]
    assert room.run(sagas.store.log_many(items)) == [Logged.WRITTEN] * 2
    delivery = room.delivery(again.position)
    assert (delivery.attempts, delivery.claims, delivery.error_code) == (1, 1, "")
    assert {row.attempts for row in sagas.read(again.position).rows.values()} == {2}
    assert room.run(sagas.store.log_many([LogItem(again, [])])) == [Logged.WRITTEN]  # the group is done
    assert room.delivery(again.position).attempts == 0


@only_on("postgresql")
def test_a_clean_delivery_is_locked_and_not_written(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    [before] = room.select("SELECT xmin::text, ctid::text FROM {delivery}")
    sagas.log(claimed, done("reserve"))
    room.run(sagas.store.log_many([LogItem(claimed, [done("charge")])]))
    assert room.select("SELECT xmin::text, ctid::text FROM {delivery}") == [before]


def test_a_turn_keeps_the_lease_under_a_new_token(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    sagas.log(claimed, done("reserve"))
    room.run(sagas.queue.settlements.settle([Retry(claimed, 0, "TIMEOUT", "no answer")]))
    [claimed] = sagas.claim()
    before = room.delivery(claimed.position)
    entries = [failed("charge"), Entry(BACK, "charge", StepOutcome.SKIPPED)]
    assert room.run(sagas.store.turn(claimed, entries, "charge", "DECLINED", "no money", token=77))
    assert sagas.row(claimed.position) == Row(1, 0, "charge", "DECLINED", "no money", "")
    assert sagas.steps(claimed.position) == {(0, "reserve"): DONE, (0, "charge"): FAILED, (1, "charge"): SKIPPED}
    after = room.delivery(claimed.position)
    assert (after.token, after.attempts, after.claims, after.error_code) == (77, 0, 1, "")
    assert (after.state, after.owner, after.leased_until) == (before.state, before.owner, before.leased_until)
    # A function that timed out was left behind with the old token: its step must not commit any more.
    assert sagas.log(claimed, done("ship")) is Logged.LEASE_LOST
    going_back = msgspec.structs.replace(claimed, token=77)
    assert sagas.log(going_back, undone("reserve"), end=SagaOutcome.COMPENSATED) is Logged.WRITTEN
    assert sagas.row(claimed.position).outcome == SagaOutcome.COMPENSATED
    instance = sagas.read(claimed.position)
    assert (instance.failed_step, instance.error_code, instance.error_message) == ("charge", "DECLINED", "no money")


def test_a_turn_is_refused_when_the_step_was_done_after_all(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    sagas.log(claimed, done("reserve"))
    assert not room.run(sagas.store.turn(claimed, [failed("reserve")], "reserve", "TIMEOUT", "", token=77))
    assert sagas.row(claimed.position).direction == FORWARD
    assert room.delivery(claimed.position).token == claimed.token
    assert sagas.steps(claimed.position) == {(0, "reserve"): DONE}


def test_a_turn_without_a_step_has_its_reason_alone(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    assert room.run(sagas.store.turn(claimed, [], "", "DEADLINE", "x" * 9999, token=77, aborted_by="ann"))
    row = sagas.row(claimed.position)
    assert (row.failed_step, row.error_code, len(row.error_message), row.aborted_by) == ("", "DEADLINE", 512, "ann")


def test_a_parked_instance_is_dead_and_audited(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    assert room.run(sagas.store.park(claimed, "charge", "TIMEOUT", "no answer", attempted=True))
    delivery = room.delivery(claimed.position)
    assert (delivery.state, delivery.attempts, delivery.token, delivery.owner) == (Stored.DEAD, 1, 0, "")
    assert (delivery.error_code, delivery.error_message) == ("TIMEOUT", "no answer")
    assert delivery.failed_at is not None
    [entry] = room.audit()
    assert (entry.action, entry.position, entry.message_id) == (
        "saga_parked",
        claimed.position,
        str(claimed.message.id),
    )
    assert entry.details == {
        "saga": NAME,
        "step": "charge",
        "attempts": 1,
        "error_code": "TIMEOUT",
        "error_message": "no answer",
    }
    assert sagas.claim() == []


def test_an_instance_that_is_put_back_burns_neither_attempt_nor_claim(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    for _ in range(8):
        assert room.run(sagas.store.put_back(claimed, "STEP_MISSING", "no function 'charge'", 30))
        assert sagas.claim() == []
        delivery = room.delivery(claimed.position)
        assert (delivery.state, delivery.attempts, delivery.claims) == (Stored.SCHEDULED, 0, 0)
        assert (delivery.error_code, delivery.error_message) == ("STEP_MISSING", "no function 'charge'")
        room.advance(31)
        [claimed] = sagas.claim()
    assert (claimed.attempts, claimed.claims) == (0, 1)
    for _ in range(8):
        assert room.run(sagas.store.put_back(claimed, "STEP_MISSING", "no form of a result", 30, tried=True))
        room.advance(31)
        [claimed] = sagas.claim()
        assert (claimed.attempts, claimed.claims) == (0, 2)  # not the first to try, and no nearer to being given up


def test_a_worker_that_lost_its_lease_reads_nothing_of_what_others_did_since(room: Room, sagas: Sagas) -> None:
    """It would begin what comes next, while the other relies on being the first to do so."""
    late = sagas.running()
    assert list(room.run(sagas.store.read_held([late]))) == [late.position]
    room.advance(31)
    [claimed] = sagas.claim()
    sagas.log(claimed, done("reserve"))
    assert room.run(sagas.store.read_held([late])) == {}
    instance = room.run(sagas.store.read_held([claimed]))[claimed.position]
    assert instance is not None
    assert list(instance.rows) == [(FORWARD, "reserve")]


def test_what_is_no_instance_is_read_as_none(room: Room, sagas: Sagas) -> None:
    claimed = sagas.running()
    room.execute("DELETE FROM {saga} WHERE position = :at", at=claimed.position)
    assert room.run(sagas.store.read_held([claimed])) == {claimed.position: None}
