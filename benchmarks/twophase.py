"""A transfer between two databases under two-phase commit, beside two plain commits, and beside the same as a saga.

``python -m benchmarks twophase [--rounds N] [--durable] [--json]``. All take turns on the same connections, with one
client and with eight. Plain commits are the floor, and can leave one side without the other; the saga is measured from
its start to its end, by a relay in the same process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from statistics import quantiles
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.rounds import create_tables
from postroom import Inbox, Relay, Saga, TwoPhaseCommit
from postroom.store.connections.urls import resolve
from postroom.telemetry import SagasEnded
from tests.services.mariadb import MariaDB
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from postroom.telemetry import Event

CLIENTS = (1, 8)
SECONDS = 0.4
"""For each measurement in a round."""
WARM = 0.1
"""Seconds before the first, so that connections are open and all code has been run."""
FLOOR = "two plain commits"
TAKE = text("UPDATE account SET cents = cents - 1 WHERE id = :id")
GIVE = text("UPDATE account SET cents = cents + 1 WHERE id = :id")


class Variant(NamedTuple):
    """A way to transfer."""

    name: str
    run: Callable[[int, float], list[float]]
    """Transfers with so many clients for so many seconds; returns how long each took."""


class Measured(NamedTuple):
    """What a way of transferring took, over all rounds."""

    pair: str
    code: str
    name: str
    clients: int
    per_second: float
    p50_ms: float
    p99_ms: float
    times: float
    """How many times the median of two plain commits."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks twophase")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--durable", action="store_true", help="let the servers wait for their disk, as in earnest")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    found: list[Measured] = []
    with _databases(durable=options.durable) as pairs:
        for pair, urls in pairs.items():
            with closing(_Sync(*urls)) as threads:
                found += _measured(pair, "sync", threads.variants(), options.rounds)
            with closing(_Async(*urls)) as tasks:
                found += _measured(pair, "async", tasks.variants(), options.rounds)
    if options.json:
        print(json.dumps([one._asdict() for one in found], indent=2))
        return
    print(f"\na transfer between two databases; fsync {'on' if options.durable else 'off'}")
    print(f"  {'':<34} {'clients':>7} {'a second':>9} {'p50':>9} {'p99':>9}")
    before = ""
    for one in found:
        head = f"{one.pair}, {one.code}"
        if head != before:
            print(f"  {head}")
            before = head
        print(
            f"    {one.name:<32} {one.clients:>7} {one.per_second:>9,.0f} {one.p50_ms:>6.2f} ms {one.p99_ms:>6.2f} ms"
            f"   {one.times:.2f} x"
        )
    print(f"  x: the median, in times that of {FLOOR}")


@contextmanager
def _databases(*, durable: bool) -> Iterator[dict[str, tuple[str, str, str]]]:
    """URLs of shop, bank and a database for the log alone, by pair."""
    with closing(PostgreSQL(durable=durable)) as postgresql, closing(MariaDB(durable=durable)) as mariadb:
        postgresql.start()
        mariadb.start()
        for name in ("shop", "bank", "log"):
            postgresql.create_database(name)
        mariadb.create_database("bank")
        shop, log = postgresql.url("shop"), postgresql.url("log")
        banks = {"PostgreSQL - PostgreSQL": postgresql.url("bank"), "PostgreSQL - MariaDB": mariadb.url("bank")}
        create_tables(log)
        for url in (shop, *banks.values()):
            create_tables(url)
            engine = create_engine(resolve(url))
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE account (id INTEGER PRIMARY KEY, cents BIGINT)"))
                for client in range(max(CLIENTS)):
                    connection.execute(text("INSERT INTO account VALUES (:id, 0)"), {"id": client})
            engine.dispose()
        yield {pair: (shop, bank, log) for pair, bank in banks.items()}


def _measured(pair: str, code: str, variants: Sequence[Variant], rounds: int) -> list[Measured]:
    """Let all take turns; the first is what the others are compared with."""
    found: list[Measured] = []
    for clients in CLIENTS:
        took: dict[str, list[float]] = {one.name: [] for one in variants}
        for one in variants:
            one.run(clients, WARM)
        for _ in range(rounds):
            for one in variants:
                gc.collect()
                took[one.name] += one.run(clients, SECONDS)
        medians = {name: quantiles(times, n=100)[49] for name, times in took.items()}
        found += [
            Measured(
                *(pair, code, name, clients),
                per_second=round(clients * len(times) / sum(times), 1),
                p50_ms=round(medians[name] * 1000, 3),
                p99_ms=round(quantiles(times, n=100)[98] * 1000, 3),
                times=round(medians[name] / medians[variants[0].name], 2),
            )
            for name, times in took.items()
        ]
    return found


