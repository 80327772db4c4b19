"""Two-phase commits as operators see them and act on them."""

from __future__ import annotations

import pytest

from postroom.admin import Decision, RecoveryDelivery, TransactionState, as_json
from postroom.errors import InvalidSetting, TransactionActRefused, TransactionNotFound
from postroom.rules.naming import TWOPHASE_QUEUE
from postroom.store.outbox.leases import Retry
from postroom.store.twophase.recovery_queue import RecoveryQueue
from tests.contract.store_drivers import Room, on_one_driver_of_each_style
from tests.contract.test_twophase_log import Log

HOLDER_AND_BANK = {"shop": "", "bank": "pr1:0a0b0c0d:x:bank"}
S = TransactionState


@pytest.fixture
def log(room: Room) -> Log:
    return Log(room)


def make(room: Room, log: Log) -> dict[TransactionState, str]:
    """A transaction in each state, all past their deadlines, the earliest first."""
    made = {}
    for n, state in enumerate(TransactionState):
        tx, deadline = log.new(n - 100)
        room.run(log.steps.open(tx, HOLDER_AND_BANK, deadline))
        made[state] = tx
    for state in (S.COMMITTING, S.STUCK, S.COMMITTED, S.FORGOTTEN):
        room.run(log.steps.resolve_open(made[state], Decision.COMMIT))
    for state in (S.ABORTING, S.ABORTED):
        room.run(log.steps.resolve_open(made[state], Decision.ABORT))
    room.run(log.steps.settle(made[S.COMMITTED], made[S.ABORTED]))
    for state in (S.STUCK, S.FORGOTTEN):
        room.run(log.steps.note_problem(made[state], "only a superuser may finish it"))
    room.admin().forget_transaction(made[S.FORGOTTEN], actor="ada", reason="done by hand")
    return made


def test_T_2_each_state_is_listed_counted_and_explained(room: Room, log: Log) -> None:
    made, admin = make(room, log), room.admin()
    listed = admin.transactions(states=list(S))
    assert [(one.id, one.state) for one in listed] == [(tx, state) for state, tx in reversed(made.items())]
    assert {one.state for one in admin.transactions()} == {S.UNDECIDED, S.COMMITTING, S.ABORTING, S.STUCK}
    for state, tx in made.items():
        assert [one.id for one in admin.transactions(states=[state.value])] == [tx]
        assert admin.transaction(tx).explanation
    room.advance(100)
    counts = admin.status().transactions
    assert {one.state: one.count for one in counts} == dict.fromkeys(S, 1)
    assert all(100 <= one.oldest_seconds < 200 for one in counts)


def test_T_2_one_transaction_with_what_is_missing(room: Room, log: Log) -> None:
    tx, deadline = log.new()
    assert room.run(log.steps.decide(tx, HOLDER_AND_BANK, deadline))
    found = room.admin().transaction(tx)
    one = found.transaction
    assert (one.id, one.state, one.decision, one.participants) == (tx, S.COMMITTING, Decision.COMMIT, HOLDER_AND_BANK)
    assert (one.missing, one.past_deadline, one.settled_at, one.problem) == (("bank",), False, None, None)
    assert round(one.deadline.timestamp() * 1000) == deadline
    assert one.decided_at is not None
    assert 0 <= one.age_seconds < 60
    assert "commit is decided; not confirmed by all of: bank" in found.explanation
    assert (found.recovery, found.history) == (None, ())
    told = as_json(found)
    assert (told["decision"], told["missing"], told["state"]) == ("commit", ["bank"], "committing")
    room.run(log.steps.settle(tx))
    assert room.admin().transaction(tx).transaction.missing == ()


def test_T_2_how_recovery_goes(room: Room, log: Log) -> None:
    tx, deadline = log.new()
    room.run(log.steps.decide(tx, HOLDER_AND_BANK, deadline))
    room.run(RecoveryQueue(room.names).add([tx, "other"]))
    assert room.admin().transaction(tx).recovery == RecoveryDelivery(0, None, None, None)
    queue = room.on(TWOPHASE_QUEUE)
    claimed = room.run(queue.rows.claim("relay", 10, 30)).messages
    assert not room.run(
        queue.settlements.settle([Retry(one, 60, "ConnectionError", "bank is away") for one in claimed])
    )
    recovery = room.admin().transaction(tx).recovery
    assert recovery is not None
    assert (recovery.attempts, recovery.error_code, recovery.error_message) == (1, "ConnectionError", "bank is away")
    assert recovery.due is not None
    assert as_json(room.admin().transaction(tx))["recovery"]["attempts"] == 1
    [message] = [one.message.id for one in claimed if one.message.aggregate_id == tx]
    assert room.admin().message(message).why.explanation.endswith(f"see `postroom transactions show {tx}`")


