"""The cost of `notify` for producers on PostgreSQL: adds per second with and without it, on one and four connections.

The server is durable, because the cost arises at commit: transactions that notify take turns, and cannot share a flush.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from benchmarks.producer import PAYLOAD
from benchmarks.rounds import create_tables, per_second, show
from postroom import Outbox
from postroom.store.sql.names import Names, channel
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event

TRANSACTIONS = 1200
CONNECTIONS = (1, 4)
OUTBOXES = {"without notify": Outbox(notify=False), "with notify": Outbox(notify=True)}


def main() -> None:
    """Measure with a relay that listens."""
    with closing(PostgreSQL(durable=True)) as server:
        server.start()
        server.create_database("shop")
        url = server.url("shop")
        create_tables(url)
        with _listening(url):
            for count in CONNECTIONS:
                _measure(url, count)


def _measure(url: str, count: int) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(psycopg.connect(url))) for _ in range(count)]
        threads = stack.enter_context(ThreadPoolExecutor(count))

        def add(outbox: Outbox) -> int:
            def transactions(connection: psycopg.Connection) -> int:
                for _ in range(TRANSACTIONS // count):
                    outbox.add(connection, "orders.created", PAYLOAD)
                    connection.commit()
                return TRANSACTIONS // count

            return sum(threads.map(transactions, connections))

        rates = per_second({name: partial(add, outbox) for name, outbox in OUTBOXES.items()})
    show(f"one add a transaction, connections: {count}", rates, "without notify", "tx/s")


@contextmanager
def _listening(url: str) -> Iterator[None]:
    """Run another process that listens, like a relay."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    listener = context.Process(target=_listen, args=(url, ready), daemon=True)
    listener.start()
    ready.wait()
    try:
        yield
    finally:
        listener.terminate()
        listener.join()


def _listen(url: str, ready: Event) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'LISTEN "{channel(Names.of("postgresql"), "default")}"'.encode())
        ready.set()
        for _ in connection.notifies():
            pass
