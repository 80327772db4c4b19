"""Remove settled messages beside a relay: what cleaning costs the relay, on PostgreSQL with fsync.

``python -m benchmarks retention [--messages N] [--load SHARE] [--rounds N] [--json]``. In each round the same relay
drains a backlog twice: alone, and while a cleanup removes old messages. Then half of what is left is removed without a
pause, the outbox is partitioned, and the other half goes with its partition, again beside the relay.

With ``--until-gone``, the cleanup removes all of the messages beside the relay, or as many as it can in ``--minutes``,
and nothing else is measured. A round is then `BESIDE` backlogs beside the cleanup, between two that the relay drains
alone.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from contextlib import asynccontextmanager, closing, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from statistics import mean, median, quantiles
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from benchmarks.rounds import create_tables
from postroom import Message, Outbox, Relay
from postroom.rules.pacing import DEFAULT_LOAD
from postroom.store.admin.retention import Cleanup, Kept
from postroom.store.connections.stores import AsyncStore
from postroom.store.schema.partitions import partition
from postroom.telemetry import Settled
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from postroom.telemetry import Event

BACKLOG = 20_000
PAYLOAD = b"x" * 200
CHUNK = 500_000
SCHEDULED = 1000
BESIDE = 8
"""Backlogs beside the cleanup for each one alone, with `--until-gone`."""
WARM = 2
"""Backlogs that are drained before the first round."""

MESSAGES = """
    INSERT INTO postroom.outbox (position, id, topic, payload, content_type, created_at)
    SELECT n, gen_random_uuid(), 'orders', convert_to(repeat('x', 200), 'UTF8'), 'application/octet-stream',
        statement_timestamp() - interval '9 days'
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) n"""
RECEIPTS = """
    INSERT INTO postroom.outbox_receipt (position, outcome, sent_at)
    SELECT n, 'sent', statement_timestamp() - interval '8 days'
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) n"""


class Report(NamedTuple):
    """What was measured. Rates are medians of the rounds."""

    messages: int
    """Old messages that were there, all of which were removed."""
    load: float
    alone: float
    """Messages a second that the relay drained alone."""
    beside: float
    """The same while the cleanup ran."""
    kept: float
    """The share of its throughput that the relay kept: the median of the rounds' own ratios."""
    removed_beside: int
    removal: float
    """Messages a second that were removed beside the relay, pauses included."""
    longest_batch: float
    """Seconds that the slowest batch took beside the relay."""
    removal_without_pauses: float
    partitioning: float
    """Seconds that it took to partition the outbox with what was in it."""
    alone_partitioned: float
    """Messages a second that the relay drained alone after that."""
    emptied: int
    """Messages that went with their partition, those that the relay had sent meanwhile included."""
    emptying: float
    """Seconds that this took."""
    kept_partitioned: float
    """The share of its throughput that the relay kept meanwhile."""


class Whole(NamedTuple):
    """What was measured with ``--until-gone``."""

    messages: int
    removed: int
    load: float
    rounds: int
    alone: float
    """Messages a second that the relay drained alone: the median."""
    beside: float
    """The same while the cleanup ran."""
    kept: float
    """The share of its throughput that the relay kept: the median of the rounds' own ratios."""
    kept_quartiles: tuple[float, float]
    """Half of the rounds are between these."""
    seconds: float
    """How long the cleanup ran, pauses included."""
    longest_batch: float


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks retention")
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--load", type=float, default=DEFAULT_LOAD)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--until-gone", action="store_true")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with closing(PostgreSQL(durable=True)) as server:
        server.start()
        server.create_database("shop")
        url = server.url("shop")
        create_tables(url)
        seconds = _fill(url, options.messages)
        if options.until_gone:
            whole = asyncio.run(_until_gone(url, options.messages, options.load, options.minutes * 60))
            _tell(whole, _whole_lines(whole), seconds, as_json=options.json)
        else:
            report = asyncio.run(_measured(url, options.messages, options.load, options.rounds))
            _tell(report, _report_lines(report), seconds, as_json=options.json)


def _tell(found: Report | Whole, lines: Sequence[tuple[str, str]], seconds: float, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found._asdict(), indent=2))
        return
    print(f"\nremove {found.messages:,} settled messages (written in {seconds:.0f} s) at a load of {found.load:g}")
    for what, figure in lines:
        print(f"  {what:<44} {figure}")


