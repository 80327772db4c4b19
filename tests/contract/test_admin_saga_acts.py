"""What operators do to sagas, on every driver: resume, skip, abort, fork; each audited, and safe beside workers."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from postroom.admin import SagaFilter, SagaState
from postroom.errors import SagaActRefused, SagaSettled
from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_FORK_OF, SAGA_PLAN
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.rules.saga_state import STEP_MISSING
from postroom.saga.recording import Recorder
from postroom.settings import Settings
from postroom.store.saga.saga_store import SagaStore
from postroom.store.saga.values import Entry, Logged
from tests.contract.saga_support import PLAN, Facts, make, record, start

if TYPE_CHECKING:
    from postroom.admin import SagaActResult
    from postroom.store.outbox.leases import Claimed
    from postroom.store.sql.steps import Steps
    from tests.contract.store_drivers import Room

FORWARD, BACK = Direction.FORWARD, Direction.BACK
DONE, SKIPPED, FAILED = StepOutcome.DONE, StepOutcome.SKIPPED, StepOutcome.FAILED
WHO = {"actor": "ada", "reason": "the bank is back"}


def park(room: Room, name: str, id: str, *, back: bool = True, code: str = "CONNECTION") -> int:
    """A saga that is parked: going back at `charge`, or forward at `mail`, past its pivot."""
    position = start(room, name, id)
    record(room, position, "reserve", result=b'"seat 7"', data=b'{"seat":7}')
    if back:
        record(room, position, "charge", FAILED)
        room.execute("UPDATE {saga} SET direction = 1, failed_step = 'charge' WHERE position = :at", at=position)
    else:
        record(room, position, "charge", result=b'"paid"')
        record(room, position, "ship")
    room.execute(
        f"UPDATE {{delivery}} SET state = 3, attempts = 15, claims = 0, error_code = :code, error_message = 'away', "
        f"failed_at = {room.dialect.now} WHERE position = :at",
        at=position,
        code=code,
    )
    return position


def claim(room: Room, name: str = "orders") -> list[Claimed]:
    protocol = room.on(f"saga:{name}").rows
    return [
        *room.run(protocol.claim("worker", 10, 30)).messages,
        *room.run(protocol.claim("w", 10, 30, due=True)).messages,
    ]


def rows(room: Room, position: int) -> dict[tuple[int, str], int]:
    found = room.select("SELECT direction, step, outcome FROM {saga_step} WHERE position = :at", at=position)
    return {(direction, step): outcome for direction, step, outcome in found}


def acts(room: Room) -> list[tuple[str, str, int, dict[str, Any]]]:
    return [(one.action, one.actor, one.position, one.details) for one in room.audit()]


def refusals(result: SagaActResult) -> dict[str, str]:
    return {one.id: one.reason for one in result.refused}


def test_S_5_a_parked_saga_is_resumed_with_all_its_attempts(room: Room) -> None:
    position = park(room, "orders", "1")
    room.admin().resume_saga("orders", "1", **WHO)
    row = room.delivery(position)
    assert (row.state, row.attempts, row.claims, row.error_code, row.due) == (Stored.RETRY, 0, 1, "", None)
    assert room.admin().saga("orders", "1").state is SagaState.COMPENSATING
    [claimed] = claim(room)
    assert (claimed.position, claimed.attempts, claimed.claims) == (position, 0, 2)
    [(action, actor, at, details)] = acts(room)
    assert (action, actor, at, details["reason"]) == ("saga_resumed", "ada", position, "the bank is back")
    assert (details["saga"], details["id"], details["error_code"]) == ("orders", "1", "CONNECTION")
    [entry] = room.admin().audit(action="saga_resumed")
    assert entry.message_id == str(room.ids([position])[0])
    with pytest.raises(SagaActRefused, match="cannot resume saga orders 1: it is compensating: only parked"):
        room.admin().resume_saga("orders", "1", actor="ada")
    assert len(room.audit()) == 1


def test_S_5_a_saga_whose_delivery_was_deleted_is_found_by_its_id_and_goes_on(room: Room) -> None:
    resumed, skipped, aborted = (start(room, "orders", one) for one in ("resumed", "skipped", "aborted"))
    other = start(room, "orders", "other")
    room.execute("DELETE FROM {delivery} WHERE position <> :other", other=other)
    admin = room.admin()
    told = admin.saga("orders", "resumed")
    assert told.state is SagaState.PARKED
    assert "`postroom sagas resume orders resumed` to restore it" in told.explanation
    with pytest.raises(SagaSettled, match="its delivery was deleted"):
        room.run(room_abort(room, "aborted"))
    found = admin.sagas(SagaFilter("orders", ["resumed", "other"]))
    assert [(saga.id, saga.state) for saga in found] == [("other", "started"), ("resumed", "parked")]
    admin.resume_saga("orders", "resumed", **WHO)
    admin.skip_saga_step("orders", "skipped", **WHO)
    admin.abort_saga("orders", "aborted", **WHO)
    assert sorted(one.position for one in claim(room)) == sorted([resumed, skipped, aborted, other])
    assert [action for action, *_ in acts(room)] == ["saga_resumed", "saga_skipped", "saga_aborted"]


def room_abort(room: Room, id: str) -> Steps[None]:
    """What `Saga.abort` runs in a caller's transaction."""
    operation = Recorder(Settings.load()).abort("orders", id, "ann", "")
    return SagaStore(room.names, "orders").sql.transaction(operation, room.names)


