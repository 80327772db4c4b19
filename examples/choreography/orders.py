"""Orders: accepts orders, and learns from the other services' events how they end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

from examples.choreography.events import OrderCreated, PaymentFailed, PaymentRefunded, StockReserved, publish
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
    """Accept an order."""
    items = ", ".join(f"{count} {item}" for item, count in order.items.items())
    connection.execute(INSERT, {"id": order.order, "customer": order.customer, "amount": order.amount, "items": items})
    publish(connection, order)


def complete(connection: Connection, message: Incoming) -> None:
    """Paid and reserved: nothing can go wrong any more."""
    event = message.decode(StockReserved)
    connection.execute(END, {"id": event.order, "status": "completed", "reason": ""})


def cancel_unpaid(connection: Connection, message: Incoming) -> None:
    """Cancel an unpaid order. Nothing needs to be undone: goods are reserved only after payment."""
    event = message.decode(PaymentFailed)
    connection.execute(END, {"id": event.order, "status": "cancelled", "reason": event.reason})


def cancel_refunded(connection: Connection, message: Incoming) -> None:
    """Cancel a refunded order: the last step of undoing it."""
    event = message.decode(PaymentRefunded)
    connection.execute(END, {"id": event.order, "status": "cancelled", "reason": event.reason})


SERVICE = Service(
    "orders",
    tables=TABLES,
    handlers={StockReserved: complete, PaymentFailed: cancel_unpaid, PaymentRefunded: cancel_refunded},
)
