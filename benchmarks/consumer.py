"""A consumer with its inbox next to the same consumer without, from NATS.

``python -m benchmarks consumer [--rounds N] [--messages N] [--concurrency N] [CASE …]``: a case is a database and a
way to handle, such as ``postgresql-one``. The handler inserts one row: one message in each transaction, sync or async,
or batches. Rates hold for the machine that measures; the processor time of a message, in this process and in
PostgreSQL, holds longer.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
import time
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch
from uuid import uuid4

from sqlalchemy import create_engine, text

from benchmarks.rounds import create_tables
from benchmarks.server_costs import processor_time
from postroom import Consumer, Inbox, Message
from postroom.brokers.nats import NatsBroker
from postroom.store.connections.urls import resolve
from tests.services.mariadb import MariaDB
from tests.services.nats import Nats
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from postroom.incoming import Incoming

BATCH = 500
INSERT = text("INSERT INTO bill (number) VALUES (:number)")
MESSAGES = {"one": 6000, "batches": 40_000, "async": 3000, "asyncpg": 10_000}
"""Ways to handle, and how many messages each gets. Each run includes the consumer's start, and 0.2 s at its end."""
WARM = 200
"""Messages before the first run, so that everything is imported."""
CASES = (
    *("postgresql-one", "postgresql-batches", "postgresql-async", "postgresql-asyncpg"),
    *("mariadb-one", "mariadb-batches", "sqlite-one", "sqlite-batches"),
)


