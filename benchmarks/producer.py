"""The cost of a message for the producer, by driver: a business row alone, and with a message in the same transaction.

On PostgreSQL with fsync there is a floor beside them: what a message and its delivery need at the least, written by a
plain statement. Processor time is for each transaction: Python's, and on PostgreSQL the server's.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import time
from collections import defaultdict
from contextlib import asynccontextmanager, closing
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import aiosqlite
import asyncmy
import asyncpg
import psycopg
import pymysql
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from benchmarks.rounds import create_tables, per_second
from benchmarks.server_costs import processor_time
from postroom import Message, Outbox
from postroom.store.connections.urls import resolve
from tests.services import registry
from tests.services.databases import fresh_database
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

PAYLOAD = {"order_id": 7, "customer": "c-1", "items": ["a", "b", "c"], "note": "x" * 120}
ORDERS = "CREATE TABLE orders (id INTEGER, note VARCHAR(200))"
INSERT = "INSERT INTO orders VALUES ({}, {})"
ROW = (7, "x" * 100)
FLOOR = """
    WITH message AS (
        INSERT INTO postroom.outbox (id, topic, payload, content_type, digest) VALUES ($1, $2, $3, $4, $5)
        RETURNING position
    )
    INSERT INTO postroom.outbox_delivery (position, size) SELECT position, $6 FROM message"""
BUSINESS = "business row alone"


class Turns(NamedTuple):
    """How often each variant has its turn, and how long it is."""

    rounds: int
    transactions: int


TURNS = Turns(rounds=5, transactions=200)


class Driver(NamedTuple):
    """An open connection, and how to use it."""

    connection: Any
    insert: Callable[[], Any]
    """Writes the business row; what it returns may have to be awaited."""
    commit: Callable[[], Any]
    is_async: bool = False


async def main_async(server: PostgreSQL) -> None:
    """Measure every driver on its database."""
    server.create_database("shop")
    url = server.url("shop")
    create_tables(url)
    with psycopg.connect(url) as connection:
        connection.execute(ORDERS)
    for name in ("asyncpg", "psycopg", "psycopg, async", "SQLAlchemy", "SQLAlchemy, ORM", "SQLAlchemy, async"):
        async with opened(name, url) as driver:
            await measure(name, driver, server)
    for kind, names in {"sqlite": ("sqlite3", "aiosqlite"), "mariadb": ("PyMySQL", "asyncmy")}.items():
        with fresh_database(kind) as url:
            create_tables(url)
            store = create_engine(resolve(url))
            with store.begin() as connection:
                connection.exec_driver_sql(ORDERS)
            store.dispose()
            for name in names:
                async with opened(name, url) as driver:
                    await measure(name, driver)


def main() -> None:
    """Measure and print."""
    with closing(PostgreSQL(durable=True)) as server:
        server.start()
        asyncio.run(main_async(server))
    registry.close_all()


@asynccontextmanager
async def opened(name: str, url: str) -> AsyncIterator[Driver]:  # noqa: C901 - a case for each driver
    """A connection by this driver."""
    parsed = resolve(url)
    server: dict[str, Any] = {"host": parsed.host, "port": parsed.port or 0, "user": "root"}
    plain, qmark = INSERT.format("%s", "%s"), INSERT.format("?", "?")
    match name:
        case "asyncpg":
            asyncpg_connection = await asyncpg.connect(url)
            # Begun and ended as SQL, which costs what `transaction()` does, and less of Python.
            numbered = INSERT.format("$1", "$2")

            async def insert() -> None:
                await asyncpg_connection.execute("BEGIN")
                await asyncpg_connection.execute(numbered, *ROW)

            yield Driver(asyncpg_connection, insert, lambda: asyncpg_connection.execute("COMMIT"), is_async=True)
            await asyncpg_connection.close()
        case "psycopg, async":
            async with await psycopg.AsyncConnection.connect(url) as aconnection:
                yield Driver(aconnection, lambda: aconnection.execute(plain, ROW), aconnection.commit, is_async=True)
        case "SQLAlchemy":
            with create_engine(parsed).connect() as core:
                yield Driver(core, lambda: core.exec_driver_sql(plain, ROW), core.commit)
        case "SQLAlchemy, ORM":
            with Session(create_engine(parsed)) as session:
                yield Driver(session, lambda: session.connection().exec_driver_sql(plain, ROW), session.commit)
        case "SQLAlchemy, async":
            engine = create_async_engine(resolve(url, asynchronous=True))
            marks = INSERT.format("$1", "$2")
            async with engine.connect() as acore:
                yield Driver(acore, lambda: acore.exec_driver_sql(marks, ROW), acore.commit, is_async=True)
            await engine.dispose()
        case "aiosqlite":
            async with aiosqlite.connect(str(parsed.database)) as lite:
                yield Driver(lite, lambda: lite.execute(qmark, ROW), lite.commit, is_async=True)
        case "asyncmy":
            my = await asyncmy.connect(**server, db=parsed.database)
            async with my.cursor() as acursor:
                yield Driver(my, lambda: acursor.execute(plain, ROW), my.commit, is_async=True)
            my.close()
        case "sqlite3":
            with closing(sqlite3.connect(str(parsed.database))) as sync_lite:
                yield Driver(sync_lite, lambda: sync_lite.execute(qmark, ROW), sync_lite.commit)
        case "PyMySQL":
            with closing(pymysql.connect(**server, database=parsed.database)) as sync_my:
                cursor = sync_my.cursor()
                yield Driver(sync_my, lambda: cursor.execute(plain, ROW), sync_my.commit)
        case _:
            with psycopg.connect(url) as sync:
                yield Driver(sync, lambda: sync.execute(plain, ROW), sync.commit)


def _variants(name: str, driver: Driver, *, on_postgresql: bool) -> dict[str, Callable[[], Any]]:
    """What is written beside the business row."""
    connection = driver.connection

    def adding(outbox: Outbox, **fields: Any) -> Callable[[], Any]:
        add: Callable[..., Any] = outbox.aadd if driver.is_async else outbox.add
        return lambda: add(connection, "orders.created", PAYLOAD, **fields)

    variants: dict[str, Callable[[], Any]] = {BUSINESS: lambda: None}
    if name == "asyncpg":
        made = Message.new("orders.created", PAYLOAD)
        values = (made.topic, made.payload, made.content_type, made.digest, made.size)
        variants["and the floor"] = lambda: connection.execute(FLOOR, uuid4(), *values)
    variants["and a message"] = adding(Outbox(notify=False))
    variants["and one with a key"] = adding(Outbox(notify=False), key="7")
    if on_postgresql:
        variants["and one with a key, and notify"] = adding(Outbox(notify=True), key="7")
    return variants


async def measure(
    name: str,
    driver: Driver,
    server: PostgreSQL | None = None,
    others: Mapping[str, Callable[[], Any]] | None = None,
    turns: Turns = TURNS,
) -> None:
    """Run all variants in turn for several rounds, and print the medians and their ratios to the business row.

    Processor time is the mean: the server's has a resolution of 10 ms. `others`: what else may be written.
    """
    awaited = _awaited if driver.is_async else _at_once
    costs: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    variants = _variants(name, driver, on_postgresql=server is not None) | dict(others or {})
    for _ in range(turns.rounds):
        for variant, extra in variants.items():
            gc.collect()
            before = _clocks(server)
            for _ in range(turns.transactions):
                await awaited(driver.insert())
                await awaited(extra())
                await awaited(driver.commit())
            spent = zip(before, _clocks(server), strict=True)
            costs[variant].append(tuple((end - start) / turns.transactions * 1e6 for start, end in spent))
    print(f"\nproducer on {name}")
    alone = median(real for real, *_ in costs[BUSINESS])
    for variant, rows in costs.items():
        reals, *processor = zip(*rows, strict=True)
        real, python, at_server = median(reals), *map(mean, processor)
        shown = f"{real:>8,.0f} µs  {real / alone:>5.2f} times   Python {python:>6,.0f} µs"
        print(f"  {variant:<32} {shown}" + (f"   PostgreSQL {at_server:>6,.0f} µs" if server else ""))
    if not driver.is_async and "SQLAlchemy" not in name:
        many = [Message.new("orders.created", PAYLOAD, key=str(n)) for n in range(10_000)]
        rate = per_second({"many": lambda: _add_many(driver.connection, many)}, rounds=3)["many"]
        print(f"  {'add_many of 10,000':<32} {rate:>8,.0f} messages/s")


def _add_many(connection: Any, messages: list[Message]) -> int:
    Outbox().add_many(connection, messages)
    connection.rollback()
    return len(messages)


async def _awaited(given: Awaitable[object] | None) -> None:
    if given is not None:
        await given


async def _at_once(given: object) -> None:
    """Nothing to wait for: the driver was called, and has answered."""


def _clocks(server: PostgreSQL | None) -> tuple[float, float, float]:
    """Real time, and the processor time of Python and of the server."""
    return time.perf_counter(), time.process_time(), 0.0 if server is None else processor_time(server)