def _report_lines(found: Report) -> list[tuple[str, str]]:
    return [
        ("relay alone", f"{found.alone:>10,.0f} messages/s"),
        ("relay beside the cleanup", f"{found.beside:>10,.0f} messages/s   {found.kept:.2f} of alone"),
        ("cleanup beside the relay", f"{found.removal:>10,.0f} messages/s   {found.removed_beside:,} removed"),
        ("slowest batch beside the relay", f"{found.longest_batch * 1000:>10,.0f} ms"),
        ("cleanup without pauses, no relay", f"{found.removal_without_pauses:>10,.0f} messages/s"),
        ("to partition the outbox", f"{found.partitioning:>10,.1f} s"),
        ("relay alone, with partitions", f"{found.alone_partitioned:>10,.0f} messages/s"),
        (
            "to empty a partition beside the relay",
            f"{found.emptying:>10,.1f} s   {found.emptied:,} removed, {found.kept_partitioned:.2f} of alone",
        ),
    ]


def _whole_lines(found: Whole) -> list[tuple[str, str]]:
    low, high = found.kept_quartiles
    return [
        ("relay alone", f"{found.alone:>10,.0f} messages/s"),
        ("relay beside the cleanup", f"{found.beside:>10,.0f} messages/s   {found.kept:.2f} of alone"),
        ("half of the rounds", f"{low:>10.2f} to {high:.2f} of alone, of {found.rounds} rounds"),
        ("cleanup beside the relay", f"{found.removed / found.seconds:>10,.0f} messages/s   {found.removed:,} removed"),
        ("how long it ran", f"{found.seconds:>10,.0f} s"),
        ("slowest batch beside the relay", f"{found.longest_batch * 1000:>10,.0f} ms"),
    ]


def _fill(url: str, messages: int) -> float:
    """Write settled messages; returns the seconds it took."""
    begun = time.perf_counter()
    with psycopg.connect(url, autocommit=True) as connection:
        for first in range(1, messages + 1, CHUNK):
            places = {"first": first, "last": min(messages, first + CHUNK - 1)}
            for statement in (MESSAGES, RECEIPTS):
                connection.execute(statement, places)
        connection.execute(
            "SELECT setval(pg_get_serial_sequence('postroom.outbox', 'position'), %s)", [max(1, messages)]
        )
        schedule(connection)
        connection.execute("VACUUM ANALYZE postroom.outbox, postroom.outbox_receipt, postroom.outbox_delivery")
        connection.execute("CHECKPOINT")
    return time.perf_counter() - begun


def schedule(connection: psycopg.Connection) -> None:
    """Add messages for later, as an outbox in use has some: autovacuum must not find it empty between two rounds.

    Analysed while it is empty, it makes PostgreSQL look for each of a batch's deliveries among all of them.
    """
    later = datetime.now(UTC) + timedelta(days=1)
    with connection.transaction():
        Outbox().add_many(connection, [Message.new("orders", PAYLOAD, deliver_at=later) for _ in range(SCHEDULED)])


async def _measured(url: str, messages: int, load: float, rounds: int) -> Report:
    store = AsyncStore(url)
    rows = _Work(Cleanup(store.names, Kept(), load=load), store)
    # The partition holds what the relay has just sent, too: all of it counts as old.
    whole = _Work(Cleanup(store.names, Kept(messages=0)), store)
    drain = _Drain(url)
    async with Relay(url, _discard, hook=drain.listen):
        for _ in range(WARM):
            await drain.rate()
        alone, beside = await _in_turn(drain, rows, rounds)
    removed = rows.cleanup.cleaned.messages
    rest = Cleanup(store.names, Kept())
    begun = time.perf_counter()
    while rest.cleaned.messages < (messages - removed) // 2:
        await store.run(rest.batch())
    without_pauses = rest.cleaned.messages / (time.perf_counter() - begun)
    begun = time.perf_counter()
    await store.call(lambda connection: partition(connection, store.names))
    partitioning = time.perf_counter() - begun
    async with Relay(url, _discard, hook=drain.listen):
        for _ in range(WARM):
            await drain.rate()
        alone_partitioned = median([await drain.rate() for _ in range(rounds)])
        async with whole.at_work():
            beside_emptying = await drain.rate()
            while not whole.cleanup.cleaned.messages:
                beside_emptying = min(beside_emptying, await drain.rate())
    await store.close()
    total = removed + rest.cleaned.messages + whole.cleanup.cleaned.messages
    if total < messages:
        raise AssertionError(f"{total:,} messages were removed, and not {messages:,}")
    return Report(
        messages=messages,
        load=load,
        alone=median(alone),
        beside=median(beside),
        kept=median(two / one for one, two in zip(alone, beside, strict=True)),
        removed_beside=removed,
        removal=removed / rows.seconds,
        longest_batch=max(rows.batches),
        removal_without_pauses=without_pauses,
        partitioning=partitioning,
        alone_partitioned=alone_partitioned,
        emptied=whole.cleanup.cleaned.messages,
        emptying=max(whole.batches),
        kept_partitioned=beside_emptying / alone_partitioned,
    )