class Cost(NamedTuple):
    """What one run took, a message."""

    seconds: float
    python: float
    """Processor time of this process."""
    server: float
    """Processor time of the database's server; 0 where it is not known."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure the cases, or all."""
    parser = argparse.ArgumentParser("benchmarks consumer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, help="in each run")
    parser.add_argument("--concurrency", type=int, default=4, help="handlers that run in parallel")
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE")
    given = parser.parse_args(arguments)
    cases = given.cases or CASES
    with ExitStack() as stack:
        nats = stack.enter_context(closing(Nats()))
        nats.start()
        for database in dict.fromkeys(case.partition("-")[0] for case in cases):
            url, spent = stack.enter_context(_DATABASES[database]())
            for case in cases:
                of, _, how = case.partition("-")
                if of == database:
                    run = _Run(nats, url, how, given.messages or MESSAGES[how], given.concurrency, spent)
                    run.measure(database, given.rounds)


class _Run:
    """Publishes the messages to a new stream each time that they are consumed."""

    def __init__(
        self, nats: Nats, url: str, how: str, count: int, concurrency: int, spent: Callable[[], float]
    ) -> None:
        self._nats = nats
        self._url = url
        self._how = how
        self._count = count
        self._concurrency = concurrency
        self._spent = spent
        self._topic = ""

    def measure(self, database: str, rounds: int) -> None:
        variants: dict[str, Callable[[], AbstractContextManager[object]]] = {
            "without inbox": _no_inbox,
            "with inbox": nullcontext,
        }
        costs: dict[str, list[Cost]] = {name: [] for name in variants}
        self._publish(WARM)
        self._consume(nullcontext, WARM)
        for _ in range(rounds):
            for name, inbox in variants.items():
                self._publish(self._count)
                costs[name].append(self._consume(inbox, self._count))
        print(f"\na consumer from NATS into {database}, {self._how}")
        floor = median(one.seconds for one in costs["without inbox"])
        for name, found in costs.items():
            seconds, python, server = (median(column) for column in zip(*found, strict=True))
            print(
                f"  {name:<16} {1 / seconds:>8,.0f} messages/s   {floor / seconds:.2f} of without inbox"
                f"   Python {python * 1e6:>5.0f} µs   server {server * 1e6:>5.0f} µs a message",
                flush=True,
            )

    def _publish(self, count: int) -> None:
        self._topic = f"orders-{uuid4().hex}"
        asyncio.run(self._published(count))

    async def _published(self, count: int) -> None:
        publisher = NatsBroker(self._broker)
        for start in range(0, count, 1000):
            numbers = range(start, min(start + 1000, count))
            await publisher.publish([Message.new(self._topic, {"number": n}) for n in numbers], 30)
        await publisher.close()

    @property
    def _broker(self) -> str:
        return f"nats://127.0.0.1:{self._nats.port}?declare=true&stream={self._topic}&subjects={self._topic}"

    def _consume(self, inbox: Callable[[], AbstractContextManager[object]], count: int) -> Cost:
        with inbox():
            gc.collect()
            spent, python, start = self._spent(), time.process_time(), time.perf_counter()
            report = asyncio.run(self._consumed())
            seconds, python = time.perf_counter() - start, time.process_time() - python
            server = self._spent() - spent
        if report.handled != count:
            raise RuntimeError(f"not all were handled: {report}")
        return Cost(seconds / count, python / count, server / count)

    async def _consumed(self) -> Any:
        transactions = "driver" if self._how == "asyncpg" else None
        consumer = Consumer(
            self._topic,
            self._broker,
            database=self._url,
            batch=BATCH,
            transactions=transactions,
            concurrency=self._concurrency,
        )
        consumer.handler(self._topic)(_HANDLERS[self._how])
        return await consumer.run_once()


def _no_inbox() -> AbstractContextManager[object]:
    return patch.multiple(
        Inbox,
        first_times=_all_new,
        is_marked=_there,
        afirst_times=_aall_new,
        ais_marked=_athere,
        begin_marked=lambda *_: "BEGIN; SET LOCAL postroom.marked = 1; SELECT 1",
    )


def _all_new(_inbox: Inbox, _connection: Any, message_ids: Sequence[Any]) -> list[bool]:
    return [True] * len(message_ids)


async def _aall_new(_inbox: Inbox, _connection: Any, message_ids: Sequence[Any]) -> list[bool]:
    return [True] * len(message_ids)


def _there(_inbox: Inbox, _connection: Any, _message_id: Any) -> bool:
    return True


async def _athere(_inbox: Inbox, _connection: Any, _message_id: Any) -> bool:
    return True


def _one(connection: Connection, message: Incoming) -> None:
    connection.execute(INSERT, {"number": message.json()["number"]})


def _several(connection: Connection, messages: Sequence[Incoming]) -> None:
    connection.execute(INSERT, [{"number": one.json()["number"]} for one in messages])


async def _async(connection: AsyncConnection, message: Incoming) -> None:
    await connection.execute(INSERT, {"number": message.json()["number"]})


async def _asyncpg(connection: Any, message: Incoming) -> None:
    await connection.execute("INSERT INTO bill (number) VALUES ($1)", message.json()["number"])


_HANDLERS: dict[str, Callable[..., Any]] = {"one": _one, "batches": _several, "async": _async, "asyncpg": _asyncpg}


class _PostgreSQL:
    def __enter__(self) -> tuple[str, Callable[[], float]]:
        self._server = PostgreSQL(durable=True)
        self._server.start()
        self._server.create_database("shop")
        return _prepared(self._server.url("shop")), lambda: processor_time(self._server)

    def __exit__(self, *_: object) -> None:
        self._server.close()


class _MariaDB:
    def __enter__(self) -> tuple[str, Callable[[], float]]:
        self._server = MariaDB(durable=True)
        self._server.start()
        self._server.create_database("shop")
        return _prepared(self._server.url("shop")), float

    def __exit__(self, *_: object) -> None:
        self._server.close()


class _SQLite:
    def __enter__(self) -> tuple[str, Callable[[], float]]:
        self._folder = tempfile.TemporaryDirectory()
        return _prepared(f"sqlite:///{self._folder.name}/shop.db"), float

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


_DATABASES: dict[str, Callable[[], AbstractContextManager[tuple[str, Callable[[], float]]]]] = {
    "postgresql": _PostgreSQL,
    "mariadb": _MariaDB,
    "sqlite": _SQLite,
}


def _prepared(url: str) -> str:
    create_tables(url)
    engine = create_engine(resolve(url))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bill (number INTEGER)"))
    engine.dispose()
    return url
