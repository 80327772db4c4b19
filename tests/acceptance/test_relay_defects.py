"""Relays in situations that once went wrong."""

from __future__ import annotations

import asyncio
import random
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, make_url, text

from postroom import Message, Outbox, Relay, RetryPolicy
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.port import ACCEPTED, NOT_SENT, Capabilities, Outcome, Refused
from postroom.rules.ordering import key_hash, lane_of
from postroom.store.connections.reconnecting import Outage
from postroom.store.connections.urls import resolve
from tests.acceptance.service import Service
from tests.contract.schema_support import names_for, take_guards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.conftest import FreshDatabase

PATIENCE = 60


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        yield service


every_database = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


@on_sqlite
@pytest.mark.parametrize("key", [None, "k"])
async def test_R_2_a_backlog_that_takes_longer_than_one_send_is_sent_once(service: Service, key: str | None) -> None:
    """Each call is quick enough, all of them together are not: none has failed for that."""
    count = 60
    service.commit(*[Message.new("t", n, key=key and f"{key}{n % 20}") for n in range(count)])
    calls: list[int] = []

    async def publish(message: Message) -> None:
        await asyncio.sleep(0.1)
        calls.append(message.json())

    relay = Relay(service.url, publish, concurrency=2, broker_timeout_ms=200)
    report = await asyncio.wait_for(relay.run_once(), PATIENCE)
    assert (report.sent, report.retried) == (count, 0)
    assert sorted(calls) == list(range(count))


def keys_of_one_lane() -> list[str]:
    return [key for key in map(str, range(200)) if lane_of(key_hash(key)) == 0][:2]


def was_claimed(service: Service, times: int, nth: int) -> None:
    """Workers died with the nth message."""
    position = service.rows(f"SELECT position FROM {service.table('outbox')} ORDER BY position")[nth][0]
    service.execute(f"UPDATE {service.table('delivery')} SET claims = {times} WHERE position = {position}")


@every_database
async def test_L_16_what_stands_before_a_suspect_in_its_lane_is_not_passed_by(service: Service) -> None:
    """Only the suspect of another key is sent, alone; the read after it must find what was kept back for that."""
    key, other = keys_of_one_lane()
    service.commit(
        Message.new("t", "first", key=key), Message.new("t", "suspect", key=other), Message.new("t", "second", key=key)
    )
    was_claimed(service, 5, nth=1)
    broker = MemoryBroker()
    async with Relay(service.url, broker):
        await until(lambda: len(broker.messages) == 3)
    assert [message.payload for message in broker.messages] == [b"suspect", b"first", b"second"]


@every_database
async def test_L_16_what_stands_behind_one_that_was_given_up_is_not_passed_by(service: Service) -> None:
    """Where dead messages are skipped, those behind one are left to the next read, which must find them all."""
    key, other = keys_of_one_lane()
    service.commit(
        Message.new("t", "poison", key=key),
        Message.new("t", "first", key=key),
        Message.new("t", "other", key=other),
        Message.new("t", "second", key=key),
    )
    was_claimed(service, 9, nth=0)
    broker = MemoryBroker()
    async with Relay(service.url, broker, order="skip", batch=24):  # three of each lane
        await until(lambda: len(broker.messages) == 3)
    assert [message.payload for message in broker.messages if message.key == key] == [b"first", b"second"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what it waits for is not told
            await asyncio.sleep(0.01)


@on_sqlite
async def test_R_8_a_relay_that_was_stopped_inside_its_context_can_be_used_again(service: Service) -> None:
    broker = MemoryBroker()
    relay = Relay(service.url, broker)
    async with relay:
        relay.stop()
        await until(lambda: not relay.stopping)
        await asyncio.sleep(0.1)
    service.commit(Message.new("t", 1))
    async with relay:
        await until(lambda: bool(broker.messages))


@every_database
async def test_R_4_a_relay_that_is_cancelled_leaves_nothing_leased(service: Service) -> None:
    """As by asyncio.wait_for, or by Ctrl-C in asyncio.run."""
    service.commit(*[Message.new("t", n, key=str(n) if n % 2 else None) for n in range(1000)])

    async def publish(messages: list[Message]) -> None:
        await asyncio.sleep(0.01 * bool(messages))

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Relay(service.url, publish, batch=20).run(), 0.7)
    assert service.rows(f"SELECT 1 FROM {service.table('lane')} WHERE token <> 0") == []
    assert service.rows(f"SELECT 1 FROM {service.table('delivery')} WHERE token <> 0") == []
    assert service.status().workers == ()


