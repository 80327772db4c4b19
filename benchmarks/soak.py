"""Whether costs stay flat over a long time: messages come steadily, a relay sends them, minute after minute.

``python -m benchmarks soak [--minutes N] [--rate N] [--hold]``. Half of the messages have one of 10,000 keys. What was
sent is cleaned up every minute. With `--hold`, another session holds a snapshot all the time. PostgreSQL with fsync, a
broker that does nothing. Prints a line a minute, and the last quarter's costs beside the first one's.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import ExitStack
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import psutil
import psycopg

from benchmarks.costs import HELD, ground, holding
from benchmarks.rounds import note
from benchmarks.server_costs import spent
from postroom.bench.drains import discard
from postroom.relay import Relay

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.costs import Ground

KEYS = 10_000
BATCHES = 10
"""A second: each is a transaction without keys, and one with keys."""
MINUTE = 60


class Minute(NamedTuple):
    """What a message took in one minute, and what was left at its end."""

    python_us: float
    server_us: float
    waiting: int
    delivery_bytes: int
    all_bytes: int


def send(url: str, schema: str | None) -> None:
    """Send what comes until the process is stopped."""
    relay = Relay(url, discard, schema=schema, brokers={}, cleanup_every_sec=60, retention_days=0)
    asyncio.run(relay.run())


class Soak:
    """A relay in a process of its own, and what it and the server have spent."""

    def __init__(self, place: Ground, relay: psutil.Process, rate: int) -> None:
        self._place = place
        self._relay = relay
        self._rate = rate

    def minute(self) -> Minute:
        """Add one minute's messages, and say what they took."""
        scratch, half = self._place.place, self._rate // BATCHES // 2
        before, processor, start = spent(self._place.server, scratch.url), self._processor(), time.monotonic()
        for n in range(MINUTE * BATCHES):
            scratch.fill_more(half)
            scratch.fill_more(half, KEYS)
            time.sleep(max(0.0, start + (n + 1) / BATCHES - time.monotonic()))
        messages = MINUTE * BATCHES * half * 2
        python, cost = self._processor() - processor, spent(self._place.server, scratch.url).since(before)
        return Minute(python / messages * 1e6, cost.processor / messages * 1e6, *self._left())

    def _processor(self) -> float:
        return sum(self._relay.cpu_times()[:2])

    def _left(self) -> tuple[int, int, int]:
        tables = self._place.place.names.mapping()
        with psycopg.connect(self._place.place.url) as connection:
            found = connection.execute(
                f"SELECT (SELECT count(*) FROM {tables['delivery']}), "
                f"pg_total_relation_size('{tables['delivery']}'), "
                f"pg_total_relation_size('{tables['outbox']}') + pg_total_relation_size('{tables['receipt']}')"
            ).fetchone()
        return found or (0, 0, 0)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks soak")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    parser.add_argument("--hold", action="store_true", help="another session holds a snapshot all the time")
    options = parser.parse_args(arguments)
    with ground() as place, ExitStack() as stack:
        process = get_context("spawn").Process(target=send, args=(place.place.url, place.place.schema))
        process.start()
        stack.callback(process.join)
        stack.callback(process.terminate)
        stack.enter_context(holding(place.place.url, HELD[1] if options.hold else ""))
        soak = Soak(place, psutil.Process(process.pid), options.rate)
        minutes = []
        for number in range(options.minutes):
            minutes.append(soak.minute())
            if not process.is_alive():
                raise SystemExit("the relay has ended")
            values = "   ".join(
                f"{name.replace('_', ' ')} {value:,.1f}" for name, value in minutes[-1]._asdict().items()
            )
            print(f"minute {number + 1:<4} {values}", flush=True)
    quarter = max(1, len(minutes) // 4)
    for what in ("python_us", "server_us"):
        first, last = (median(getattr(one, what) for one in some) for some in (minutes[:quarter], minutes[-quarter:]))
        print(
            f"{what.replace('_', ' ')}, last quarter beside the first: {last:,.1f} / {first:,.1f} = {last / first:.2f}"
        )
        note({f"soak, {what}, last / first": last / first})
