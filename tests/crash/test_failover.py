"""A standby that lagged becomes the primary: what it lacks is gone, and its positions are given out again."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, LiteralString

import psycopg
import pytest

from postroom import Message, Outbox, Relay
from postroom.brokers.port import ACCEPTED, Capabilities, Outcome
from postroom.telemetry.events import StreamRead
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.crash.wire import Wire
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL, Standby

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEYS = [f"key {n}" for n in range(5)]
LOST = 150
"""Messages that the standby lacks: more than the 32 positions that PostgreSQL leaves out after a promotion."""
SELDOM = 600.0


class Broker:
    """Keeps what it gets, while it is open."""

    name = "slow"
    capabilities = Capabilities(ordered_prefix=True)

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.asked = 0
        self.of: dict[str, list[int]] = defaultdict(list)

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        self.asked += len(messages)
        await self.open.wait()
        for message in messages:
            self.of[message.key or ""].append(message.json())
        return [ACCEPTED] * len(messages)

    def has(self, number: int) -> bool:
        return number in self.of[KEYS[number % len(KEYS)]]

    def count(self) -> int:
        return sum(map(len, self.of.values()))

    async def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def primary() -> Iterator[PostgreSQL]:
    with closing(need(PostgreSQL, PostgreSQL())) as server:
        yield server


def messages(first: int, count: int) -> list[Message]:
    return [Message.new("t", n, key=KEYS[n % len(KEYS)]) for n in range(first, first + count)]


@pytest.mark.parametrize("sent", [True, False], ids=["sent before", "in flight"])
async def test_L_16_nothing_is_lost_or_overtaken_after_a_failover(primary: PostgreSQL, *, sent: bool) -> None:
    """Before, a relay wrote down as sent what had come to the positions of those that it had in flight."""
    primary.create_database("shop")
    broker = Broker()
    wire = Wire(primary.url("shop"))
    with closing(wire), closing(Service(primary.url("shop"))) as before:
        relay = Relay(wire.url, broker, poll_interval_sec=SELDOM, lane_lease_sec=120, broker_timeout_ms=60_000)
        with closing(Standby(primary)) as standby:
            async with relay:
                before.commit(*messages(0, 50))
                await wait_for(lambda: broker.count() == 50 and before.status().sent == 50)
                standby.start()
                await wait_for(standby.has_caught_up)
                standby.follow_no_more()
                await wait_for(lambda: not standby.is_following())

                if not sent:
                    broker.open.clear()
                before.commit(*messages(1000, LOST))
                await wait_for(lambda: broker.asked == 50 + LOST)
                if sent:
                    await wait_for(lambda: before.status().sent == 50 + LOST)
                primary.stop(kill=True)
                standby.promote()
                wire.lead_to(standby.url("shop"))

                with closing(Service(standby.url("shop"))) as after:
                    for first in range(2000, 2000 + 2 * LOST, 5):
                        after.commit(*messages(first, 5))
                        if sent:  # one after another, so that the relay reads on behind what it has read
                            await wait_for(partial(broker.has, first + 4))
                    broker.open.set()
                    await wait_for(lambda: broker.count() >= 50 + LOST + 2 * LOST)
                    await wait_for(lambda: after.status().sent == 50 + 2 * LOST)
    for n, key in enumerate(KEYS):
        newest = [number for number in broker.of[key] if number >= 2000]
        assert newest == list(range(2000 + n, 2000 + 2 * LOST, len(KEYS)))


@pytest.mark.parametrize("sent", [True, False], ids=["sent before", "in flight"])
async def test_R_7_the_stream_goes_on_after_a_failover_without_its_slot(primary: PostgreSQL, *, sent: bool) -> None:
    """The standby has no slot, and lacks what was committed last: what it has and was not sent gets deliveries."""
    primary.create_database("shop")
    broker = Broker()
    wire = Wire(primary.url("shop"))
    with closing(wire), closing(Service(primary.url("shop"))) as before:
        relay = Relay(wire.url, broker, cdc=True, lane_lease_sec=5, broker_timeout_ms=60_000)
        with closing(Standby(primary)) as standby:
            async with relay:
                await wait_for(lambda: streams(before))
                streamed(before, *messages(0, 50))
                await wait_for(lambda: broker.count() == 50 and before.status().sent == 50)
                standby.start()
                if not sent:
                    broker.open.clear()
                streamed(before, *messages(50, 50))
                if sent:
                    await wait_for(lambda: broker.count() == 100)
                else:  # at least the first of them: the stream may come in pieces, and those of a key go in turn
                    await wait_for(lambda: broker.asked > 50)
                await wait_for(standby.has_caught_up)
                standby.follow_no_more()
                await wait_for(lambda: not standby.is_following())
                streamed(before, *messages(1000, LOST))
                primary.stop(kill=True)
                standby.promote()
                wire.lead_to(standby.url("shop"))
                with closing(Service(standby.url("shop"))) as after:
                    for first in range(2000, 2000 + LOST, 5):
                        streamed(after, *messages(first, 5))
                    broker.open.set()
                    await wait_for(lambda: after.status().sent == 100 + LOST)
                    assert after.rows("SELECT count(*) FROM postroom.outbox_delivery") == [(0,)]
    for n, key in enumerate(KEYS):
        got = list(dict.fromkeys(broker.of[key]))
        assert [number for number in got if number < 100] == list(range(n, 100, len(KEYS)))
        assert [number for number in got if number >= 2000] == list(range(2000 + n, 2000 + LOST, len(KEYS)))


async def test_R_7_nothing_is_sent_that_a_synchronous_standby_lacks(primary: PostgreSQL) -> None:
    """Not even if the server is told to wait for it while a relay reads: the log shows a commit before it is one."""
    primary.create_database("shop")
    broker = Broker()
    told: list[object] = []
    waited_for = "SELECT sync_state FROM pg_stat_replication WHERE application_name ="
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE"
    with closing(Service(primary.url("shop"))) as service, closing(Standby(primary)) as standby:
        async with Relay(primary.url("shop"), broker, cdc=True, lane_lease_sec=5, hook=told.append):
            await wait_for(lambda: streams(service))
            standby.start()
            await wait_for(standby.has_caught_up)
            set_up(primary, "ALTER SYSTEM SET synchronous_standby_names = 'walreceiver'")
            await wait_for(lambda: service.rows(f"{waited_for} 'walreceiver'") == [("sync",)])
            await two_heartbeats(told)
            standby.follow_no_more()
            await wait_for(lambda: not standby.is_following())
            adding = asyncio.create_task(asyncio.to_thread(streamed, service, *messages(2000, 10)))
            await wait_for(lambda: service.rows(f"{waiting} '%emit_message%'") == [(1,)])
            assert not any(map(broker.has, range(2000, 2010)))
            assert not adding.done()
            set_up(primary, "ALTER SYSTEM RESET synchronous_standby_names")
            await wait_for(lambda: all(map(broker.has, range(2000, 2010))))
            await adding


async def two_heartbeats(told: Sequence[object]) -> None:
    """Wait until the reader knows the server's settings: it asks with each heartbeat, and one may be under way."""
    seen = len(told)
    await wait_for(lambda: sum(isinstance(event, StreamRead) for event in told[seen:]) >= 2)


def set_up(server: PostgreSQL, setting: LiteralString) -> None:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute(setting)
        connection.execute("SELECT pg_reload_conf()")


def streams(service: Service) -> bool:
    return service.rows("SELECT mode FROM postroom.outbox_stream") == [("stream",)]


def streamed(service: Service, *added: Message) -> None:
    with service.engine.begin() as connection:
        Outbox(cdc=True).add_many(connection, added)