@pytest.mark.parametrize("kind", ["postgresql"])
@pytest.mark.parametrize("way", ["run", "run_once", "run_until_empty"])
async def test_R_4_a_relay_stops_while_the_database_is_away(service: Service, way: str) -> None:
    """It waits neither for room, nor for an answer, nor for what it cannot settle."""
    service.commit(*[Message.new("t", n) for n in range(1000)])
    away = asyncio.Event()
    asked = asyncio.Event()

    async def publish(messages: list[Message]) -> None:
        asked.set()
        await away.wait()
        del messages

    relay = Relay(service.url, publish, batch=10, broker_timeout_ms=1000)
    running = asyncio.create_task(getattr(relay, way)())
    await asked.wait()
    with sessions_refused(service):
        away.set()
        await asyncio.sleep(0.5)
        relay.stop()
        with suppress(Outage):  # `run_once` says that it could not deliver
            await asyncio.wait_for(running, 15)


@contextmanager
def sessions_refused(service: Service) -> Iterator[None]:
    """All sessions of this database end, and none can begin."""
    url = make_url(resolve(service.url))
    service.engine.dispose()
    server = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS false'))
        ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        connection.execute(text(ended), {"name": url.database})
        try:
            yield
        finally:
            connection.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS true'))
    server.dispose()


class Moody:
    """A broker that refuses one message in fifty."""

    name = "moody"

    def __init__(self, *, ordered_prefix: bool) -> None:
        self.capabilities = Capabilities(ordered_prefix=ordered_prefix)
        self.accepted: list[Message] = []
        self._random = random.Random(1)  # noqa: S311 - the same moods every time

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        await asyncio.sleep(min(timeout, self._random.random() / 100))
        outcomes: list[Outcome] = []
        for message in messages:
            if self.capabilities.ordered_prefix and outcomes and outcomes[-1] != ACCEPTED:
                outcomes.append(NOT_SENT)
            elif self._random.random() < 0.02:
                outcomes.append(Refused("NO", "not now"))
            else:
                outcomes.append(ACCEPTED)
                self.accepted.append(message)
        return outcomes

    async def close(self) -> None:
        """Nothing to close."""


@every_database
@pytest.mark.parametrize("ordered_prefix", [False, True])
async def test_L_16_order_holds_where_drops_and_reads_overlap(service: Service, *, ordered_prefix: bool) -> None:
    """What is dropped because its key failed is in flight until that is settled, and reads pass it by."""
    service.commit(*[Message.new("t", n, key=str(n % 5)) for n in range(1000)])
    broker = Moody(ordered_prefix=ordered_prefix)
    policy = RetryPolicy.table([0.02], max_attempts=100)
    async with Relay(service.url, broker, batch=100, poll_interval_sec=0.05, policy=policy):
        await until(lambda: len(broker.accepted) == 1000)
    for key in map(str, range(5)):
        numbers = [message.json() for message in broker.accepted if message.key == key]
        assert numbers == sorted(numbers)


@on_sqlite
async def test_R_8_a_run_can_be_stopped_after_another_of_the_same_relay_has_ended(service: Service) -> None:
    broker = MemoryBroker()
    relay = Relay(service.url, broker)
    running = asyncio.create_task(relay.run())
    await until(lambda: bool(service.status().workers))
    await relay.run_once()
    relay.stop()
    await asyncio.wait_for(running, PATIENCE)
    assert not relay.stopping


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_L_16_a_late_commit_of_another_transaction_does_not_change_the_order_of_a_key(service: Service) -> None:
    """The key's own transactions come one after another. One of another key, in the same lane, overtakes the first."""
    key, other = keys_of_one_lane()
    broker = MemoryBroker()
    async with Relay(service.url, broker):
        await until(lambda: bool(service.status().workers))
        for n in range(5):
            with service.engine.begin() as connection:
                Outbox().add(connection, "t", "first", key=key)
                service.commit(Message.new("t", "other", key=other))
                await until(lambda seen=3 * n + 1: len(broker.messages) == seen)  # type: ignore[misc]
            service.commit(Message.new("t", "second", key=key))
            await until(lambda seen=3 * n + 3: len(broker.messages) == seen)  # type: ignore[misc]
    payloads = [message.payload for message in broker.messages if message.key == key]
    assert payloads == [b"first", b"second"] * 5


@every_database
@pytest.mark.parametrize("key", [None, "k"])
async def test_B_3_a_row_that_a_program_wrote_wrongly_takes_no_other_with_it(service: Service, key: str | None) -> None:
    """Headers of numbers were found out by the broker, when it was too late for the neighbours."""
    messages = [Message.new("t", n, key=key and f"{key}{n}", headers={"n": "1"}) for n in range(41)]
    service.commit(*messages)
    take_guards(service.engine, names_for(service.url))
    bad = f"""UPDATE {service.table("outbox")} SET headers = '{{"n": 1}}' WHERE id = '{messages[20].id}'"""
    with service.engine.begin() as connection:
        connection.exec_driver_sql(bad)
    broker = MemoryBroker()
    report = await asyncio.wait_for(Relay(service.url, broker).run_once(), PATIENCE)
    assert (report.sent, report.dead) == (40, 1)
    assert [letter.error_code for letter in service.dead()] == ["UNDECODABLE"]
    assert {message.id for message in broker.messages} == {message.id for message in messages} - {messages[20].id}
