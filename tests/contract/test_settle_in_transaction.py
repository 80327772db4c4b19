"""Settling in a transaction that somebody else opened: with the caller's effect or not at all, under the lease only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroom import Message, Outbox
from postroom.idempotency import InProgress, Ledger, Replay, Run, digest_of
from postroom.rules.ordering import key_hash, lane_of
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.outbox.leases import Claimed, Dead, Duplicate, GivenBack, Lane, Rerouted, Retry, Sent, Settlement
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.settlements import Written
from postroom.store.sql.steps import arun, run
from tests.contract import clock
from tests.contract.connection_kinds import KINDS
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.connections.stores import Store
    from postroom.store.sql.names import Names
    from tests.contract.connection_callers import Caller

OUTBOX = Outbox()
LEDGER = Ledger()
DIGEST = digest_of("POST", "/orders", "", b"{}")
NOTHING_LOST = Written([], {})

BY_NAME = {kind.name: kind for kind in KINDS}
each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
on_each_database = pytest.mark.parametrize(
    "kind", [pytest.param(BY_NAME[name], id=name) for name in ("sqlite3", "psycopg", "asyncpg", "PyMySQL", "aiomysql")]
)
KEYS = sorted({lane_of(key_hash(str(n))): str(n) for n in range(500)}.values())
"""A key for each lane."""
keyed_or_not = pytest.mark.parametrize("key", [None, "customer 7"], ids=["row", "lane"])


class Worker:
    """Claims deliveries on a store of its own, and settles them on the caller's connection."""

    def __init__(self, database: Database, caller: Caller) -> None:
        self.store = database.store
        self.caller = caller
        self.protocol = QueueStore(self.store.names)

    def add(self, *messages: Message) -> None:
        self.caller.add_many(OUTBOX, list(messages))
        self.commit()

    def commit(self) -> None:
        self.caller.commit()
        self.caller.begin()

    def claim(self, worker: str = "worker") -> list[Claimed]:
        """What is free, without a key or in lanes, under a lease of half a minute."""
        return claim(self.store, self.protocol, worker)

    def settle(self, *settlements: Settlement) -> Written:
        """Settle in the caller's transaction, which stays open."""
        settle = self._asettle if self.caller.runner else self._settle
        written: Written = self.caller.wait(settle(settlements))
        return written

    def _settle(self, settlements: Sequence[Settlement]) -> Written:
        kind = sync_kind(self.caller.connection, "settle")
        return run(self.protocol.settlements.in_transaction(settlements), kind.execute)

    async def _asettle(self, settlements: Sequence[Settlement]) -> Written:
        kind = await async_kind(self.caller.connection, "asettle")
        return await arun(self.protocol.settlements.in_transaction(settlements), kind.execute)

    def end_leases(self) -> None:
        clock.advance(self.store, 60)


@pytest.fixture
def worker(database: Database, caller: Caller) -> Worker:
    worker = Worker(database, caller)
    worker.end_leases()
    database.rows("DELETE FROM {delivery}")
    return worker


def claim(store: Store, protocol: QueueStore, worker: str) -> list[Claimed]:
    lanes = store.run(protocol.lanes.take(worker, 30))
    read = store.run(protocol.lanes.read(lanes, 100, 30)).messages
    return [*read, *store.run(protocol.rows.claim(worker, 100, 30)).messages]


def message(key: str | None = None) -> Message:
    return Message.new("orders", {"number": str(uuid4())}, key=key)


def outcomes(database: Database, claimed: list[Claimed]) -> list[str | None]:
    """What the receipts say, one for each; None where there is none."""
    found: dict[int, str] = dict(database.rows("SELECT position, outcome FROM {receipt}"))
    return [found.get(one.position) for one in claimed]


def states(database: Database, claimed: list[Claimed]) -> list[int | None]:
    """The stored states of the deliveries; None where there is none."""
    found: dict[int, int] = dict(database.rows("SELECT position, state FROM {delivery}"))
    return [found.get(one.position) for one in claimed]


