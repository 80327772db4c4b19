"""The cost of a message for the producer: a business row alone, and with a message in the same transaction."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql

from benchmarks.rounds import create_tables, per_second, show
from postroom import Message, Outbox
from postroom.store.connections.urls import resolve
from tests.services import registry
from tests.services.databases import fresh_database

if TYPE_CHECKING:
    from collections.abc import Callable

TRANSACTIONS = 400
PAYLOAD = {"order_id": 7, "customer": "c-1", "items": ["a", "b", "c"], "note": "x" * 120}


def main() -> None:
    """Measure SQLite, PostgreSQL and MariaDB, each through its plain driver."""
    for kind in ("sqlite", "postgresql", "mariadb"):
        with fresh_database(kind) as url:
            create_tables(url)
            connection = _connect(kind, url)
            try:
                _measure(kind, connection)
            finally:
                connection.close()
    registry.close_all()


def _connect(kind: str, url: str) -> Any:
    parsed = resolve(url)
    match kind:
        case "sqlite":
            return sqlite3.connect(str(parsed.database))
        case "postgresql":
            return psycopg.connect(url)
        case _:
            return pymysql.connect(host=parsed.host, port=parsed.port or 0, user="root", database=parsed.database)


def _measure(kind: str, connection: Any) -> None:
    outbox = Outbox()
    mark = "?" if kind == "sqlite" else "%s"
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE orders (id INTEGER, note VARCHAR(200))")
    connection.commit()
    business = f"INSERT INTO orders VALUES ({mark}, {mark})"

    def transactions(extra: Callable[[], object]) -> int:
        for n in range(TRANSACTIONS):
            cursor.execute(business, (n, "x" * 100))
            extra()
            connection.commit()
        return TRANSACTIONS

    rates = per_second(
        {
            "business row alone": lambda: transactions(lambda: None),
            "business row and a message": lambda: transactions(
                lambda: outbox.add(connection, "orders.created", PAYLOAD, key="7")
            ),
        }
    )
    show(f"producer on {kind}", rates, "business row alone", "tx/s")
    many = [Message.new("orders.created", PAYLOAD, key=str(n)) for n in range(10_000)]

    def add_many() -> int:
        outbox.add_many(connection, many)
        connection.rollback()
        return len(many)

    print(f"  add_many of 10,000 {per_second({'many': add_many}, rounds=3)['many']:>35,.0f} messages/s")