class _Sync:
    """Threads, and SQLAlchemy engines."""

    def __init__(self, shop: str, bank: str, log: str) -> None:
        self._shop, self._bank, self._log = (create_engine(resolve(url), pool_size=8) for url in (shop, bank, log))

    def variants(self) -> list[Variant]:
        return [
            Variant(FLOOR, partial(_in_threads, self._plain)),
            self._two_phase("two-phase, log at a participant", self._shop),
            self._two_phase("two-phase, log apart", self._log),
        ]

    def close(self) -> None:
        for engine in (self._shop, self._bank, self._log):
            engine.dispose()

    def _plain(self, client: int) -> None:
        with self._shop.begin() as shop, self._bank.begin() as bank:
            shop.execute(TAKE, {"id": client})
            bank.execute(GIVE, {"id": client})

    def _two_phase(self, name: str, log: Any) -> Variant:
        transfers = TwoPhaseCommit(log, {"shop": self._shop, "bank": self._bank})

        def transfer(client: int) -> None:
            with transfers.begin() as transaction:
                transaction["shop"].execute(TAKE, {"id": client})
                transaction["bank"].execute(GIVE, {"id": client})

        return Variant(name, partial(_in_threads, transfer))


class _Async:
    """Tasks, and SQLAlchemy's async engines; also the saga."""

    def __init__(self, shop: str, bank: str, log: str) -> None:
        self._runner = asyncio.Runner()
        self._url = shop
        self._shop, self._bank, self._log = (
            create_async_engine(resolve(url, asynchronous=True), pool_size=8) for url in (shop, bank, log)
        )

    def variants(self) -> list[Variant]:
        return [
            self._variant(FLOOR, self._plain),
            self._two_phase("two-phase, log at a participant", self._shop),
            self._two_phase("two-phase, log apart", self._log),
            Variant("saga, a step and a call", lambda *options: self._runner.run(self._sagas(*options))),
        ]

    def close(self) -> None:
        for engine in (self._shop, self._bank, self._log):
            self._runner.run(engine.dispose())
        self._runner.close()

    async def _plain(self, client: int) -> None:
        async with self._shop.begin() as shop, self._bank.begin() as bank:
            await shop.execute(TAKE, {"id": client})
            await bank.execute(GIVE, {"id": client})

    def _two_phase(self, name: str, log: Any) -> Variant:
        transfers = TwoPhaseCommit(log, {"shop": self._shop, "bank": self._bank})

        async def transfer(client: int) -> None:
            async with transfers.begin() as transaction:
                await transaction["shop"].execute(TAKE, {"id": client})
                await transaction["bank"].execute(GIVE, {"id": client})

        return self._variant(name, transfer)

    def _variant(self, name: str, transfer: Callable[[int], Awaitable[None]]) -> Variant:
        return Variant(name, lambda *options: self._runner.run(_in_tasks(transfer, *options)))

    async def _sagas(self, clients: int, seconds: float) -> list[float]:
        inbox = Inbox("bank")
        saga: Saga[Any] = Saga("transfer", transactions=self._shop)

        @saga.step
        async def take(saga: Any) -> None:
            await saga.connection.execute(TAKE, {"id": saga.data})

        @saga.call  # it may be repeated, and so remembers what it has done
        async def give(saga: Any) -> None:
            async with self._bank.begin() as bank:
                await inbox.aonce(bank, saga.key, bank.execute, GIVE, {"id": saga.data})

        waiting: dict[str, asyncio.Future[None]] = {}

        def hook(event: Event) -> None:
            if isinstance(event, SagasEnded):
                for one in event.ended:
                    waiting.pop(one.id).set_result(None)

        async def transfer(client: int) -> None:
            id_ = str(uuid4())
            ended = waiting[id_] = asyncio.get_running_loop().create_future()
            async with self._shop.begin() as shop:
                await saga.astart(shop, client, id=id_)
            await ended

        async with Relay(self._url, sagas=[saga], hook=hook):
            return await _in_tasks(transfer, clients, seconds)


def _in_threads(transfer: Callable[[int], None], clients: int, seconds: float) -> list[float]:
    took: list[float] = []
    until = time.perf_counter() + seconds

    def work(client: int) -> None:
        begun = time.perf_counter()
        while begun < until:
            transfer(client)
            ended = time.perf_counter()
            took.append(ended - begun)
            begun = ended

    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(work, range(clients)))
    return took


async def _in_tasks(transfer: Callable[[int], Awaitable[None]], clients: int, seconds: float) -> list[float]:
    took: list[float] = []
    until = time.perf_counter() + seconds

    async def work(client: int) -> None:
        begun = time.perf_counter()
        while begun < until:
            await transfer(client)
            ended = time.perf_counter()
            took.append(ended - begun)
            begun = ended

    await asyncio.gather(*(work(client) for client in range(clients)))
    return took
