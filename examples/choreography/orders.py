"""Orders: takes them, and learns from the others' events how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

from examples.choreography.events import OrderCreated, PaymentFailed, PaymentRefunded, StockReserved, tell
from examples.choreography.service import Service

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from postroom import Incoming

TABLES = (
    "CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT, amount INTEGER, items TEXT, status TEXT, reason TEXT)",
)
INSERT = text("INSERT INTO orders VALUES (:id, :customer, :amount, :items, 'placed', '')")
END = text("UPDATE orders SET status = :status, reason = :reason WHERE id = :id AND status = 'placed'")


def place(connection: Connection, order: OrderCreated) -> None:
    """Take an order."""
    items = ", ".join(f"{count} {item}" for item, count in order.items.items())
    connection.execute(INSERT, {"id": order.order, "customer": order.customer, "amount": order.amount, "items": items})
    tell(connection, order)


def complete(connection: Connection, message: Incoming) -> None:
    """It is paid for and set aside: nothing can go wrong any more."""
    event = message.decode(StockReserved)
    connection.execute(END, {"id": event.order, "status": "completed", "reason": ""})


def cancel_unpaid(connection: Connection, message: Incoming) -> None:
    """No money was taken, and inventory sets nothing aside before it is paid for: there is nothing to undo."""
    event = message.decode(PaymentFailed)
    connection.execute(END, {"id": event.order, "status": "cancelled", "reason": event.reason})


def cancel_refunded(connection: Connection, message: Incoming) -> None:
    """The last step of undoing: the money is back already."""
    event = message.decode(PaymentRefunded)
    connection.execute(END, {"id": event.order, "status": "cancelled", "reason": event.reason})


SERVICE = Service(
    "orders",
    tables=TABLES,
    handlers={StockReserved: complete, PaymentFailed: cancel_unpaid, PaymentRefunded: cancel_refunded},
)
