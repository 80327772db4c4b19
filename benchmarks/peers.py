"""Sending and adding beside txoutbox, on one PostgreSQL with fsync: messages a second, and processor time a message.

``python -m benchmarks peers [--messages N] [--rounds N] [--only drain|add]``. The two take turns with fresh tables in
new processes, and send to a function that does nothing. Postroom runs with its defaults. txoutbox runs in several
setups, all with what makes it fast: it deletes what was sent, has no timeout around a publish and, without keys, keeps
no order. The fastest one is compared.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from contextlib import closing
from importlib.metadata import version
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
import psycopg
from txoutbox import Hooks, Relay, RelayConfig
from txoutbox.adapters.postgres import PostgresStorage

from benchmarks.costs import Costs, Share, Took, ground
from benchmarks.producer import ORDERS, PAYLOAD, Turns, measure, opened
from benchmarks.rounds import create_tables, note
from postroom.bench.scratch import PAYLOAD as SENT
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from txoutbox import OutboxMessage
    from txoutbox.protocols import RoundResultLike

    from benchmarks.costs import Drained, Ground

TURNS = Turns(rounds=20, transactions=50)
"""Short ones, so that what else the machine does meets all alike."""
KEYS = {"no key": None, "10,000 keys": 10_000}


class Setup(NamedTuple):
    """How txoutbox runs in each process."""

    relays: int
    batch_size: int

    def __str__(self) -> str:
        return f"txoutbox, relays {self.relays}, rounds of {self.batch_size:,}"


SETUPS = {1: (Setup(1, 1000), Setup(3, 2000)), 2: (Setup(1, 2000),)}
"""The fastest ones, by number of processes: rounds of 300 cost more, and of 3,000 gain nothing. `concurrency` stays at
its default, which does not matter where a publish never waits."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks peers")
    parser.add_argument("--messages", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=["drain", "add"])
    options = parser.parse_args(arguments)
    print(f"Beside txoutbox {version('txoutbox')}")
    if options.only != "add":
        _send_all(options.messages, options.rounds)
    if options.only != "drain":
        with closing(PostgreSQL(durable=True)) as server:
            server.start()
            asyncio.run(_add(server))


def _send_all(messages: int, rounds: int) -> None:
    cases = list(product(KEYS, SETUPS))
    found = {case: Costs() for case in cases}
    with ground() as place:
        for _ in range(rounds):
            for name, processes in cases:
                _drain(place, found[name, processes], messages, KEYS[name], processes)
    for (name, processes), costs in found.items():
        _show(f"{name}, processes {processes}", costs, SETUPS[processes])


def _drain(place: Ground, costs: Costs, messages: int, keys: int | None, processes: int) -> None:
    costs.note("Postroom", **_postroom(place, messages, keys, processes)._asdict())
    for setup in SETUPS[processes]:
        costs.note(f"{setup}", **_txoutbox(place, setup, messages, keys, processes)._asdict())


def _show(title: str, costs: Costs, setups: Sequence[Setup]) -> None:
    print(f"\n{title}")
    costs.show(title)
    ours = costs.medians("Postroom")
    best = max((costs.medians(f"{setup}") for setup in setups), key=lambda one: one["per_second"])
    processor, best_processor = (one["python_us"] + one["server_us"] for one in (ours, best))
    ratios = {"rate": ours["per_second"] / best["per_second"], "processor time": processor / best_processor}
    print(f"{'Postroom to the fastest txoutbox':<44} " + "   ".join(f"{what} {of:.2f}" for what, of in ratios.items()))
    note({f"{title}, ratio, {what}": of for what, of in ratios.items()})


def _postroom(place: Ground, messages: int, keys: int | None, processes: int) -> Drained:
    place.place.fill(messages, keys)
    _analyze(place)
    found = place.drain(messages, relays=processes)
    _expect_none(place.place.counts()[0])
    return found


def _txoutbox(place: Ground, setup: Setup, messages: int, keys: int | None, processes: int) -> Drained:
    url = place.place.url
    asyncio.run(_fill(url, messages, keys))
    _analyze(place)
    settings = {**setup._asdict(), "strict_ordering": keys is not None}
    share = Share(url=url, schema=None, most=messages, settings=settings)
    found = place.measure(txoutbox_share, share, processes)
    with psycopg.connect(url) as connection:
        _expect_none(*connection.execute("SELECT count(*) FROM outbox").fetchone() or ())
    return found


def _analyze(place: Ground) -> None:
    """Tell the planner what is there, as autovacuum would."""
    with psycopg.connect(place.place.url, autocommit=True) as connection:
        connection.execute("ANALYZE")


def _expect_none(left: int) -> None:
    if left:
        raise AssertionError(f"{left:,} messages are left")


async def _fill(url: str, messages: int, keys: int | None) -> None:
    """A fresh table by txoutbox's own DDL, with what its `insert` would write."""
    async with asyncpg.create_pool(url, min_size=1) as pool:
        await pool.execute("DROP TABLE IF EXISTS outbox")
        await PostgresStorage(pool).create_schema()
        await pool.execute(
            "INSERT INTO outbox (topic, key, payload) SELECT 'bench', (n % $2::int)::text, $3 "
            "FROM generate_series(0, $1::int - 1) n",
            *(messages, keys, SENT),
        )


def txoutbox_share(share: Share) -> Took:
    """Send what is there, from when the connections are open until the last message is acknowledged."""
    return asyncio.run(_send(share))


async def _send(share: Share) -> Took:
    relays, size, strict = (share.settings[name] for name in ("relays", "batch_size", "strict_ordering"))
    config = RelayConfig(batch_size=size, publish_timeout=None)
    async with asyncpg.create_pool(share.url, min_size=relays, max_size=relays) as pool:
        storage = PostgresStorage(pool, strict_ordering=strict, delete_on_ack=True)
        watches = [Watch() for _ in range(relays)]
        for watch in watches:
            watch.relay = Relay(storage, _discard, config=config, hooks=watch)
        gc.collect()
        gc.freeze()
        started, processor = time.monotonic(), time.process_time()
        await asyncio.gather(*(watch.relay.run() for watch in watches))
        processor = time.process_time() - processor
    return Took(sum(one.sent for one in watches), started, max(one.ended for one in watches), processor)


async def _discard(message: OutboxMessage) -> None:
    del message


class Watch(Hooks):
    """Counts what a relay sends, and stops it when nothing is left."""

    relay: Relay

    def __init__(self) -> None:
        self.sent = 0
        self.ended = 0.0

    async def on_claimed(self, messages: Sequence[OutboxMessage]) -> None:
        if not messages:
            self.relay.stop()

    async def on_round(self, result: RoundResultLike, duration: float) -> None:
        del duration
        self.sent += result.published
        self.ended = time.monotonic()


async def _add(server: PostgreSQL) -> None:
    """A business row alone, with a message of Postroom, and with one of txoutbox."""
    server.create_database("shop")
    url = server.url("shop")
    create_tables(url)
    async with opened("asyncpg", url) as driver, asyncpg.create_pool(url, min_size=1) as pool:
        await pool.execute(ORDERS)
        storage = PostgresStorage(pool)
        await storage.create_schema()

        def insert(key: str | None = None) -> object:
            return storage.insert(driver.connection, "orders.created", PAYLOAD, key=key)

        others = {"and one of txoutbox": insert, "and one of txoutbox with a key": lambda: insert("7")}
        await measure("asyncpg", driver, server, others, TURNS)
