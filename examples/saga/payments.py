"""Payments: charges for an order, and refunds it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from examples.saga.service import Declined, Service

if TYPE_CHECKING:
    from sqlalchemy import Connection

TABLES = (
    "CREATE TABLE accounts (customer TEXT PRIMARY KEY, balance INTEGER)",
    "CREATE TABLE payments (id TEXT PRIMARY KEY, order_id TEXT, customer TEXT, amount INTEGER, status TEXT)",
    "INSERT INTO accounts VALUES ('Ada', 900), ('Ben', 700), ('Cleo', 500), ('Dan', 60)",
)
TAKE = text("UPDATE accounts SET balance = balance - :amount WHERE customer = :customer AND balance >= :amount")
GIVE = text("UPDATE accounts SET balance = balance + :amount WHERE customer = :customer")
INSERT = text("INSERT INTO payments VALUES (:id, :order, :customer, :amount, 'charged')")
REFUND = text("UPDATE payments SET status = 'refunded' WHERE order_id = :order AND status = 'charged'")

calls = itertools.count(1)
EVERY_SIXTH = 6


def call_the_bank() -> None:
    """A bank that is not always reachable: the caller gets an error, and asks again a little later."""
    if next(calls) % EVERY_SIXTH == 0:
        raise ConnectionError("the bank does not answer")


def charge(connection: Connection, order: dict[str, Any]) -> dict[str, str]:
    """Charge the customer. Too little money is an answer, and no failure."""
    call_the_bank()
    if not connection.execute(TAKE, order).rowcount:
        raise Declined("CANNOT_PAY", "cannot pay")
    payment = f"payment-{order['order']}"
    connection.execute(INSERT, {"id": payment, **order})
    return {"payment": payment}


def refund(connection: Connection, order: dict[str, Any]) -> dict[str, str]:
    """Refund a payment."""
    call_the_bank()
    connection.execute(REFUND, order)
    connection.execute(GIVE, order)
    return {}


SERVICE = Service("payments", tables=TABLES, actions={"charge": charge, "refund": refund})
