"""The relay that reads the stream is killed or paused at the worst places, as are its server and its slot."""

from __future__ import annotations

import signal
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom import Message, Outbox
from tests.contract.schema_support import engine_for
from tests.crash.processes import dismiss, wait_until
from tests.crash.shop import Shop, check
from tests.crash.stream import produce, produce_log
from tests.crash.stream_worker import StreamFate, StreamPoint, dying_relay, stream_relay
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.crash.places import Places
    from tests.crash.processes import Processes

KIND = pytest.mark.parametrize("kind", ["postgresql"])
MOST_DEATHS = 15
producer = partial(produce, cdc=True)


def all_sent(shop: Shop) -> bool:
    return not shop.unsent() and not shop.unread()


@KIND
def test_R_7_what_a_killed_reader_held_is_delivered_wherever_it_died(
    shop: Shop, processes: Processes, places: Places, kind: str
) -> None:
    del kind
    first = processes.start("first", stream_relay, shop.url, places)
    wait_until(shop.streams, "the stream is read")
    producers = [
        processes.start("producer", producer, shop.url, places),
        processes.start("log producer", produce_log, shop.url, places),
    ]
    for number, point in enumerate(StreamPoint):
        victim = processes.start(f"victim-{number}", stream_relay, shop.url, places, StreamFate(signal.SIGKILL, point))
        first.signal(signal.SIGTERM)
        first.join()
        wait_until(victim.ended, f"a relay dies {point}")
        assert victim.killed()
        first = processes.start(f"next-{number}", stream_relay, shop.url, places)
        wait_until(lambda: shop.reader().startswith("next"), "another reads the stream")
    places.enough.touch()
    for one in producers:
        one.join()
    wait_until(lambda: all_sent(shop), "all is sent", lambda: shop.status().sent)
    logged = places.ids(places.logged)
    wait_until(lambda: logged <= {line.id for line in places.lines()}, "what is in the log alone is sent")
    wait_until(lambda: not shop.unsent(), "what was not sent at once is settled")
    dismiss(first)
    check(shop, places)


@KIND
@pytest.mark.parametrize("point", [StreamPoint.RECEIVED, StreamPoint.PUBLISHED, StreamPoint.CONFIRMING])
def test_R_7_a_reader_that_wakes_after_its_lease_records_nothing(
    shop: Shop, processes: Processes, places: Places, kind: str, point: StreamPoint
) -> None:
    del kind
    zombie = processes.start("zombie", stream_relay, shop.url, places, StreamFate(signal.SIGSTOP, point))
    wait_until(shop.streams, "the stream is read")
    processes.start("producer", producer, shop.url, places)
    wait_until(zombie.stopped, "it is paused")
    other = processes.start("other", stream_relay, shop.url, places)
    wait_until(lambda: shop.reader() == "other", "another takes over")
    wait_until(lambda: len(places.lines()) > 200, "the other sends")
    zombie.signal(signal.SIGCONT)
    places.enough.touch()
    wait_until(lambda: all_sent(shop), "all is sent", lambda: shop.status().sent)
    dismiss(zombie, other)
    check(shop, places)


@KIND
@pytest.mark.parametrize("key", ["k", None], ids=["keyed", "unkeyed"])
def test_R_7_a_message_that_kills_its_readers_is_dead_and_no_other(
    shop: Shop, processes: Processes, places: Places, kind: str, key: str | None
) -> None:
    """The stream counts no claims: what a killed reader may have been sending goes to the table, which does."""
    del kind
    first = processes.start("first", stream_relay, shop.url, places)
    wait_until(shop.streams, "the stream is read")
    dismiss(first)
    with engine_for(shop.url) as engine, engine.begin() as connection:
        innocent = [Message.new("orders.created", n, key=f"key-{n}") for n in range(3)]
        Outbox(cdc=True).add_many(connection, [*innocent, Message.new("deadly", key=key)])
    one = processes.start("relay", dying_relay, shop.url, places)
    for number in range(MOST_DEATHS):
        wait_until(lambda: one.ended() or shop.status().dead == 1, "it dies, or gives it up")  # noqa: B023 - called at once
        if not one.ended():
            break
        one = processes.start(f"relay-{number}", dying_relay, shop.url, places)
    assert shop.status().dead == 1
    wait_until(lambda: shop.status().sent == 3, "all others are sent")
    dismiss(one)
    [[code]] = shop.select("SELECT error_code FROM {delivery}")
    assert code == "LEASE_EXPIRED"


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A server of its own, that can be killed."""
    with closing(need(PostgreSQL, PostgreSQL())) as server:
        server.create_database("shop")
        yield server


def test_R_7_nothing_is_lost_when_the_server_is_killed_or_the_slot_dropped(
    server: PostgreSQL, processes: Processes, places: Places
) -> None:
    with closing(Shop(server.url("shop"))) as shop:
        relays = [processes.start(f"relay-{n}", stream_relay, shop.url, places) for n in range(2)]
        wait_until(shop.streams, "the stream is read")
        processes.start("producer", producer, shop.url, places)
        wait_until(lambda: len(places.lines()) > 100, "messages flow")
        server.stop(kill=True)
        server.start()
        sent = len(places.lines())
        wait_until(lambda: len(places.lines()) > sent + 100, "messages flow again")
        drop_slot(shop.url)
        sent = len(places.lines())
        wait_until(lambda: len(places.lines()) > sent + 100, "messages flow once more")
        places.enough.touch()
        wait_until(lambda: all_sent(shop), "all is sent", lambda: shop.status().sent)
        dismiss(*relays)
        check(shop, places)


def drop_slot(url: str) -> None:
    """Drop the slot under its reader."""
    with psycopg.connect(url, autocommit=True) as connection:

        def dropped() -> bool:
            connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
            try:
                connection.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            except psycopg.errors.ObjectInUse:
                return False
            return True

        wait_until(dropped, "the slot is dropped")