def test_S_5_many_are_resumed_by_a_filter(room: Room) -> None:
    orders = [park(room, "orders", str(n)) for n in range(3)]
    other = park(room, "orders", "other", code="REJECTED")
    mail = park(room, "mails", "1")
    start(room, "orders", "running")
    seen = room.admin().count_sagas(SagaFilter(states=["parked"]))
    assert seen.total == 5
    done = room.admin().resume_sagas(SagaFilter("orders", code="CONNECTION"), actor="ada")
    assert [one.id for one in done.sagas] == ["2", "1", "0"]
    assert done.refused == ()
    assert {room.delivery(position).state for position in orders} == {Stored.RETRY}
    assert {room.delivery(position).state for position in (other, mail)} == {Stored.DEAD}
    named = room.admin().resume_sagas(SagaFilter("orders", ["other", "0", "running", "absent"]), actor="ada")
    assert [one.id for one in named.sagas] == ["other"]
    assert refusals(named) == {
        "0": "it is compensating: only parked sagas can be resumed",
        "running": "it is started: only parked sagas can be resumed",
        "absent": "not found",
    }
    room.execute(
        "UPDATE {delivery} SET failed_at = :later WHERE position = :at",
        later=room.dialect.moment(seen.as_of + timedelta(seconds=1)),
        at=mail,
    )
    assert room.admin().resume_sagas(SagaFilter(as_of=seen.as_of), actor="ada").count == 0
    assert room.admin().resume_sagas(SagaFilter(), actor="ada").count == 1


def test_S_5_the_compensation_that_fails_is_skipped(room: Room) -> None:
    position = park(room, "orders", "1")
    room.admin().skip_saga_step("orders", "1", **WHO)
    assert rows(room, position) == {(FORWARD, "reserve"): DONE, (FORWARD, "charge"): FAILED, (BACK, "charge"): SKIPPED}
    assert room.select("SELECT worker FROM {saga_step} WHERE direction = 1") == [("ada",)]
    assert (room.delivery(position).state, room.delivery(position).attempts) == (Stored.RETRY, 0)
    [(action, actor, _, details)] = acts(room)
    assert (action, actor, details["step"], details["direction"]) == ("saga_skipped", "ada", "charge", "back")
    [coming] = room.admin().saga("orders", "1").next
    assert (coming.step, coming.direction) == ("reserve", BACK)


def test_S_5_a_step_past_the_pivot_is_skipped(room: Room) -> None:
    position = park(room, "orders", "1", back=False)
    result = room.admin().skip_saga_steps(SagaFilter("orders", code="CONNECTION"), step="mail", actor="ada")
    assert result.count == 1
    assert rows(room, position)[FORWARD, "mail"] == SKIPPED
    assert room.admin().saga("orders", "1").next == ()


def test_S_5_a_stranded_wait_is_skipped_although_it_waited(room: Room) -> None:
    position = start(room, "orders", "1", '[["parcel","wait","",0,0,"parcel"],["mail"]]')
    record(room, position, "parcel", StepOutcome.WAITING)
    room.execute("UPDATE {delivery} SET state = 1 WHERE position = :at", at=position)
    with pytest.raises(SagaActRefused, match="it is waiting: only a step that has failed can be skipped"):
        room.admin().skip_saga_step("orders", "1", actor="ada")
    room.execute("UPDATE {delivery} SET error_code = :code WHERE position = :at", code=STEP_MISSING, at=position)
    room.admin().skip_saga_step("orders", "1", actor="ada")
    assert rows(room, position) == {(FORWARD, "parcel"): SKIPPED}
    assert room.delivery(position).state == Stored.RETRY


def test_S_5_what_does_not_fail_or_come_next_is_not_skipped(room: Room) -> None:
    position = park(room, "orders", "1")
    make(room, "orders", "done", Facts(FORWARD, SagaOutcome.COMPLETED, None))
    start(room, "orders", "started")
    before = room.delivery(position)
    result = room.admin().skip_saga_steps(SagaFilter("orders", ["1", "done", "started"]), step="reserve", actor="ada")
    assert result.count == 0
    assert refusals(result) == {
        "1": "compensation 'reserve' does not come next: only 'charge' can be skipped now",
        "done": "it is completed",
        "started": "it is started: only a step that has failed can be skipped",
    }
    assert room.delivery(position) == before
    assert room.audit() == []


