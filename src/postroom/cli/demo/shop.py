"""The demo's two services, shop and billing. Both write to the shop's database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postroom.cli.demo.broker import POISON, Received
from postroom.cli.demo.workspace import SHOP
from postroom.inbox import Inbox
from postroom.message import Message
from postroom.outbox import Outbox

GOODS = ("a kettle", "two cups", "a tin of tea", "a teaspoon", "a tray")
CUSTOMERS = 24


class CardDeclined(Exception):
    """The customer's card was declined."""


class Shop:
    """Writes each order and its message in one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._outbox = Outbox(brokers=[])
        connection.execute("CREATE TABLE orders (request TEXT PRIMARY KEY, goods TEXT NOT NULL)")

    def order(self, number: int, *, card_is_good: bool = True) -> Message:
        """Take an order, unless the same request came before. If it raises `CardDeclined`, nothing is written."""
        request, goods = f"request-{number}", GOODS[number % len(GOODS)]
        with transaction(self._connection):
            message = self._outbox.add(
                self._connection,
                "orders.created",
                {"request": request, "goods": goods},
                type="OrderCreated",
                key=f"customer-{number % CUSTOMERS + 1}",
                idempotency_key=request,
            )
            if not message.duplicate:
                self._connection.execute("INSERT INTO orders VALUES (?, ?)", (request, goods))
            if not card_is_good:
                raise CardDeclined
        return message

    def poison(self) -> None:
        """Publish something that the broker will never take."""
        with transaction(self._connection):
            self._outbox.add(self._connection, "catalogue.changed", POISON, type="CatalogueChanged")

    def orders(self) -> int:
        """How many orders are in the shop's table."""
        return count(self._connection, "SELECT count(*) FROM orders")

    def messages(self) -> int:
        """How many messages are in the outbox."""
        return count(self._connection, "SELECT count(*) FROM postroom_outbox")


class Billing:
    """Writes an invoice for each order that it hears of; the inbox recognises repeated messages."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._inbox = Inbox("billing")
        self.skipped = 0
        connection.execute("CREATE TABLE invoices (request TEXT NOT NULL)")  # a second invoice would be possible

    def receive(self, received: Received) -> None:
        """Bill the order, the first time."""
        with transaction(self._connection):
            if self._inbox.first_time(self._connection, received.id):
                self._connection.execute("INSERT INTO invoices VALUES (?)", (received.request,))
            else:
                self.skipped += 1

    def invoices(self) -> int:
        """How many invoices were written."""
        return count(self._connection, "SELECT count(*) FROM invoices")

    def billed_twice(self) -> int:
        """How many invoices there are beyond one for each order."""
        return count(self._connection, "SELECT count(*) - count(DISTINCT request) FROM invoices")

    def not_billed(self) -> int:
        """How many orders have no invoice."""
        return count(
            self._connection, "SELECT count(*) FROM orders WHERE request NOT IN (SELECT request FROM invoices)"
        )


def connect(directory: Path) -> sqlite3.Connection:
    """A connection to the shop's database, where Postroom's tables are already."""
    connection = sqlite3.connect(directory / SHOP, timeout=30)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")  # the demo's data need not survive a power cut
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit at the end, or roll back. It takes the write lock at once, so that two writers wait for each other."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        yield


def count(connection: sqlite3.Connection, query: str) -> int:
    """The one number that a query gives."""
    [[number]] = connection.execute(query)
    return int(number)
