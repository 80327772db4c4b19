"""Sagas of three steps that do nothing beside DBOS workflows of three steps, on the same PostgreSQL server.

``python -m benchmarks sagas [--rounds N] [--json]``. Both sides take turns. DBOS runs in an environment of its own,
made for this run, in several ways. Sagas run in one process, and are compared with the fastest way of DBOS in one; a
second ratio is to its fastest of all, which may have two. Sagas are measured from the commit of their start to the end
of the last; DBOS workflows from the first call, since DBOS starts them by running.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import asyncpg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.rounds import create_tables
from benchmarks.server_costs import processor_time
from postroom import Relay, Saga
from postroom.store.connections.urls import resolve
from postroom.telemetry import SagasEnded
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from postroom.telemetry import Event

DBOS = "dbos==3.3.0"
WORKFLOWS = 600
"""Of DBOS, in each round. With a hundred, most of the time is its ramp-up: it is then a third to a half slower."""
AT_ONCE = 16
"""Steps at a time, which is the relay's default, and so the connections that they get."""
CALLS_AT_ONCE = 256
"""Async calls at a time: each waits for others, so that many of them cost little more than a few."""
WARM = 100
"""Sagas before each measurement, so that connections are open and statements prepared."""


class Variant(NamedTuple):
    """Something to measure."""

    name: str
    sagas: int
    run: Callable[[], Cost]
    processes: int = 1


class Cost(NamedTuple):
    """Seconds that a round took: by the clock, and of processor time, of the workers and of the database server."""

    seconds: float
    worker: float
    server: float


class Rate(NamedTuple):
    """What was measured: medians of the rounds. Processor time depends less on what else the machine does."""

    name: str
    per_second: float
    times_dbos: float
    """How many times as many as DBOS in one process, in its fastest way."""
    times_all_dbos: float
    """How many times as many as the fastest of DBOS, however many processes that has."""
    worker_ms: float
    """Processor time of the worker for each saga."""
    server_ms: float
    """The same, of the database server."""
    times_less_processor: float
    """How many times the processor time, worker and server together, DBOS takes in one process."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks sagas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", default="", help="measure the variants whose names contain this, and DBOS's first")
    options = parser.parse_args(arguments)
    with closing(PostgreSQL()) as server, tempfile.TemporaryDirectory() as folder:
        server.start()
        server.create_database("shop")
        create_tables(server.url("shop"))
        dbos, ours = _dbos(server, Path(folder)), _ours(server, server.url("shop"))
        if options.only:
            dbos, ours = dbos[:1], [one for one in ours if options.only in one.name]
        found = _measured([*dbos, *ours], options.rounds, len(dbos))
    if options.json:
        print(json.dumps([one._asdict() for one in found], indent=2))
        return
    print("\nsagas of three steps that do nothing, one process unless it says otherwise; processor time in ms a saga")
    heads = f"{'sagas/s':>9} {'x DBOS':>8} {'x its best':>11} {'worker':>8} {'server':>8} {'less than DBOS':>16}"
    print(f"  {'':<34} {heads}")
    for one in found:
        print(
            f"  {one.name:<34} {one.per_second:>9,.0f} {one.times_dbos:>8.1f} {one.times_all_dbos:>11.1f} "
            f"{one.worker_ms:>8.2f} {one.server_ms:>8.2f} {one.times_less_processor:>14.1f} x"
        )
    print("  x DBOS: to its fastest in one process, as sagas have; x its best: to its fastest in any number")


def _measured(variants: Sequence[Variant], rounds: int, of_dbos: int) -> list[Rate]:
    """Let all take turns; the first `of_dbos` are DBOS's, and what all are compared with."""
    seen: dict[str, list[Cost]] = {one.name: [] for one in variants}
    for _ in range(rounds):
        for one in variants:
            seen[one.name].append(Cost(*(value / one.sagas for value in one.run())))
    each = {name: Cost(*map(median, zip(*costs, strict=True))) for name, costs in seen.items()}
    dbos = variants[:of_dbos]
    alone = [each[one.name] for one in dbos if one.processes == 1]
    fastest_alone = min(cost.seconds for cost in alone)
    fastest = min(each[one.name].seconds for one in dbos)
    least = min(cost.worker + cost.server for cost in alone)
    return [
        Rate(
            name,
            per_second=round(1 / cost.seconds, 1),
            times_dbos=round(fastest_alone / cost.seconds, 2),
            times_all_dbos=round(fastest / cost.seconds, 2),
            worker_ms=round(cost.worker * 1000, 3),
            server_ms=round(cost.server * 1000, 3),
            times_less_processor=round(least / (cost.worker + cost.server), 2),
        )
        for name, cost in each.items()
    ]


def _dbos(server: PostgreSQL, folder: Path) -> list[Variant]:
    python = folder / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    subprocess.run([*uv, "pip", "install", "--quiet", "--python", python, DBOS], check=True)

    def variant(name: str, how: str, processes: int = 1) -> Variant:
        def run() -> Cost:
            database = f"dbos_{uuid4().hex}"
            server.create_database(database)
            try:
                return _dbos_round(python, server, server.url(database), how, processes)
            finally:
                server.drop_database(database)

        return Variant(name, WORKFLOWS, run, processes)

    return [
        variant("DBOS, called from 16 threads", "direct"),
        variant("DBOS, async", "async"),
        variant("DBOS, from a queue", "queue"),
        variant("DBOS, from threads, 2 processes", "direct", 2),
    ]