def test_T_2_a_list_comes_in_pages(room: Room, log: Log) -> None:
    made = [log.committed(10 * n) for n in range(1, 6)]
    first = room.admin().transactions(limit=2)
    assert [one.id for one in first] == [made[4], made[3]]
    assert [one.id for one in room.admin().transactions(limit=9, before=first[-1].id)] == [made[2], made[1], made[0]]
    with pytest.raises(InvalidSetting, match="limit = 0"):
        room.admin().transactions(limit=0)
    with pytest.raises(InvalidSetting, match=r"state = 'lost' is not valid: use undecided, committing"):
        room.admin().transactions(states=["lost"])


def test_T_2_what_was_finished_by_hand_is_forgotten_but_what_was_decided_stays(room: Room, log: Log) -> None:
    made, admin = make(room, log), room.admin()
    for state in (S.UNDECIDED, S.COMMITTING, S.ABORTING, S.STUCK):
        admin.forget_transaction(made[state], actor="ada", reason="done by hand")
        assert admin.transaction(made[state]).transaction.state is S.FORGOTTEN
    assert admin.transactions() == ()
    assert log.resolve(made[S.STUCK], 0) is Decision.COMMIT  # a branch that appears late is still committed
    [act] = admin.transaction(made[S.STUCK]).history
    assert (act.action, act.actor, act.reason) == ("transaction_forgotten", "ada", "done by hand")
    assert (act.message_id, act.details["problem"]) == (made[S.STUCK], "only a superuser may finish it")
    assert len(admin.audit(action="transaction_forgotten")) == 5


@on_one_driver_of_each_style
def test_T_2_what_is_at_its_end_or_in_progress_is_not_forgotten(room: Room, log: Log) -> None:
    made, admin = make(room, log), room.admin()
    for state in (S.COMMITTED, S.ABORTED, S.FORGOTTEN):
        with pytest.raises(TransactionActRefused, match=f"cannot forget transaction {made[state]}: it is {state}"):
            admin.forget_transaction(made[state], actor="ada")
    with pytest.raises(TransactionActRefused, match="its deadline has not passed"):
        admin.forget_transaction(log.open(60), actor="ada")
    with pytest.raises(TransactionNotFound, match="there is no two-phase commit 'unknown' on record"):
        admin.forget_transaction("unknown", actor="ada")
    with pytest.raises(TransactionNotFound):
        admin.transaction("unknown")
    assert len(admin.audit()) == 1  # of the one that was forgotten


@pytest.mark.parametrize("decision", ["commit", Decision.ABORT])
def test_T_2_an_operator_decides_what_only_a_person_can_know(room: Room, log: Log, decision: str | Decision) -> None:
    tx, admin = log.open(-1), room.admin()
    room.run(log.steps.note_problem(tx, "whether the last resource did its work is not known"))
    admin.decide_transaction(tx, decision, actor="ada", reason="asked the bank")
    found = admin.transaction(tx)
    name = decision if isinstance(decision, str) else decision.name.lower()
    assert found.transaction.state is (S.COMMITTING if name == "commit" else S.ABORTING)
    assert log.unsettled() == [tx]
    assert [(act.action, act.details["decision"]) for act in found.history] == [("transaction_decided", name)]
    with pytest.raises(TransactionActRefused, match=f"{name} is decided already"):
        admin.decide_transaction(tx, "abort", actor="ada")


@on_one_driver_of_each_style
def test_T_2_nobody_decides_for_a_coordinator_that_may_still_do_it(room: Room, log: Log) -> None:
    tx = log.open(60)
    with pytest.raises(TransactionActRefused, match="its deadline has not passed"):
        room.admin().decide_transaction(tx, "commit", actor="ada")
    with pytest.raises(InvalidSetting, match=r"decision = 'open' is not valid: use commit, abort"):
        room.admin().decide_transaction(tx, "open", actor="ada")
    with pytest.raises(InvalidSetting, match="is not valid"):
        room.admin().decide_transaction(tx, Decision.OPEN, actor="ada")
    with pytest.raises(TransactionNotFound):
        room.admin().decide_transaction("unknown", "commit", actor="ada")
