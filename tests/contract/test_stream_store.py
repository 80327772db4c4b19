"""The stream's store on PostgreSQL: one reader at a time, records under its lease alone, and what the table holds."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import pytest
from sqlalchemy import create_engine

from postroom import Message, Outbox
from postroom.rules.ordering import NO_LANE, key_hash, lane_of
from postroom.rules.stream.modes import Mode
from postroom.store.connections.stores import Store
from postroom.store.connections.urls import resolve
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream import records as records_module
from postroom.store.stream.leadership import Leadership, Term
from postroom.store.stream.records import NewDelivery, NewReceipts, StreamRecords
from postroom.store.stream.slots import Slots
from postroom.store.stream.switching import FINISHED, Switching
from tests.contract.schema_support import engine_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.store.sql.steps import Row
    from tests.conftest import FreshDatabase

T = TypeVar("T")
LONG = 60.0


class Desk:
    """The store of an outbox, and what is in it."""

    def __init__(self, url: str) -> None:
        self._store = Store(url)
        self._store.call(lambda connection: upgrade(connection, self._store.names))
        self.url = url
        self._engine = create_engine(resolve(url))
        names = self._store.names
        self.leadership, self.records = Leadership(names), StreamRecords(names)
        self.slots, self.switching = Slots(names), Switching(names)

    def run(self, steps: Steps[T]) -> T:
        return self._store.run(steps)

    def rows(self, text: str) -> Sequence[Row]:
        def asked() -> Steps[Sequence[Row]]:
            return (yield Query(text)).rows

        return self.run(asked())

    def lead(self, owner: str = "a") -> Term:
        """Take the lease, and put the outbox into the stream."""
        term = self.run(self.leadership.take(owner, LONG))
        assert term is not None
        assert self.run(self.leadership.begin(term.token, "slot", "1", 7, term.done))
        return term

    def expire(self) -> None:
        """Let the lease end."""
        self.rows("UPDATE postroom.outbox_stream SET leased_until = '-infinity' RETURNING 1")

    def add(self, *keys: str | None) -> list[int]:
        """Add messages to the stream; returns their positions."""
        with self._engine.begin() as connection:
            Outbox(cdc=True).add_many(connection, [Message.new("t", n, key=key) for n, key in enumerate(keys)])
        found = self.rows("SELECT position FROM postroom.outbox WHERE streamed ORDER BY position")
        return [position for [position] in found][-len(keys) :]

    def deliveries(self) -> list[tuple[object, ...]]:
        return [
            tuple(row) for row in self.rows("SELECT position, state, lane FROM postroom.outbox_delivery ORDER BY 1")
        ]

    def receipts(self) -> list[tuple[object, ...]]:
        return [
            tuple(row) for row in self.rows("SELECT position, outcome, answer FROM postroom.outbox_receipt ORDER BY 1")
        ]

    def close(self) -> None:
        self._engine.dispose()
        self._store.close()


@pytest.fixture
def desk(ready_database: FreshDatabase) -> Iterator[Desk]:
    with closing(Desk(ready_database("postgresql"))) as desk:
        yield desk


def parked(position: int, key: str | None = None, state: int = 0) -> NewDelivery:
    hashed = None if key is None else key_hash(key)
    lane = NO_LANE if hashed is None else lane_of(hashed)
    code = "" if state == 0 else "X"
    return NewDelivery(position, "default", state, lane, hashed, 3, 60.0, int(state > 0), 0, code, "")


def sent(*positions: int) -> NewReceipts:
    return NewReceipts(positions, ["sent"] * len(positions), [None] * len(positions))


def test_one_reads_at_a_time_and_the_next_learns_how_the_last_one_went(desk: Desk) -> None:
    first = desk.lead("a")
    assert (first.interrupted, first.done) == (False, 0)
    assert desk.run(desk.leadership.take("b", LONG)) is None
    assert desk.run(desk.leadership.renew(first.token, LONG, 70)) is Mode.STREAM
    assert desk.run(desk.leadership.renew(first.token, LONG, 50)) is Mode.STREAM
    desk.run(desk.leadership.release(first.token, 80, 90))
    second = desk.run(desk.leadership.take("b", LONG))
    assert second is not None
    assert (first.read_to, second.read_to) == (0, 90)
    assert (second.interrupted, second.done, second.slot, second.system_id) == (False, 80, "slot", "1")
    desk.expire()
    third = desk.run(desk.leadership.take("c", LONG))
    assert third is not None
    assert third.interrupted
    assert desk.run(desk.leadership.renew(second.token, LONG, 0)) is None
    assert not desk.run(desk.leadership.begin(second.token, "other", "1", 7, 0))
    desk.run(desk.leadership.release(second.token, 999))
    assert desk.run(desk.leadership.state()).done == 80
    assert desk.run(desk.leadership.state()).owner == "c"


def test_without_begin_only_a_stream_in_use_is_taken(desk: Desk) -> None:
    assert desk.run(desk.leadership.take("a", LONG, begin=False)) is None
    term = desk.lead()
    desk.run(desk.leadership.release(term.token, 0))
    assert desk.run(desk.leadership.take("a", LONG, begin=False)) is not None


def test_records_are_written_under_the_lease_or_not_at_all(desk: Desk) -> None:
    term = desk.lead()
    a, b, c, d = desk.add("k", "k", None, None)
    assert desk.run(desk.records.record(term.token, sent(c), []))
    assert desk.run(desk.records.record(term.token, sent(d), [parked(a, "k", 2), parked(b, "k")]))
    lane = lane_of(key_hash("k"))
    assert desk.receipts() == [(c, "sent", None), (d, "sent", None)]
    assert desk.deliveries() == [(a, 2, lane), (b, 0, lane)]
    assert desk.rows("SELECT position, attempt, worker FROM postroom.outbox_attempt") == [(a, 1, "a")]
    [e, f] = desk.add(None, None)
    desk.expire()
    assert not desk.run(desk.records.record(term.token, sent(e), []))
    assert not desk.run(desk.records.record(term.token, sent(e), [parked(f)]))
    assert (len(desk.receipts()), len(desk.deliveries())) == (2, 2)


def test_a_receipt_that_is_there_already_stays(desk: Desk) -> None:
    term = desk.lead()
    a, b = desk.add(None, None)
    mixed = NewReceipts([a, b], ["sent", "duplicate"], ["offset 1", None])
    assert desk.run(desk.records.record(term.token, mixed, []))
    assert desk.run(desk.records.record(term.token, sent(a, b), []))
    assert desk.receipts() == [(a, "sent", "offset 1"), (b, "duplicate", None)]


def test_a_key_is_held_by_what_is_ready_failed_or_dead_and_not_by_what_is_scheduled(desk: Desk) -> None:
    term = desk.lead()
    keys = ["ready", "failed", "dead", "scheduled", "free"]
    positions = desk.add(*keys)
    states = {"ready": 0, "failed": 2, "dead": 3, "scheduled": 1}
    deliveries = [
        parked(position, key, states[key]) for position, key in zip(positions, keys, strict=True) if key in states
    ]
    assert desk.run(desk.records.record(term.token, NewReceipts(), deliveries))
    hashes = {key_hash(key): lane_of(key_hash(key)) for key in keys}
    held = desk.run(desk.records.held_keys("default", hashes))
    assert {key for key in keys if held.has(key_hash(key), lane_of(key_hash(key)))} == {"ready", "failed", "dead"}
    assert not desk.run(desk.records.held_keys("other", hashes)).hashes


def test_of_a_long_lane_every_key_is_held(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "LOOKED_AT", 2)
    term = desk.lead()
    positions = desk.add("a", "a", "a")
    assert desk.run(desk.records.record(term.token, NewReceipts(), [parked(one, "a") for one in positions]))
    lane = lane_of(key_hash("a"))
    held = desk.run(desk.records.held_keys("default", {1: lane, 2: (lane + 1) % 16}))
    assert held.has(1, lane)
    assert not held.has(2, (lane + 1) % 16)
    assert not held.has(None, NO_LANE)


def test_what_is_on_record_is_told_apart_in_every_state_and_queue(desk: Desk) -> None:
    term = desk.lead()
    positions = desk.add("k", "k", "k", "k", "k", None, "k", "k")
    ready, failed, dead, scheduled, elsewhere, receipt, removed, left = positions
    deliveries = [parked(ready, "k"), parked(failed, "k", 2), parked(dead, "k", 3), parked(scheduled, "k", 1)]
    deliveries.append(parked(elsewhere, "k")._replace(queue="other"))
    assert desk.run(desk.records.record(term.token, sent(receipt), deliveries))
    desk.rows(f"DELETE FROM postroom.outbox WHERE position = {removed} RETURNING 1")
    lane = lane_of(key_hash("k"))
    places = [(one, NO_LANE if one == receipt else lane) for one in positions]
    assert desk.run(desk.records.unrecorded(places, {"default", "other"})) == {left}
    assert desk.run(desk.records.unrecorded(places, {"default"})) == {left, elsewhere}


def test_a_sweep_gives_deliveries_to_what_has_none_and_only_under_the_lease(desk: Desk) -> None:
    term = desk.lead()
    a, b, c = desk.add("k", None, "k")
    assert desk.run(desk.records.record(term.token, sent(a), []))
    assert desk.run(desk.records.sweep(None)) is None
    assert desk.run(desk.records.sweep(term.token + 1)) is None
    assert desk.run(desk.records.sweep(term.token)) == 2
    assert desk.run(desk.records.sweep(term.token)) == 0
    desk.run(desk.leadership.release(term.token, 0, 90))
    assert desk.run(desk.records.sweep(None)) == 0
    after = desk.run(desk.leadership.take("b", LONG))
    assert after is not None
    assert after.read_to == 0  # what it finds may be on record already
    assert desk.deliveries() == [(b, 0, NO_LANE), (c, 0, lane_of(key_hash("k")))]
    [[hashed]] = desk.rows(f"SELECT key_hash FROM postroom.outbox_delivery WHERE position = {c}")
    assert hashed == key_hash("k")


def test_an_outbox_goes_back_to_the_table_only_when_no_transaction_can_write_to_the_stream(desk: Desk) -> None:
    assert not desk.run(desk.switching.begin())
    assert desk.run(desk.switching.advance()) == FINISHED
    term = desk.lead()
    [a] = desk.add("k")
    with engine_for(desk.url) as engine, engine.connect() as late:
        Outbox(cdc=True).add(late, "t", "late")
        assert desk.run(desk.switching.begin())
        assert "still reads" in desk.run(desk.switching.advance())
        assert desk.run(desk.leadership.take("b", LONG)) is None
        desk.run(desk.leadership.release(term.token, 0))
        desk.rows("UPDATE postroom.outbox_lane SET leased_until = 'infinity' WHERE lane = 0 RETURNING 1")
        assert desk.run(desk.switching.advance()) == "1 lanes are still held"
        desk.rows("UPDATE postroom.outbox_lane SET leased_until = '-infinity' RETURNING 1")
        assert "1 open transactions" in desk.run(desk.switching.advance())
        with engine.begin() as after:
            Outbox(cdc=True).add(after, "t", "to the table")
        assert desk.rows("SELECT count(*) FROM postroom.outbox WHERE NOT streamed") == [(1,)]
        assert "1 open transactions" in desk.run(desk.switching.advance())
        late.commit()
    assert desk.run(desk.switching.advance()) == FINISHED
    assert desk.run(desk.leadership.state()).mode is Mode.TABLE
    assert len(desk.deliveries()) == 3
    assert desk.deliveries()[0][0] == a


def test_each_way_back_waits_for_the_transactions_of_its_own_time(desk: Desk) -> None:
    """A relay that helped with the first one took the second for one that nobody could write to any more."""
    for _ in range(2):
        term = desk.lead()
        assert desk.run(desk.leadership.change_mode([Mode.STREAM], Mode.CLOSING))
        desk.run(desk.leadership.release(term.token, 0))
        with engine_for(desk.url) as engine, engine.connect() as late:
            Outbox(cdc=True).add(late, "t", "late")
            assert "1 open transactions" in desk.run(desk.switching.advance())
            late.commit()
        assert desk.run(desk.switching.advance()) == FINISHED
    assert len(desk.deliveries()) == 2


def test_a_prepared_transaction_is_waited_for_whatever_number_it_has(desk: Desk) -> None:
    """After a restart of the server, it has another virtual one."""
    term = desk.lead()
    with engine_for(desk.url) as engine, engine.connect() as late:
        Outbox(cdc=True).add(late, "t", "late")
        late.exec_driver_sql("PREPARE TRANSACTION 'late'")
        desk.run(desk.leadership.change_mode([Mode.STREAM], Mode.CLOSING))
        desk.run(desk.leadership.release(term.token, 0))
        assert "1 open transactions" in desk.run(desk.switching.advance())
        older = desk.run(desk.slots.open_transactions())
        assert {one[0] for one in older} == {"v", "x"}
        desk.switching._older = {one for one in older if one.startswith("x")}  # as after a restart
        assert "1 open transactions" in desk.run(desk.switching.advance())
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            other.exec_driver_sql("COMMIT PREPARED 'late'")
    assert desk.run(desk.switching.advance()) == FINISHED
    assert len(desk.deliveries()) == 1


def test_nobody_begins_while_the_outbox_is_taken_out_of_the_stream(desk: Desk) -> None:
    term = desk.lead()
    assert desk.run(desk.switching.begin())
    assert not desk.run(desk.leadership.begin(term.token, "slot", "1", 7, 0))
    assert desk.run(desk.leadership.state()).mode is Mode.CLOSING


def test_the_publication_is_that_of_the_outbox_as_it_is_now(desk: Desk) -> None:
    assert not desk.run(desk.slots.is_published())
    desk.run(desk.slots.publish())
    assert desk.run(desk.slots.is_published())
    desk.rows("ALTER TABLE postroom.outbox RENAME TO former")
    desk.rows("CREATE TABLE postroom.outbox (LIKE postroom.former INCLUDING ALL)")
    assert not desk.run(desk.slots.is_published())
    desk.run(desk.slots.publish())
    assert desk.run(desk.slots.is_published())