@each_kind
def test_what_is_settled_commits_with_the_effect(worker: Worker, caller: Caller, database: Database) -> None:
    worker.add(message(), message("key"))
    claimed = worker.claim()
    insert, business = business_row()
    caller.sql(insert)
    assert worker.settle(*map(Sent, claimed)) == NOTHING_LOST
    caller.commit()
    assert database.has_business(business)
    assert outcomes(database, claimed) == ["sent", "sent"]
    assert states(database, claimed) == [None, None]


@each_kind
def test_what_is_settled_rolls_back_with_the_effect(worker: Worker, caller: Caller, database: Database) -> None:
    worker.add(message(), message("key"))
    claimed = worker.claim()
    assert worker.settle(*map(Sent, claimed)) == NOTHING_LOST
    insert, business = business_row()
    caller.sql(insert)
    caller.rollback()
    assert not database.has_business(business)
    assert outcomes(database, claimed) == [None, None]
    assert (
        worker.store.run(worker.protocol.settlements.settle([*map(Sent, claimed)])) == []
    )  # still held, as if never settled
    assert outcomes(database, claimed) == ["sent", "sent"]


@on_each_database
def test_no_settlements_need_no_statement(worker: Worker) -> None:
    assert worker.settle() == NOTHING_LOST


@on_each_database
def test_every_kind_of_settlement_can_be_written(worker: Worker, caller: Caller, database: Database) -> None:
    worker.add(*(message() for _ in range(6)))
    sent, same, failed, dead, back, moved = claimed = worker.claim()
    settlements: list[Settlement] = [
        Sent(sent, "offset 7"),
        Duplicate(same, "offset 6"),
        Retry(failed, 60, "TIMEOUT", "no answer"),
        Dead(dead, "REFUSED", "no"),
        GivenBack(back),
        Rerouted(moved, "other"),
    ]
    assert worker.settle(*settlements) == NOTHING_LOST
    caller.commit()
    assert outcomes(database, claimed) == ["sent", "duplicate", None, None, None, None]
    assert states(database, claimed) == [None, None, 2, 3, 0, 0]
    assert [one.position for one in worker.claim()] == [back.position]
    elsewhere = claim(worker.store, QueueStore(worker.store.names, "other"), "worker")
    assert [one.position for one in elsewhere] == [moved.position]


@on_each_database
@keyed_or_not
def test_a_lease_that_has_ended_is_lost_and_nothing_is_written(
    worker: Worker, caller: Caller, database: Database, key: str | None
) -> None:
    worker.add(message(key))
    [late] = claimed = worker.claim()
    worker.end_leases()
    assert worker.settle(Sent(late)) == Written([late], {})
    caller.commit()
    assert outcomes(database, claimed) == [None]
    assert states(database, claimed) == [0]


@on_each_database
@keyed_or_not
def test_a_lease_that_another_has_is_lost_and_the_other_can_settle(
    worker: Worker, caller: Caller, database: Database, key: str | None
) -> None:
    worker.add(message(key))
    [late] = worker.claim("slow")
    worker.end_leases()
    [again] = claimed = worker.claim("quick")
    assert worker.settle(Sent(late)).lost == [late]
    caller.rollback()
    caller.begin()
    assert outcomes(database, claimed) == [None]
    assert worker.settle(Sent(again)) == NOTHING_LOST
    caller.commit()
    assert outcomes(database, claimed) == ["sent"]


@on_each_database
def test_of_several_only_the_lost_ones_are_told(worker: Worker, caller: Caller, database: Database) -> None:
    worker.add(message())
    [late] = worker.claim()
    worker.end_leases()
    worker.add(message())
    [held] = [one for one in worker.claim("another") if one.position != late.position]
    assert worker.settle(Sent(held), Sent(late)).lost == [late]
    caller.commit()
    assert outcomes(database, [held, late]) == ["sent", None]


