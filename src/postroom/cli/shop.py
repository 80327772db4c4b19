"""The demo's shop: it writes each order with the message that tells of it, in one transaction."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import chdir, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from postroom.message import Message
from postroom.outbox import Outbox
from postroom.settings import Settings

GOODS = ("a kettle", "two cups", "a tin of tea", "a teaspoon", "a tray")


class CardDeclined(Exception):
    """The customer's bank said no."""


class Shop:
    """Orders in a table of the shop's own, beside Postroom's tables."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._outbox = Outbox()
        connection.execute("PRAGMA synchronous = NORMAL")  # the demo's data need not survive a power cut
        connection.execute("CREATE TABLE orders (request TEXT PRIMARY KEY, goods TEXT NOT NULL)")

    def order(self, number: int, *, card_is_good: bool = True) -> Message:
        """Take an order, unless the same request came before. When it raises `CardDeclined`, nothing is written."""
        request, goods = f"request-{number}", GOODS[number % len(GOODS)]
        with self._connection:  # commits; rolls back when something is raised
            message = self._outbox.add(
                self._connection,
                "orders.created",
                {"request": request, "goods": goods},
                type="OrderCreated",
                key=f"customer-{number % 3 + 1}",
                idempotency_key=request,
            )
            if not message.duplicate:
                self._connection.execute("INSERT INTO orders VALUES (?, ?)", (request, goods))
            if not card_is_good:
                raise CardDeclined
        return message

    def orders(self) -> int:
        """How many orders are in the shop's table."""
        return self._count("SELECT count(*) FROM orders")

    def messages(self) -> int:
        """How many messages are in the outbox."""
        return self._count("SELECT count(*) FROM postroom_outbox")

    def lost(self) -> int:
        """How many orders have no message."""
        return self._count(
            "SELECT count(*) FROM orders "
            "WHERE NOT EXISTS (SELECT 1 FROM postroom_outbox WHERE idempotency_key = orders.request)"
        )

    def doubled(self) -> int:
        """How many messages there are beyond one for each order."""
        return self._count("SELECT count(*) - count(DISTINCT idempotency_key) FROM postroom_outbox")

    def _count(self, query: str) -> int:
        [[count]] = self._connection.execute(query)
        return int(count)


@contextmanager
def premises() -> Iterator[Settings]:
    """A temporary directory for the shop, and its settings. Yours, in files and the environment, do not count there."""
    yours = {name: value for name, value in os.environ.items() if name.startswith("POSTROOM_")}
    with TemporaryDirectory(prefix="postroom-demo-") as directory, chdir(directory):
        for name in yours:
            del os.environ[name]
        try:
            yield Settings(database=f"sqlite:///{Path(directory) / 'shop.db'}")
        finally:
            os.environ.update(yours)


@contextmanager
def opened(settings: Settings) -> Iterator[Shop]:
    """The shop, in the settings' SQLite database, where Postroom's tables must be."""
    file = str(settings.database).removeprefix("sqlite:///")
    with closing(sqlite3.connect(file)) as connection:
        yield Shop(connection)
