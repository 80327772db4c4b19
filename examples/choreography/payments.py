"""Payments: charges for an order, and refunds it if goods are missing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from sqlalchemy import text

from examples.choreography.events import (
    OrderCreated,
    PaymentCompleted,
    PaymentFailed,
    PaymentRefunded,
    StockMissing,
    publish,
)
from examples.choreography.service import Service

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from postroom import Incoming

TABLES = (
    "CREATE TABLE accounts (customer TEXT PRIMARY KEY, balance INTEGER)",
    "CREATE TABLE payments (id TEXT PRIMARY KEY, order_id TEXT, customer TEXT, amount INTEGER, status TEXT)",
    "INSERT INTO accounts VALUES ('Ada', 900), ('Ben', 700), ('Cleo', 500), ('Dan', 60)",
)
TAKE = text("UPDATE accounts SET balance = balance - :amount WHERE customer = :customer AND balance >= :amount")
GIVE = text("UPDATE accounts SET balance = balance + :amount WHERE customer = :customer")
INSERT = text("INSERT INTO payments VALUES (:id, :order, :customer, :amount, 'charged')")
REFUND = text(
    "UPDATE payments SET status = 'refunded' WHERE order_id = :order AND status = 'charged' "
    "RETURNING id, customer, amount"
)

calls = itertools.count(1)
EVERY_SIXTH = 6


def call_the_bank() -> None:
    """A bank that is not always reachable.

    An exception in a handler rolls back its transaction; the message is kept, and handled again a little later.
    """
    if next(calls) % EVERY_SIXTH == 0:
        raise ConnectionError("the bank does not answer")


def charge(connection: Connection, message: Incoming) -> None:
    """Charge the customer. Too little money is not a failure of ours, but an event to publish."""
    event = message.decode(OrderCreated)
    call_the_bank()
    taken = connection.execute(TAKE, {"customer": event.customer, "amount": event.amount})
    if not taken.rowcount:
        publish(connection, PaymentFailed(order=event.order, reason="cannot pay"))
        return
    payment = f"payment-{event.order}"
    connection.execute(
        INSERT, {"id": payment, "order": event.order, "customer": event.customer, "amount": event.amount}
    )
    publish(connection, PaymentCompleted(order=event.order, payment=payment))


def refund(connection: Connection, message: Incoming) -> None:
    """Refund a payment, once."""
    event = message.decode(StockMissing)
    payment, customer, amount = connection.execute(REFUND, {"order": event.order}).one()
    connection.execute(GIVE, {"customer": customer, "amount": amount})
    publish(connection, PaymentRefunded(order=event.order, payment=payment, reason=event.reason))


SERVICE = Service("payments", tables=TABLES, handlers={OrderCreated: charge, StockMissing: refund})
