"""What each setting does to the relay's throughput, side by side on one PostgreSQL server with fsync.

``python -m benchmarks tuning [--messages N] [--rounds N] [--json]``. All variants take turns in every round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg

from benchmarks.retention import schedule
from benchmarks.rounds import create_tables, per_second, show
from postroom import Message, Outbox, Relay
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.telemetry import Event

PAYLOAD = b"x" * 200
DEFAULT = "the defaults"
SLOW_DEFAULT = "a broker that takes 5 ms"


async def quick(messages: list[Message]) -> None:
    """A broker that accepts everything at once."""
    del messages


async def slow(messages: list[Message]) -> None:
    """A broker that takes 5 ms for a call, whatever its size."""
    del messages
    await asyncio.sleep(0.005)


VARIANTS: dict[str, tuple[Callable[..., Any], dict[str, Any], int | None, bool]] = {
    DEFAULT: (quick, {}, None, False),
    "batch 32": (quick, {"batch": 32}, None, False),
    "batch 100": (quick, {"batch": 100}, None, False),
    "batch 5000": (quick, {"batch": 5000}, None, False),
    "10,000 keys": (quick, {}, 10_000, False),
    "synchronous_commit off": (quick, {}, None, True),
    SLOW_DEFAULT: (slow, {}, None, False),
    "5 ms, batch 100": (slow, {"batch": 100}, None, False),
    "5 ms, batch 100, concurrency 1": (slow, {"batch": 100, "concurrency": 1}, None, False),
    "5 ms, batch 100, concurrency 16": (slow, {"batch": 100, "concurrency": 16}, None, False),
}
"""What to measure: the broker, the settings, how many keys the messages have, and whether commits wait for no disk."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tuning")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with closing(PostgreSQL(durable=True)) as server:
        server.start()
        server.create_database("shop")
        url = server.url("shop")
        create_tables(url)
        with psycopg.connect(url, autocommit=True) as connection:
            schedule(connection)

        def prepare(name: str) -> None:
            _, _, keys, lazily = VARIANTS[name]
            _commit(url, lazily=lazily)
            _fill(url, options.messages, keys)

        def variant(name: str) -> Callable[[], int]:
            return lambda: asyncio.run(_drain(url, name, options.messages))

        rates = per_second({name: variant(name) for name in VARIANTS}, prepare, options.rounds)
    if options.json:
        print(json.dumps(rates, indent=2))
        return
    show("what settings do to a relay, from its start", rates, DEFAULT, "messages/s")


def _commit(url: str, *, lazily: bool) -> None:
    """Let sessions that are opened from now on wait for the disk at commit, or not."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER DATABASE shop RESET ALL")
        if lazily:
            connection.execute("ALTER DATABASE shop SET synchronous_commit = off")


def _fill(url: str, messages: int, keys: int | None) -> None:
    batch = [Message.new("orders", PAYLOAD, key=None if keys is None else str(n % keys)) for n in range(messages)]
    with psycopg.connect(url) as connection:
        Outbox().add_many(connection, batch)


async def _drain(url: str, name: str, messages: int) -> int:
    broker, settings, _, _ = VARIANTS[name]
    done = asyncio.Event()

    def listen(_event: Event) -> None:
        if relay.report.sent >= messages:
            done.set()

    relay = Relay(url, broker, hook=listen, **settings)
    running = asyncio.create_task(relay.run())
    async with asyncio.timeout(60):
        await done.wait()
    relay.stop()
    await running
    if relay.report.sent != messages:
        raise AssertionError(f"{name}: {relay.report.sent:,} messages were sent, and not {messages:,}")
    return messages
