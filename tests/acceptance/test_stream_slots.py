"""Slots and publications that are missing, lost or changed: nothing in the stream is."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from postroom import Relay
from postroom.brokers.memory import MemoryBroker
from postroom.telemetry.events import Event, Reachability, StreamChanged
from tests.acceptance.streaming import QUICK, Streaming, by_key, noting, numbered, running
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase


@pytest.fixture
def service(ready_database: FreshDatabase) -> Iterator[Streaming]:
    with closing(Streaming(ready_database("postgresql"))) as service:
        yield service


async def test_R_7_what_was_written_while_the_publication_was_missing_is_found_in_the_table(service: Streaming) -> None:
    broker = MemoryBroker()
    changes: list[str] = []

    async with running(service, broker):
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
    service.execute("DROP PUBLICATION postroom_outbox")
    service.add(*numbered(10, 10))
    async with running(service, broker, hook=noting(changes)):
        service.add(*numbered(10, 20))
        await wait_for(lambda: service.is_settled(30))
        assert "created" in changes
        service.execute("DROP PUBLICATION postroom_outbox")
        service.add(*numbered(10, 30))
        service.rows("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        await wait_for(lambda: service.is_settled(40))
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())
    assert {one.json() for one in broker.messages} == set(range(40))


async def test_R_7_a_slot_that_the_server_invalidated_is_made_anew(service: Streaming) -> None:
    """As with `max_slot_wal_keep_size`, when no relay ran for long."""
    broker = MemoryBroker()
    async with running(service, broker):
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
    service.add(*numbered(10, 10))
    [[name]] = service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    with service.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        connection.exec_driver_sql("SELECT pg_reload_conf()")
        try:
            status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{name}'"
            while connection.exec_driver_sql(status).scalar() != "lost":
                for _ in range(3):
                    connection.exec_driver_sql("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000))")
                    connection.exec_driver_sql("SELECT pg_switch_wal()")
                connection.exec_driver_sql("CHECKPOINT")
        finally:
            connection.exec_driver_sql("ALTER SYSTEM RESET max_slot_wal_keep_size")
            connection.exec_driver_sql("SELECT pg_reload_conf()")
    async with running(service, broker):
        service.add(*numbered(10, 20))
        await wait_for(lambda: service.is_settled(30))
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())
    assert len(broker.messages) == 30


@pytest.mark.parametrize("who", ["somebody", "a relay that was killed"])
async def test_R_7_a_slot_that_was_made_anew_without_a_sweep_is_noticed(service: Streaming, who: str) -> None:
    broker = MemoryBroker()
    async with running(service, broker):
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
    [[name]] = service.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    service.rows(f"SELECT pg_drop_replication_slot('{name}')")
    service.add(*numbered(10, 10))
    service.rows(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    if who != "somebody":
        service.execute(f"UPDATE {service.table('stream')} SET token = 1, owner = 'killed'")
    service.add(*numbered(10, 20))
    async with running(service, broker):
        service.add(*numbered(10, 30))
        await wait_for(lambda: service.is_settled(40))
    assert {one.json() for one in broker.messages} == set(range(40))
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())


async def test_R_7_a_publication_that_was_missing_for_a_while_under_its_reader_is_noticed(service: Streaming) -> None:
    broker = MemoryBroker()
    async with running(service, broker):
        service.add(*numbered(10))
        await wait_for(lambda: service.is_settled(10))
        [[definition]] = service.rows(
            "SELECT string_agg(quote_ident(a), ', ') FROM unnest((SELECT attnames FROM pg_publication_tables "
            "WHERE pubname = 'postroom_outbox')::text[]) AS a"
        )
        service.execute("DROP PUBLICATION postroom_outbox")
        service.add(*numbered(10, 10))
        service.execute(
            f"CREATE PUBLICATION postroom_outbox FOR TABLE {service.table('outbox')} ({definition}) WHERE (streamed) "
            "WITH (publish = 'insert', publish_via_partition_root = true)"
        )
        await wait_for(lambda: service.is_settled(20))
        service.add(*numbered(10, 20))
        await wait_for(lambda: service.is_settled(30))
    assert {one.json() for one in broker.messages} == set(range(30))
    assert all(numbers == sorted(numbers) for numbers in by_key(broker.messages).values())


async def test_R_7_a_server_without_a_free_slot_is_told_once_and_the_table_goes_on(service: Streaming) -> None:
    broker = MemoryBroker()
    told: list[Event] = []
    free = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ^@ 'filler_'"
    service.rows(
        "SELECT pg_create_physical_replication_slot('filler_' || n) FROM generate_series(1, "
        "current_setting('max_replication_slots')::integer - (SELECT count(*) FROM pg_replication_slots)::integer) AS n"
    )
    try:
        assert (await Relay(service.url, broker, cdc=True, **QUICK).run_once()).sent == 0  # it does not wait for ever
        async with Relay(service.url, broker, cdc=True, hook=told.append, **QUICK):
            service.add(*numbered(10))
            await wait_for(lambda: service.is_settled(10))
            tries = service.stream_takes()
            await wait_for(lambda: service.stream_takes() > tries + 1)
            changes = [one for one in told if isinstance(one, StreamChanged)]
            assert [(one.what, "raise max_replication_slots" in one.detail) for one in changes] == [
                ("not set up", True)
            ]
            assert not [one for one in told if isinstance(one, Reachability) and not one.reachable]
            service.rows(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name ^@ 'fill'"
            )
            await wait_for(lambda: service.mode() == "stream")
            service.add(*numbered(10, 10))
            await wait_for(lambda: service.is_settled(20))
    finally:
        service.rows(free)
    assert service.count("outbox", "streamed") == 10
