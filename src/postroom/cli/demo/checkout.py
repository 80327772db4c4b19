"""The demo's saga: an order that takes several steps, of which one may fail when others are done."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from postroom.cli.demo.shop import connect, count, transaction
from postroom.saga import Refused, Saga

STOCK = 5
GOOD, EMPTY = 8, 7
"""Numbers of the orders: one with a good card, and one whose card has no money."""
COMPLETED, UNDONE = "parcel sent", "stock given back"
"""What is said last of an order that has ended."""
TAKE, GIVE_BACK = -1, 1


def checkout_of(directory: Path) -> Saga[Any]:
    """The saga as a relay runs it."""
    checkout: Saga[Any] = Saga("checkout")

    @checkout.step
    def reserve_stock(saga: Any) -> None:
        _move_stock(saga, TAKE, "stock reserved")

    @reserve_stock.compensation
    def release_stock(saga: Any) -> None:
        _move_stock(saga, GIVE_BACK, UNDONE)

    @checkout.call
    def charge_card(saga: Any) -> None:
        declined = saga.data["order"] == EMPTY
        with closing(connect(directory)) as bank, transaction(bank):  # elsewhere, in earnest
            _note(bank.execute, saga, "card declined" if declined else "card charged")
        if declined:
            raise Refused("CARD_DECLINED")

    @checkout.step
    def send_parcel(saga: Any) -> None:
        _note(saga.connection.exec_driver_sql, saga, COMPLETED)

    return checkout


class Checkout:
    """The shop's side: it starts sagas, and sees what they did."""

    def __init__(self, connection: sqlite3.Connection, directory: Path) -> None:
        self._connection = connection
        self._saga = checkout_of(directory)
        connection.execute("CREATE TABLE stock (pieces INTEGER NOT NULL)")
        connection.execute("CREATE TABLE story (number INTEGER PRIMARY KEY, customer_order INTEGER, said TEXT)")
        with transaction(connection):
            connection.execute("INSERT INTO stock VALUES (?)", (STOCK,))

    def begin(self, order: int) -> None:
        """Start the saga of an order."""
        with transaction(self._connection):
            self._saga.start(self._connection, {"order": order}, id=f"order-{order}")

    def story(self, order: int) -> str:
        """What has happened to the order."""
        query = "SELECT said FROM story WHERE customer_order = ? ORDER BY number"
        return ", ".join(said for [said] in self._connection.execute(query, (order,)))

    def stock(self) -> int:
        """How many pieces are there."""
        return count(self._connection, "SELECT pieces FROM stock")

    def ended(self, like: str) -> int:
        """How many orders have ended like this."""
        [[number]] = self._connection.execute("SELECT count(*) FROM story WHERE said = ?", (like,))
        return int(number)

    def missing(self) -> int:
        """How many pieces were taken for an order that was undone, and not given back."""
        return STOCK - self.stock() - self.ended(COMPLETED)


def _move_stock(saga: Any, pieces: int, said: str) -> None:
    saga.connection.exec_driver_sql("UPDATE stock SET pieces = pieces + ?", (pieces,))
    _note(saga.connection.exec_driver_sql, saga, said)


def _note(execute: Any, saga: Any, said: str) -> None:
    execute("INSERT INTO story (customer_order, said) VALUES (?, ?)", (saga.data["order"], said))
