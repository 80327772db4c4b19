"""K-1, K-3: the idempotency ledger, for every kind of connection, each on the real database."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch
from uuid import uuid4

import pytest

from postroom import Message, Outbox
from postroom.errors import InvalidMessage, LeaseLost
from postroom.idempotency import (
    Conflict,
    InProgress,
    Ledger,
    Replay,
    Response,
    Run,
    Start,
    digest_of,
    scope_of,
)
from tests.contract import clock
from tests.contract.connection_kinds import KINDS
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from postroom.idempotency import Decision
    from tests.contract.connection_callers import Caller

LEDGER = Ledger()
OUTBOX = Outbox()
DIGEST = digest_of("POST", "/orders", "", b"{}")
OTHER_DIGEST = digest_of("POST", "/orders", "", b"[]")
CREATED = Response(201, (("content-type", "application/json"), ("set-cookie", "a=1"), ("set-cookie", "b=2")), b"{}")
ODD = 'it\'s "odd" \\ % %s :name $1 ? ; -- é 日本 😀'
DAY = 86_400.0

BY_NAME = {kind.name: kind for kind in KINDS}
each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
on_each_database = pytest.mark.parametrize(
    "kind", [pytest.param(BY_NAME[name], id=name) for name in ("sqlite3", "psycopg", "asyncpg", "PyMySQL", "aiomysql")]
)


@pytest.fixture
def key() -> str:
    return str(uuid4())


def begin(caller: Caller, key: str, digest: str = DIGEST, ledger: Ledger = LEDGER, scope: str = "") -> Decision:
    decision: Decision = caller.ledger(ledger, "begin", key, digest, scope=scope)
    return decision


def started(caller: Caller, key: str, ledger: Ledger = LEDGER) -> Run:
    """A run that was begun, and others know it."""
    run = begin(caller, key, ledger=ledger)
    assert isinstance(run, Run)
    next_transaction(caller)
    return run


def next_transaction(caller: Caller) -> None:
    caller.commit()
    caller.begin()


def rolled_back(caller: Caller) -> None:
    caller.rollback()
    caller.begin()


@each_kind
def test_K_1_a_request_runs_once_and_its_response_is_replayed(caller: Caller, key: str) -> None:
    run = started(caller, key)
    assert (run.start, run.taken_over) == (Start.NEW, False)
    in_progress = begin(caller, key)
    assert isinstance(in_progress, InProgress)
    assert 25 <= in_progress.retry_after <= 30
    assert begin(caller, key, OTHER_DIGEST) == Conflict()
    caller.ledger(LEDGER, "finish", run.entry, CREATED)
    next_transaction(caller)
    assert begin(caller, key) == Replay(CREATED)
    assert begin(caller, key, OTHER_DIGEST) == Conflict()
    caller.commit()


@each_kind
def test_K_1_what_is_replayed_is_what_was_answered(caller: Caller) -> None:
    key, scope = f"{uuid4()} {ODD}", scope_of("tenant / 7", ODD)
    latin = ODD.encode("latin-1", "ignore").decode("latin-1")  # what a header can hold
    odd = Response(418, (("x-odd", latin), ("x-empty", ""), (latin, "\t\x01\xff")), bytes(range(256)) * 5)
    run = begin(caller, key, scope=scope)
    assert isinstance(run, Run)
    caller.ledger(LEDGER, "finish", run.entry, odd)
    assert begin(caller, key, scope=scope) == Replay(odd)
    empty = begin(caller, key)  # in another scope
    assert isinstance(empty, Run)
    caller.ledger(LEDGER, "finish", empty.entry, Response(204))
    next_transaction(caller)
    assert begin(caller, key) == Replay(Response(204))
    assert begin(caller, key, scope=scope) == Replay(odd)
    caller.commit()


@each_kind
def test_K_3_a_lease_that_ended_lets_another_run_and_fences_the_first(
    caller: Caller, database: Database, key: str
) -> None:
    zombie = started(caller, key)
    clock.advance(database.store, 31)
    second = begin(caller, key)
    assert isinstance(second, Run)
    assert (second.start, second.taken_over) == (Start.ABANDONED, True)
    next_transaction(caller)
    assert not caller.ledger(LEDGER, "renew", zombie.entry)
    assert not caller.ledger(LEDGER, "fail", zombie.entry)
    statement, row = business_row()
    caller.sql(statement)
    with pytest.raises(LeaseLost, match=key):
        caller.ledger(LEDGER, "finish", zombie.entry, Response(200))
    rolled_back(caller)
    assert not database.has_business(row)
    caller.ledger(LEDGER, "finish", second.entry, CREATED)
    next_transaction(caller)
    with pytest.raises(LeaseLost):
        caller.ledger(LEDGER, "finish", zombie.entry, Response(200))
    assert begin(caller, key) == Replay(CREATED)
    caller.commit()


@each_kind
def test_K_2_after_a_failure_it_runs_again(caller: Caller, key: str) -> None:
    first = started(caller, key)
    assert caller.ledger(LEDGER, "fail", first.entry)
    assert not caller.ledger(LEDGER, "fail", first.entry)
    next_transaction(caller)
    assert begin(caller, key, OTHER_DIGEST) == Conflict()
    second = begin(caller, key)
    assert isinstance(second, Run)
    assert second.start is Start.FAILED
    with pytest.raises(LeaseLost):
        caller.ledger(LEDGER, "finish", first.entry, CREATED)
    assert caller.ledger(LEDGER, "fail", second.entry, Response(502, (), b"the bank is down"))
    next_transaction(caller)
    assert begin(caller, key) == Replay(Response(502, (), b"the bank is down"), failed=True)
    caller.commit()


@each_kind
def test_K_3_a_renewed_lease_lasts(caller: Caller, database: Database, key: str) -> None:
    run = started(caller, key)
    for _ in range(3):
        clock.advance(database.store, 20)
        assert caller.ledger(LEDGER, "renew", run.entry)
        next_transaction(caller)
    assert isinstance(begin(caller, key), InProgress)
    assert caller.ledger(LEDGER, "renew", run.entry, 3600)
    assert caller.ledger(LEDGER, "renew", run.entry, 3600)
    next_transaction(caller)
    clock.advance(database.store, 3000)
    assert isinstance(begin(caller, key), InProgress)
    caller.ledger(LEDGER, "finish", run.entry, CREATED)
    assert not caller.ledger(LEDGER, "renew", run.entry)
    caller.commit()


@each_kind
def test_K_3_effect_and_response_commit_together_in_the_transaction_after_begin(
    caller: Caller, database: Database, key: str
) -> None:
    run = started(caller, key)
    statement, row = business_row()
    caller.sql(statement)
    caller.ledger(LEDGER, "finish", run.entry, CREATED)
    rolled_back(caller)
    assert not database.has_business(row)
    assert isinstance(begin(caller, key), InProgress)
    rolled_back(caller)
    caller.sql(statement)
    caller.ledger(LEDGER, "finish", run.entry, CREATED)
    next_transaction(caller)
    assert database.has_business(row)
    assert begin(caller, key) == Replay(CREATED)
    caller.commit()


@each_kind
def test_K_3_one_transaction_for_all_leaves_nothing_when_it_is_rolled_back(
    caller: Caller, database: Database, key: str
) -> None:
    for end in (rolled_back, next_transaction):
        run = begin(caller, key)
        assert isinstance(run, Run)
        assert run.start is Start.NEW
        statement, row = business_row()
        caller.sql(statement)
        caller.ledger(LEDGER, "finish", run.entry, CREATED)
        end(caller)
        assert database.has_business(row) == (end is next_transaction)
    assert begin(caller, key) == Replay(CREATED)
    caller.commit()


@on_each_database
def test_K_1_a_response_is_kept_for_a_day_from_its_end(caller: Caller, database: Database, key: str) -> None:
    run = started(caller, key)
    clock.advance(database.store, DAY / 2)
    caller.ledger(LEDGER, "finish", run.entry, CREATED)
    next_transaction(caller)
    clock.advance(database.store, DAY - 60)
    assert begin(caller, key) == Replay(CREATED)
    next_transaction(caller)
    clock.advance(database.store, 61)
    again = begin(caller, key, OTHER_DIGEST)
    assert isinstance(again, Run)
    assert again.start is Start.EXPIRED
    next_transaction(caller)
    assert isinstance(begin(caller, key, OTHER_DIGEST), InProgress)
    caller.ledger(LEDGER, "finish", again.entry, Response(200))
    assert begin(caller, key, OTHER_DIGEST) == Replay(Response(200))
    caller.commit()


@on_each_database
def test_K_2_failures_are_replayed_where_that_is_set(caller: Caller, key: str) -> None:
    once = Ledger(replay_failures=True)
    run = started(caller, key, once)
    assert caller.ledger(once, "fail", run.entry)
    next_transaction(caller)
    assert begin(caller, key, ledger=once) == Replay(Response(500), failed=True)
    caller.commit()


@on_each_database
def test_K_1_keys_and_scopes_are_compared_exactly(caller: Caller, key: str) -> None:
    ends = ("a", "A", "ä", "a\u0308", "á", "\uff41", "日本", "😀", "😁", "%", "_", "'", "\\")
    for end in ends:
        assert isinstance(begin(caller, f"{key}{end}"), Run)
        assert isinstance(begin(caller, key, scope=f"{key}{end}"), Run)
    caller.rollback()


@on_each_database
def test_K_1_the_longest_key_and_scope_are_taken(caller: Caller) -> None:
    longest = f"{uuid4()}" + "😀" * 219
    assert isinstance(begin(caller, longest, scope="日" * 255), Run)
    assert isinstance(begin(caller, longest, scope="日" * 255), InProgress)
    caller.rollback()


@each_kind
def test_K_1_who_looks_is_told_and_changes_nothing(caller: Caller, key: str) -> None:
    assert caller.ledger(LEDGER, "look", key) is None
    run = started(caller, key)
    begun = caller.ledger(LEDGER, "look", key)
    assert (begun.status, begun.response, begun.digest) == ("in_progress", None, DIGEST)
    assert begun.lease_left > 0
    caller.ledger(LEDGER, "finish", run.entry, CREATED)
    done = caller.ledger(LEDGER, "look", key)
    assert (done.status, done.response, done.expired) == ("succeeded", CREATED, False)
    assert caller.ledger(LEDGER, "look", key, scope="another") is None


@each_kind
def test_L_12_a_request_is_left_to_the_message_that_is_added_for_it(
    caller: Caller, database: Database, key: str
) -> None:
    run = started(caller, key)
    caller.add(OUTBOX, "orders", ledger=run.entry)
    rolled_back(caller)
    message = caller.add(OUTBOX, "orders", ledger=run.entry)  # undone with its message, and so not left to it yet
    next_transaction(caller)
    assert database.stored([message]) == 1
    clock.advance(database.store, 3600)
    assert isinstance(begin(caller, key), InProgress)
    assert not caller.ledger(LEDGER, "renew", run.entry)
    assert not caller.ledger(LEDGER, "fail", run.entry)
    with pytest.raises(LeaseLost, match=r"handed to a message .* call hand_over"):
        caller.ledger(LEDGER, "finish", run.entry, CREATED)
    rolled_back(caller)
    caller.ledger(LEDGER, "hand_over", run.entry, Response(202))
    next_transaction(caller)
    assert begin(caller, key) == Replay(Response(202))
    with pytest.raises(LeaseLost):
        caller.ledger(LEDGER, "hand_over", run.entry)
    rolled_back(caller)


@on_each_database
def test_L_12_a_message_cannot_be_added_for_a_request_that_is_not_its_runs(
    caller: Caller, database: Database, key: str
) -> None:
    zombie = started(caller, key)
    clock.advance(database.store, 31)
    second = begin(caller, key)
    assert isinstance(second, Run)
    next_transaction(caller)
    plain = Message.new("orders")
    refused = [plain, Message.new("orders", ledger=second.entry), Message.new("orders", ledger=zombie.entry)]
    with pytest.raises(InvalidMessage, match="has a message already"):
        caller.add_many(OUTBOX, [refused[1], Message.new("orders", ledger=second.entry)])
    with pytest.raises(LeaseLost, match="not this run's to leave to a message"):
        caller.add_many(OUTBOX, [plain, refused[2]])
    one_by_one = lambda values: ([value] for value in values)  # noqa: E731 - of many, two for one request may be parted
    with patch("postroom.store.ledger.handover.chunks", one_by_one), pytest.raises(InvalidMessage, match="already"):
        caller.add_many(OUTBOX, [refused[1], Message.new("orders", ledger=second.entry)])
    assert caller.ledger(LEDGER, "renew", second.entry)  # nothing was left to anybody
    next_transaction(caller)
    assert database.stored(refused) == 0
    caller.ledger(LEDGER, "finish", second.entry, CREATED)
    with pytest.raises(LeaseLost, match="it was finished"):
        caller.add(OUTBOX, "orders", ledger=second.entry)
    next_transaction(caller)
    assert begin(caller, key) == Replay(CREATED)
    caller.commit()


@on_each_database
def test_L_12_a_request_has_one_message_whether_it_was_handed_over_before_or_not(caller: Caller, key: str) -> None:
    run = started(caller, key)
    heir = caller.ledger(LEDGER, "hand_over", run.entry, Response(202))
    caller.add(OUTBOX, "orders", ledger=run.entry)
    for entry in (run.entry, heir):
        with pytest.raises(InvalidMessage, match="has a message already"):
            caller.add(OUTBOX, "orders", ledger=entry)
        with pytest.raises(LeaseLost, match="handed to a message"):
            caller.ledger(LEDGER, "finish", entry, CREATED)
    assert begin(caller, key) == Replay(Response(202))
    caller.commit()


@on_each_database
def test_L_12_a_message_that_was_there_already_leaves_the_request_to_its_run(caller: Caller, key: str) -> None:
    first, second = started(caller, key), started(caller, f"{key}-2")
    caller.add(OUTBOX, "orders", idempotency_key=key, ledger=first.entry)
    assert caller.add(OUTBOX, "orders", idempotency_key=key, ledger=second.entry).duplicate
    caller.ledger(LEDGER, "finish", second.entry, CREATED)
    next_transaction(caller)
    assert begin(caller, f"{key}-2") == Replay(CREATED)
    caller.commit()