def test_S_5_an_abort_takes_the_saga_from_its_worker(room: Room) -> None:
    position = start(room, "orders", "1")
    [claimed] = claim(room)
    store = SagaStore(room.names, "orders")
    assert room.run(store.sql.transaction(store.log, claimed, [Entry(FORWARD, "reserve", DONE)])) is Logged.WRITTEN
    room.admin().abort_saga("orders", "1", **WHO)
    late = room.run(store.sql.transaction(store.log, claimed, [Entry(FORWARD, "charge", DONE)]))
    assert late is Logged.LEASE_LOST
    told = room.admin().saga("orders", "1")
    assert (told.state, told.aborted_by, [step.step for step in told.next]) == (
        SagaState.COMPENSATING,
        "ada",
        ["charge"],
    )
    assert "ada aborted it" in told.explanation
    [(action, actor, at, details)] = acts(room)
    assert (action, actor, at, details["reason"]) == ("saga_aborted", "ada", position, "the bank is back")
    with pytest.raises(SagaActRefused, match="cannot abort saga orders 1: it goes back already"):
        room.admin().abort_saga("orders", "1", actor="ada")


def test_S_5_an_abort_past_the_pivot_or_the_end_is_refused(room: Room) -> None:
    park(room, "orders", "past", back=False)
    make(room, "orders", "done", Facts(FORWARD, SagaOutcome.COMPLETED, None))
    start(room, "orders", "1")
    result = room.admin().abort_sagas(SagaFilter("orders"), actor="ada")
    assert [one.id for one in result.sagas] == ["1"]
    assert refusals(result) == {"past": "it has passed its pivot, or may have, and only goes forward"}
    named = room.admin().abort_sagas(SagaFilter("orders", ["done"]), actor="ada")
    assert refusals(named) == {"done": "it has ended"}


def test_S_5_a_fork_takes_over_the_first_steps_and_never_undoes_them(room: Room) -> None:
    old = park(room, "orders", "1", back=False)
    room.execute(f"UPDATE {{saga}} SET deadline = {room.dialect.later(':seconds')}", seconds=900.0)
    fork = room.admin().fork_saga("orders", "1", step="ship", new_id="1b", **WHO)
    assert (fork.id, fork.fork_of, fork.kept) == ("1b", "1", ("reserve", "charge"))
    told = room.admin().saga("orders", "1b", data=True)
    assert (told.state, told.fork_of, [step.step for step in told.next]) == (SagaState.RUNNING, "1", ["ship"])
    assert [(step.step, step.direction, step.outcome, step.result) for step in told.steps] == [
        ("reserve", FORWARD, DONE, b'"seat 7"'),
        ("charge", FORWARD, DONE, b'"paid"'),
        ("reserve", BACK, SKIPPED, None),
        ("charge", BACK, SKIPPED, None),
    ]
    assert told.data == b'{"seat":7}'
    assert told.deadline is not None
    assert told.started_at is not None
    assert 890 < (told.deadline - told.started_at).total_seconds() < 910
    assert room.admin().saga("orders", "1").state is SagaState.PARKED
    headers = [claimed.message.headers for claimed in claim(room) if claimed.position == told.position]
    assert [(one[SAGA_PLAN], one[SAGA_FORK_OF]) for one in headers] == [(PLAN, "1")]
    assert [(action, at, details["from"]) for action, _, at, details in acts(room)] == [
        ("saga_forked", old, "ship"),
        ("saga_forked", told.position, "ship"),
    ]
    [by_operator] = room.admin().saga("orders", "1").history
    assert (by_operator.actor, by_operator.details["new_id"]) == ("ada", "1b")


def test_S_5_a_fork_that_makes_no_sense_is_refused_and_leaves_nothing(room: Room) -> None:
    park(room, "orders", "1", back=False)
    undone = make(room, "orders", "undone", Facts(BACK, SagaOutcome.COMPENSATED, None))
    record(room, undone, "reserve")
    record(room, undone, "reserve", DONE, BACK)
    start(room, "orders", "running")
    admin = room.admin()
    for old, step, new_id, problem in (
        ("running", "reserve", None, "it is started: wait until it has ended, or abort it"),
        ("1", "shop", None, "its plan has no step 'shop': the steps are reserve, charge, ship, mail"),
        ("undone", "charge", None, "step 'reserve' before it was undone: fork from 'reserve' or an earlier step"),
        ("1", "ship", "running", "there is a saga with the id 'running' already"),
        ("1", "ship", "1", "there is a saga with the id '1' already"),
    ):
        with pytest.raises(SagaActRefused, match=problem):
            admin.fork_saga("orders", old, step=step, new_id=new_id, actor="ada")
    assert len(admin.sagas()) == 3
    assert room.audit() == []
    assert admin.fork_saga("orders", "undone", step="reserve", actor="ada").kept == ()
    assert len(admin.sagas()) == 4
