"""Who reads the stream, from when to when: taking over, ending, going back to the table."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from postroom import Message, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.store.connections.stores import Store
from postroom.store.stream.switching import FINISHED, Switching
from tests.acceptance.streaming import QUICK, Streaming, by_key, noting, numbered, running
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase


@pytest.fixture
def service(ready_database: FreshDatabase) -> Iterator[Streaming]:
    with closing(Streaming(ready_database("postgresql"))) as service:
        yield service


async def test_R_7_an_outbox_goes_into_the_stream_and_back_while_it_is_used(service: Streaming) -> None:
    """Keys that are in the table leave before those in the stream, and the other way round."""
    sent: list[Message] = []
    changes: list[str] = []

    async def publish(message: Message) -> None:
        await asyncio.sleep(0.001)
        sent.append(message)

    stop = asyncio.Event()
    added = 0

    async def produce() -> None:
        nonlocal added
        while not stop.is_set():
            await asyncio.to_thread(service.add, *numbered(5, added))
            added += 5

    table_relay = Relay(service.url, publish, **QUICK)
    async with table_relay, asyncio.TaskGroup() as group:
        producing = group.create_task(produce())
        await wait_for(lambda: len(sent) > 50)
        async with running(service, publish, hook=noting(changes)):
            so_far = len(sent)
            await wait_for(lambda: len(sent) > so_far + 100)
            assert service.count("outbox", "streamed") > 0
            with closing(Store(service.url)) as store:
                switching = Switching(store.names)
                assert await asyncio.to_thread(store.run, switching.begin())
                while await asyncio.to_thread(store.run, switching.advance()) != FINISHED:
                    pass
            await wait_for(lambda: service.mode() == "table")
            streamed, so_far = service.count("outbox", "streamed"), len(sent)
            await wait_for(lambda: len(sent) > so_far + 100)
            assert service.count("outbox", "streamed") == streamed
            stop.set()
            await producing
            await wait_for(lambda: service.is_settled(added))
    assert service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
    assert {one.json() for one in sent} == set(range(added))
    assert {key: numbers for key, numbers in by_key(sent).items() if numbers != sorted(numbers)} == {}


async def test_R_7_a_standby_takes_over_at_once_from_one_that_leaves(service: Streaming) -> None:
    broker = MemoryBroker()
    async with running(service, broker) as first, Relay(service.url, broker, cdc=True, **QUICK) as second:
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
        first.stop()
        await wait_for(lambda: service.reader() == second.worker)
        service.add(*numbered(10, 10))
        await wait_for(lambda: service.is_settled(20))
    assert len(broker.messages) == 20


async def test_R_7_a_run_that_ends_by_itself_reads_all_that_was_committed(service: Streaming) -> None:
    broker = MemoryBroker()
    relay = Relay(service.url, broker, cdc=True, **QUICK)
    assert (await relay.run_until_empty()).sent == 0
    service.add(*numbered(3000))
    assert (await Relay(service.url, broker, cdc=True, **QUICK).run_until_empty()).sent == 3000
    service.add(*numbered(20, 3000))
    assert (await Relay(service.url, broker, cdc=True, **QUICK).run_once()).sent == 20
    assert service.is_settled(3020)


async def test_R_7_a_slot_that_holds_too_much_is_given_up(service: Streaming) -> None:
    """An open transaction keeps the slot from moving on, whatever the relay does."""
    broker = MemoryBroker()
    changes: list[str] = []

    async with running(service, broker, cdc_max_wal_bytes=1024 * 1024, hook=noting(changes)):
        with service.engine.connect() as holder:
            service.outbox.add(holder, "t", "held")
            while service.mode() == "stream":
                service.add(*(Message.new("t", "x" * 100_000) for _ in range(10)))
                await asyncio.sleep(0.05)
            holder.commit()
        await wait_for(lambda: service.mode() == "table")
        service.add(Message.new("t", "after"))
        await wait_for(lambda: not service.count("delivery") and service.count("receipt") == service.count("outbox"))
    assert "gave up" in changes
    assert {b"held", b"after"} <= {one.payload for one in broker.messages}
    assert service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


async def test_R_7_a_relay_that_stops_within_a_large_transaction_leaves_the_rest_to_the_next(
    service: Streaming,
) -> None:
    sent: list[Message] = []

    async def publish(messages: list[Message]) -> None:
        await asyncio.sleep(0.01)
        sent.extend(messages)

    relay = Relay(service.url, publish, cdc=True, **{**QUICK, "batch": 20})
    async with relay:
        await wait_for(lambda: service.reader() == relay.worker)
        service.add(*numbered(3000, keys=50))
        await wait_for(lambda: len(sent) > 200)
    first = len(sent)
    assert first < 3000
    async with running(service, publish):
        await wait_for(lambda: service.is_settled(3000))
    assert len(sent) == 3000  # none twice: it left in order
    assert all(numbers == sorted(numbers) for numbers in by_key(sent).values())


async def test_R_7_a_relay_that_waits_for_its_slot_stops_at_once(service: Streaming) -> None:
    making = (
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' "
        "AND query LIKE '%create_logical%' AND pid <> pg_backend_pid()"
    )
    changes: list[str] = []
    with service.engine.connect() as holder:
        service.outbox.add(holder, "t", "held")
        async with asyncio.timeout(30):
            relay = Relay(service.url, MemoryBroker(), cdc=True, hook=noting(changes), **QUICK)
            running = asyncio.create_task(relay.run())
            await wait_for(lambda: service.rows(making))
            relay.stop()
        async with asyncio.timeout(6):
            await running
        holder.rollback()
    assert changes == []
    assert service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
