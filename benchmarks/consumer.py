"""A consumer with its inbox next to the same consumer without, from NATS into PostgreSQL and into SQLite.

The handler inserts one row. Messages are handled one by one, each in its own transaction, and in batches.
"""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

from sqlalchemy import create_engine, text

from benchmarks.rounds import create_tables, per_second, show
from postroom import Consumer, Inbox, Message
from postroom.brokers.nats import NatsBroker
from postroom.store.connections.urls import resolve
from tests.services.nats import Nats
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from postroom.incoming import Incoming

MESSAGES = {"one by one": 3000, "in batches": 20_000}
INSERT = text("INSERT INTO bill (number) VALUES (:number)")


def main() -> None:
    """Measure on both databases."""
    with closing(Nats()) as nats, closing(PostgreSQL()) as server, tempfile.TemporaryDirectory() as folder:
        nats.start()
        server.start()
        server.create_database("shop")
        for name, url in {"PostgreSQL": server.url("shop"), "SQLite": f"sqlite:///{folder}/shop.db"}.items():
            create_tables(url)
            engine = create_engine(resolve(url))
            with engine.begin() as connection:
                connection.execute(text("CREATE TABLE bill (number INTEGER)"))
            engine.dispose()
            for how in MESSAGES:
                _Run(nats, url, how).measure(name)


class _Run:
    """Publishes the messages to a new stream each time that they are consumed."""

    def __init__(self, nats: Nats, url: str, how: str) -> None:
        self._nats = nats
        self._url = url
        self._how = how
        self._count = MESSAGES[how]
        self._topic = ""

    def measure(self, database: str) -> None:
        variants = {
            "without inbox": partial(self._consume, _no_inbox),
            "with inbox": partial(self._consume, nullcontext),
        }
        rates = per_second(variants, self._publish, rounds=3)
        show(f"a consumer from NATS into {database}, {self._how}", rates, "without inbox", "messages/s")

    def _publish(self, _variant: str) -> None:
        self._topic = f"orders-{uuid4().hex}"
        asyncio.run(self._published())

    async def _published(self) -> None:
        publisher = NatsBroker(self._broker)
        for start in range(0, self._count, 1000):
            await publisher.publish([Message.new(self._topic, {"number": n}) for n in range(start, start + 1000)], 30)
        await publisher.close()

    @property
    def _broker(self) -> str:
        return f"nats://127.0.0.1:{self._nats.port}?declare=true&stream={self._topic}&subjects={self._topic}"

    def _consume(self, inbox: Callable[[], AbstractContextManager[object]]) -> int:
        consumer = Consumer(self._topic, self._broker, database=self._url, batch=500)
        consumer.handler(self._topic)(_several if self._how == "in batches" else _one)
        with inbox():
            report = asyncio.run(consumer.run_once())
        if report.handled != self._count:
            raise RuntimeError(f"not all were handled: {report}")
        return report.handled


def _no_inbox() -> AbstractContextManager[object]:
    return patch.multiple(Inbox, first_times=_all_new, is_marked=_there)


def _all_new(_inbox: Inbox, _connection: Any, message_ids: Sequence[Any]) -> list[bool]:
    return [True] * len(message_ids)


def _there(_inbox: Inbox, _connection: Any, _message_id: Any) -> bool:
    return True


def _one(connection: Connection, message: Incoming) -> None:
    connection.execute(INSERT, {"number": message.json()["number"]})


def _several(connection: Connection, messages: Sequence[Incoming]) -> None:
    connection.execute(INSERT, [{"number": one.json()["number"]} for one in messages])