@pytest.mark.parametrize("kind", [pytest.param(BY_NAME[name], id=name) for name in ("psycopg", "PyMySQL")])
@keyed_or_not
def test_nobody_claims_what_is_settled_before_the_transaction_ends_even_if_the_lease_does(
    worker: Worker, caller: Caller, database: Database, key: str | None
) -> None:
    worker.add(message(key))
    [one] = claimed = worker.claim()
    assert worker.settle(Sent(one)) == NOTHING_LOST
    later = a_minute_later(worker.store.names)
    assert one.lane not in {lane.number for lane in worker.store.run(later.lanes.take("another", 30))}
    assert worker.store.run(later.rows.claim("another", 100, 30)).messages == []
    caller.commit()
    assert outcomes(database, claimed) == ["sent"]


@pytest.mark.parametrize("kind", [pytest.param(BY_NAME[name], id=name) for name in ("psycopg", "PyMySQL")])
@pytest.mark.parametrize("others", [2, 5, 15])
@pytest.mark.parametrize("is_keyed", [False, True], ids=["rows", "lanes"])
def test_what_is_settled_in_an_open_transaction_stops_no_other_delivery(
    worker: Worker, caller: Caller, database: Database, *, others: int, is_keyed: bool
) -> None:
    """MySQL, left to itself, reads a small queue as a whole, and waits for the one row that is locked."""
    worker.add(*(message(KEYS[n] if is_keyed else None) for n in range(others + 1)))
    lanes = worker.store.run(worker.protocol.lanes.take("worker", 30))
    read = worker.store.run(worker.protocol.lanes.read(lanes, 100, 30)).messages
    claimed = [*read, *worker.store.run(worker.protocol.rows.claim("worker", 100, 30)).messages]
    hung, *free = sorted(claimed, key=lambda one: one.lane if is_keyed else -one.position)
    assert worker.settle(Sent(hung)) == NOTHING_LOST
    free_lanes = [lane for lane in lanes if lane.number != hung.lane]
    retried, sent = free[: others // 2], free[others // 2 :]
    with ThreadPoolExecutor() as threads:
        settle = worker.protocol.settlements.settle

        def work() -> None:
            assert worker.store.run(settle([Retry(one, 60, "TIMEOUT", "late") for one in retried])) == []
            assert worker.store.run(settle([Sent(one) for one in sent])) == []
            worker.store.run(worker.protocol.lanes.read(free_lanes, 100, 30))
            worker.store.run(worker.protocol.sql.transaction(worker.protocol.sql.reread_lanes, "default", numbers))

        numbers = [lane.number for lane in free_lanes]
        done = threads.submit(work)
        try:
            done.result(timeout=10)
        finally:
            caller.commit()
    assert outcomes(database, sent) == ["sent"] * len(sent)


@pytest.mark.parametrize("kind", [pytest.param(BY_NAME[name], id=name) for name in ("psycopg", "PyMySQL")])
def test_a_read_need_not_wait_for_the_lane_of_an_open_transaction(
    worker: Worker, caller: Caller, database: Database
) -> None:
    """It reads that lane too, but does not renew it; what is due there comes later."""
    worker.add(*(message(key) for key in KEYS), *(message(key) for key in KEYS))
    protocol = worker.protocol
    lanes = [Lane(one.number, one.token) for one in worker.store.run(protocol.lanes.take("worker", 30))]
    claimed = worker.store.run(protocol.lanes.read(lanes, 100, 30)).messages
    assert (
        worker.store.run(protocol.settlements.settle([Retry(one, 0, "TIMEOUT", "late") for one in claimed[16:]])) == []
    )
    hung = claimed[0]
    assert worker.settle(Sent(hung)) == NOTHING_LOST
    before = lease_ends(database)
    with ThreadPoolExecutor() as threads:
        try:
            promoted = threads.submit(worker.store.run, protocol.lanes.promote(lanes, wait=False)).result(timeout=10)
            assert sorted(promoted) == [lane.number for lane in lanes if lane.number != hung.lane]
            read = protocol.lanes.read(lanes, 100, 60, wait=False)
            found = threads.submit(worker.store.run, read).result(timeout=10).messages
            assert {one.position for one in found} >= {one.position for one in claimed[:16]}
        finally:
            caller.commit()
    renewed = {lane for lane, until in lease_ends(database).items() if until > before[lane]}
    assert renewed == {lane.number for lane in lanes} - {hung.lane}
    assert list(worker.store.run(protocol.lanes.promote(lanes, wait=False))) == [hung.lane]


def lease_ends(database: Database) -> dict[int, Any]:
    """When the lease of each lane of the default queue ends."""
    return dict(database.rows("SELECT lane, leased_until FROM {lane} WHERE queue = 'default'"))


def a_minute_later(names: Names) -> QueueStore:
    """The lease protocol with a clock that is a minute ahead."""
    protocol = QueueStore(names)
    protocol.sql.now = protocol.sql.dialect.later("60")
    return protocol


@pytest.mark.parametrize("kind", [pytest.param(BY_NAME["sqlite3"], id="sqlite3")])
def test_without_locks_on_rows_the_lease_is_read_by_the_one_that_writes(worker: Worker, caller: Caller) -> None:
    """Python's sqlite3 begins no transaction for a SELECT."""
    worker.add(message())
    [one] = worker.claim()
    steps = worker.protocol.settlements.in_transaction([Sent(one)])
    sync_kind(caller.connection, "settle").execute(next(steps))
    assert caller.connection.in_transaction
    caller.rollback()


def of_request(worker: Worker, key: str) -> Claimed:
    """The message to which a keyed request was left, claimed."""
    decision = worker.caller.ledger(LEDGER, "begin", key, DIGEST)
    assert isinstance(decision, Run)
    worker.caller.add(OUTBOX, "orders", ledger=decision.entry)
    worker.commit()
    [claimed] = worker.claim()
    return claimed


@on_each_database
def test_L_12_the_ledger_has_the_outcome_from_the_same_commit(worker: Worker, caller: Caller) -> None:
    key = str(uuid4())
    claimed = of_request(worker, key)
    assert worker.settle(Sent(claimed, "offset 7")) == NOTHING_LOST
    caller.rollback()
    caller.begin()
    assert isinstance(caller.ledger(LEDGER, "begin", key, DIGEST), InProgress)
    assert worker.settle(Sent(claimed, "offset 7")) == NOTHING_LOST
    worker.commit()
    replayed = caller.ledger(LEDGER, "begin", key, DIGEST)
    assert isinstance(replayed, Replay)
    assert (replayed.failed, replayed.response.status) == (False, 200)


@on_each_database
def test_L_12_a_lost_lease_tells_the_ledger_nothing(worker: Worker, caller: Caller) -> None:
    key = str(uuid4())
    claimed = of_request(worker, key)
    worker.end_leases()
    assert worker.settle(Sent(claimed)).lost == [claimed]
    worker.commit()
    assert isinstance(caller.ledger(LEDGER, "begin", key, DIGEST), InProgress)


@on_each_database
def test_L_12_what_the_ledger_knows_better_is_written_instead(
    worker: Worker, caller: Caller, database: Database
) -> None:
    claimed = of_request(worker, str(uuid4()))
    assert worker.settle(Sent(claimed)) == NOTHING_LOST
    caller.rollback()
    caller.begin()
    database.rows("UPDATE {idempotency} SET status = 'succeeded', http_status = 200")
    assert worker.settle(Dead(claimed, "REFUSED", "no")).instead == {claimed.lease: Duplicate(claimed)}
    caller.commit()
    assert outcomes(database, [claimed]) == ["duplicate"]