def _dbos_round(python: Path, server: PostgreSQL, url: str, how: str, processes: int) -> Cost:
    program = Path(__file__).with_name("dbos_workflows.py")
    command = [str(part) for part in (python, program, url, how, WORKFLOWS // processes)]
    workers = []
    try:
        for _ in range(processes):
            workers.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
                )
            )
            _said(workers[-1])
        before = processor_time(server)
        for worker in workers:
            print(file=worker.stdin, flush=True)
        answers = [json.loads(_said(worker)) for worker in workers]
        taken = processor_time(server) - before
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    return Cost(max(one["seconds"] for one in answers), sum(one["cpu"] for one in answers), taken)


def _said(worker: subprocess.Popen[str]) -> str:
    line = worker.stdout.readline() if worker.stdout else ""
    if not line:
        raise RuntimeError(f"{' '.join(map(str, worker.args))} failed: run it by hand to see why")  # type: ignore[arg-type]  # a list
    return line


def _ours(server: PostgreSQL, url: str) -> list[Variant]:
    def sync_engine() -> Any:
        return create_engine(resolve(url), pool_size=AT_ONCE)

    def async_engine() -> Any:
        return create_async_engine(resolve(url, asynchronous=True), pool_size=AT_ONCE)

    def variant(name: str, kind: str, count: int, engine: Callable[[], Any] | None = None) -> Variant:
        at_once = CALLS_AT_ONCE if kind == "call" else AT_ONCE
        return Variant(name, count, lambda: asyncio.run(_round(server, url, kind, count, at_once, engine)))

    return [
        variant("calls, async", "call", 5000),
        variant("calls, sync", "sync call", 1000),
        variant("steps, asyncpg", "asyncpg", 1000),
        variant("steps, SQLAlchemy sync", "sync step", 500, sync_engine),
        variant("steps, SQLAlchemy async", "step", 500, async_engine),
    ]


async def _round(
    server: PostgreSQL, url: str, kind: str, count: int, at_once: int, engine: Callable[[], Any] | None
) -> Cost:
    """Start all sagas in one transaction, and measure from its commit until the last has ended."""
    async with _transactions(url, kind, engine) as transactions:
        saga = _saga(kind, transactions)
        ended = _Ended()
        connection = await asyncpg.connect(url)
        try:
            async with Relay(url, sagas=[saga], hook=ended, saga_concurrency=at_once):
                await _started(saga, connection, WARM)
                await ended.reach(WARM)
                transaction = connection.transaction()
                await transaction.start()
                for _ in range(count):
                    await saga.astart(connection, {})
                gc.collect()  # what starting them has left is not the relay's
                before = Cost(time.perf_counter(), time.process_time(), processor_time(server))
                await transaction.commit()
                await ended.reach(WARM + count)
                after = Cost(time.perf_counter(), time.process_time(), processor_time(server))
                return Cost(*(end - start for start, end in zip(before, after, strict=True)))
        finally:
            await connection.close()


async def _started(saga: Saga[Any], connection: Any, count: int) -> None:
    async with connection.transaction():
        for _ in range(count):
            await saga.astart(connection, {})


class _Ended:
    """A hook that waits until so many sagas have ended."""

    def __init__(self) -> None:
        self._count = 0
        self._wanted = 0
        self._reached = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, SagasEnded):
            self._count += len(event.ended)
            if self._count >= self._wanted:
                self._reached.set()

    async def reach(self, count: int) -> None:
        self._wanted = count
        self._reached.clear()
        if self._count < count:
            async with asyncio.timeout(60):
                await self._reached.wait()


@asynccontextmanager
async def _transactions(url: str, kind: str, engine: Callable[[], Any] | None) -> AsyncIterator[Any]:
    """What a saga opens its transactions with: an engine, or asyncpg's own."""
    if kind == "asyncpg":
        async with asyncpg.create_pool(url, min_size=AT_ONCE, max_size=AT_ONCE, reset=_as_it_is) as pool:

            @asynccontextmanager
            async def transaction() -> AsyncIterator[Any]:
                async with pool.acquire() as connection, connection.transaction():
                    yield connection

            yield transaction
    elif engine is None:
        yield None
    else:
        made = engine()
        yield made
        closing = made.dispose()
        if closing is not None:
            await closing


async def _as_it_is(_connection: Any) -> None:
    """Skip asyncpg's own reset, which takes a round trip: transactions leave nothing behind."""


def _saga(kind: str, transactions: Any) -> Saga[Any]:
    saga: Saga[Any] = Saga(f"bench_{kind.replace(' ', '_')}", transactions=transactions)
    declare = saga.call if "call" in kind else saga.step

    async def async_nothing(_saga: Any) -> None: ...

    def nothing(_saga: Any) -> None: ...

    for n in range(3):
        declare(name=f"step_{n}")(nothing if kind.startswith("sync") else async_nothing)
    return saga
