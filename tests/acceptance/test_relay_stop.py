"""A relay that is stopped in the middle of something leaves nothing behind."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any

from postroom import Relay
from postroom.brokers.memory import MemoryBroker
from postroom.store.connections.stores import Store
from postroom.store.outbox.lanes import Lanes
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    import pytest

    from postroom.store.outbox.leases import Lane
    from postroom.store.sql.steps import Steps
    from tests.conftest import FreshDatabase


async def test_R_4_lanes_that_are_being_taken_when_the_relay_stops_are_released(
    fresh_database: FreshDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fresh_database("postgresql")
    at_work, taken = asyncio.Event(), asyncio.Event()
    take = Lanes.take

    def take_slowly(self: Lanes, *args: Any, **options: Any) -> Steps[list[Lane]]:
        lanes = yield from take(self, *args, **options)
        if lanes:
            taken.set()
            yield Query("SELECT pg_sleep(0.3)")  # committed, and the relay does not know yet
        return lanes

    with closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        operations = QueueStore(store.names)
        before = store.run(operations.lanes.take("another", 60))
        monkeypatch.setattr(Lanes, "take", take_slowly)
        relay = Relay(url, MemoryBroker(), lane_lease_sec=60, hook=lambda _: at_work.set())
        async with asyncio.timeout(30), relay:
            await at_work.wait()
            store.run(operations.lanes.release(before))
            await taken.wait()
        held = operations.sql.statement(f"SELECT lane FROM {operations.sql.lane} WHERE owner <> ''", {})
        assert store.run(held) == []