async def _until_gone(url: str, messages: int, load: float, limit: float) -> Whole:
    """Remove all beside the relay, within so many seconds. The round in which it comes to its end does not count."""
    store = AsyncStore(url)
    work = _Work(Cleanup(store.names, Kept(), load=load), store)
    drain = _Drain(url)
    alone: list[float] = []
    beside: list[float] = []
    kept: list[float] = []
    async with Relay(url, _discard, hook=drain.listen):
        for _ in range(WARM):
            await drain.rate()
        alone.append(await drain.rate())
        while not work.cleanup.done and work.seconds < limit:
            async with work.at_work():
                rates = [await drain.rate() for _ in range(BESIDE)]
            alone.append(await drain.rate())
            if work.cleanup.cleaned.messages < messages or not kept:
                beside += rates
                kept.append(mean(rates) / mean(alone[-2:]))
    await store.close()
    removed = work.cleanup.cleaned.messages
    if work.cleanup.done and removed != messages:
        raise AssertionError(f"{removed:,} messages were removed, and not {messages:,}")
    low, _, high = quantiles(kept, n=4) if len(kept) > 1 else kept * 3
    return Whole(
        messages=messages,
        removed=removed,
        load=load,
        rounds=len(kept),
        alone=median(alone),
        beside=median(beside),
        kept=median(kept),
        kept_quartiles=(low, high),
        seconds=sum(work.batches) + work.paused,
        longest_batch=max(work.batches),
    )


async def _in_turn(drain: _Drain, work: _Work, rounds: int) -> tuple[list[float], list[float]]:
    """The rates of the relay alone, and beside the work. Each is first in every other round."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds):
        for is_beside in (False, True) if number % 2 else (True, False):
            async with work.at_work() if is_beside else nullcontext():
                rates[is_beside].append(await drain.rate())
        if work.cleanup.done:
            raise AssertionError("all was removed before the last round: give more --messages, or fewer --rounds")
    return rates[False], rates[True]


class _Work:
    """A cleanup that works only while it is told to."""

    def __init__(self, cleanup: Cleanup, store: AsyncStore) -> None:
        self.cleanup = cleanup
        self.seconds = 0.0
        self.paused = 0.0
        self.batches: list[float] = []
        self._store = store

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        task = asyncio.create_task(self._run(stop))
        begun = time.perf_counter()
        try:
            yield
        finally:
            stop.set()
            await task
            self.seconds += time.perf_counter() - begun

    async def _run(self, stop: asyncio.Event) -> None:
        while not stop.is_set() and not self.cleanup.done:
            begun = time.perf_counter()
            pause = await self._store.run(self.cleanup.batch())
            now = time.perf_counter()
            self.batches.append(now - begun)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)
            self.paused += time.perf_counter() - now


class _Drain:
    """A backlog that a running relay drains."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._left = 0
        self._empty = asyncio.Event()

    def listen(self, event: Event) -> None:
        if isinstance(event, Settled):
            self._left -= len(event.messages)
            if self._left <= 0:
                self._empty.set()

    async def rate(self) -> float:
        """Add a backlog, and wait until it is sent; returns messages a second, from the commit on."""
        self._left += BACKLOG
        self._empty.clear()
        async with await psycopg.AsyncConnection.connect(self._url) as connection:
            await Outbox().aadd_many(connection, [Message.new("orders", PAYLOAD) for _ in range(BACKLOG)])
            gc.collect()
            await connection.commit()
            begun = time.perf_counter()
        async with asyncio.timeout(60):
            await self._empty.wait()
        return BACKLOG / (time.perf_counter() - begun)


async def _discard(messages: list[Message]) -> None:
    del messages
