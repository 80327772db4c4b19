"""Sagas in the caller's transaction, for every kind of connection: with the caller's effect or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pytest

from postroom.errors import IdempotencyConflict
from postroom.rules.saga_plan import SagaOutcome
from postroom.saga import messages
from postroom.store.connections.kinds import async_kind, sync_kind
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.writers import WRITERS
from postroom.store.saga.saga_store import SagaStore
from postroom.store.saga.values import Aborted, Event, Logged, Received
from postroom.store.sql.steps import Steps, arun, run
from tests.contract.connection_kinds import KINDS
from tests.contract.stored_sagas import NAME, OFF, done, start_message
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from postroom.store.outbox.leases import Claimed
    from tests.contract.connection_callers import Caller

T = TypeVar("T")

each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])


class Shop:
    """A service with a connection of its own, and the worker of its saga on another."""

    def __init__(self, database: Database, caller: Caller) -> None:
        self.database = database
        self.caller = caller
        self.store = SagaStore(database.store.names, NAME, notify=True)
        self.queue = QueueStore(database.store.names, f"saga:{NAME}", limits=OFF)
        self.id = str(uuid4())

    def run(self, steps: Steps[T]) -> T:
        """On the caller's connection, in its transaction."""
        found: T = self.caller.wait(self._arun(steps) if self.caller.runner else self._run(steps))
        return found

    def _run(self, steps: Steps[T]) -> T:
        return run(steps, sync_kind(self.caller.connection, "start").execute)

    async def _arun(self, steps: Steps[T]) -> T:
        return await arun(steps, (await async_kind(self.caller.connection, "astart")).execute)

    def commit(self) -> None:
        self.caller.commit()
        self.caller.begin()

    def rollback(self) -> None:
        self.caller.rollback()
        self.caller.begin()

    def worker(self, steps: Steps[T]) -> T:
        return self.database.store.run(steps)

    def start(self, data: bytes = b"{}", deadline: float | None = 60) -> Any:
        return self.run(self.store.start(start_message(self.id, data), deadline))

    def claim(self) -> Claimed:
        [claimed] = self.worker(self.queue.rows.claim("worker", 100, 30)).messages
        return claimed

    def outcome(self) -> list[tuple[int, int]]:
        return [
            tuple(row) for row in self.database.rows("SELECT direction, outcome FROM {saga} WHERE id = :id", id=self.id)
        ]


@pytest.fixture
def shop(database: Database, caller: Caller) -> Shop:
    for table in ("delivery", "saga", "saga_step"):
        database.rows(f"DELETE FROM {{{table}}}")
    return Shop(database, caller)


@each_kind
def test_a_saga_begins_with_the_callers_effect_or_not_at_all(shop: Shop, database: Database) -> None:
    shop.start()
    shop.rollback()
    assert shop.outcome() == []
    insert, business = business_row()
    shop.caller.sql(insert)
    assert not shop.start().duplicate
    assert shop.start().duplicate
    shop.commit()
    assert database.has_business(business)
    assert shop.outcome() == [(0, 0)]
    with pytest.raises(IdempotencyConflict):
        shop.start(b"1")
    shop.rollback()


@each_kind
def test_a_step_is_logged_with_its_effect_or_not_at_all(shop: Shop, database: Database) -> None:
    shop.start()
    shop.commit()
    claimed = shop.claim()
    entry = done("reserve", b"\x00\xff", data=b"{}")
    insert, business = business_row()
    assert shop.run(shop.store.begin(claimed))
    shop.caller.sql(insert)
    assert shop.run(shop.store.log(claimed, [entry])) is Logged.WRITTEN
    shop.rollback()
    assert not database.has_business(business)
    assert shop.run(shop.store.begin(claimed))
    shop.caller.sql(insert)
    assert shop.run(shop.store.log(claimed, [entry])) is Logged.WRITTEN
    shop.commit()
    assert database.has_business(business)
    row = shop.worker(shop.store.read([claimed.position]))[claimed.position].rows[entry.direction, "reserve"]
    assert (row.result, row.data) == (b"\x00\xff", b"{}")
    assert shop.run(shop.store.log(claimed, [entry])) is Logged.DONE_BEFORE
    shop.rollback()
    tell = messages.signal_message("parent", "order-1", "shipped", None)
    assert shop.run(shop.store.log(claimed, [done("ship")], SagaOutcome.COMPLETED, tell=tell)) is Logged.WRITTEN
    shop.commit()
    assert shop.outcome() == [(0, 1)]
    assert shop.run(shop.store.log(claimed, [done("again")])) is Logged.LEASE_LOST
    shop.rollback()
    assert len(database.rows("SELECT position FROM {delivery} WHERE queue = 'saga:parent'")) == 1


@each_kind
def test_an_event_is_signalled_taken_and_removed_with_the_effect(shop: Shop, database: Database) -> None:
    shop.start()
    shop.commit()
    claimed = shop.claim()
    signal = messages.signal_message(NAME, shop.id, "parcel", {"by": "ann"})
    shop.run(WRITERS[database.store.names.dialect](database.store.names, signal.topic).add([signal]))
    shop.commit()
    assert shop.worker(shop.store.wait(claimed, "delivered", "parcel", 60)) is None
    assert shop.worker(shop.store.receive(shop.claim(), shop.id, "parcel", signal.payload)) is Received.DELIVERED
    claimed = shop.claim()
    event = shop.worker(shop.store.wait(claimed, "delivered", "parcel", 60))
    assert isinstance(event, Event)
    for commit in (shop.rollback, shop.commit):
        assert len(database.rows("SELECT position FROM {saga_event} WHERE position = :at", at=claimed.position)) == 1
        assert shop.run(shop.store.begin(claimed))
        logged = shop.run(shop.store.log(claimed, [done("delivered")], event=event.message_id))
        assert logged is Logged.WRITTEN
        commit()
    assert not database.rows("SELECT position FROM {saga_event} WHERE position = :at", at=claimed.position)


@each_kind
def test_an_abort_commits_with_the_callers_effect_or_not_at_all(shop: Shop) -> None:
    shop.start()
    shop.commit()
    claimed = shop.claim()
    assert shop.run(shop.store.abort(shop.id, "ann", "")) is Aborted.ABORTED
    shop.rollback()
    assert shop.worker(shop.store.holds(claimed))
    assert shop.run(shop.store.abort(shop.id, "ann", "")) is Aborted.ABORTED
    shop.commit()
    assert shop.outcome() == [(1, 0)]
    assert not shop.worker(shop.store.holds(claimed))
    assert shop.run(shop.store.abort(shop.id, "ann", "")) is Aborted.ALREADY_BACK
    shop.rollback()
