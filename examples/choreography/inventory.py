"""Inventory: reserves goods for paid orders.

OrderCreated says what is in an order, PaymentCompleted that it is paid. They come from two services, in either order;
whichever comes second triggers the reservation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import text

from examples.choreography.events import OrderCreated, PaymentCompleted, StockMissing, StockReserved, publish
from examples.choreography.service import Service

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from postroom import Incoming

TABLES = (
    "CREATE TABLE stock (item TEXT PRIMARY KEY, quantity INTEGER)",
    "CREATE TABLE wanted (order_id TEXT, item TEXT, quantity INTEGER)",
    "CREATE TABLE paid (order_id TEXT PRIMARY KEY)",
    "CREATE TABLE reserved (order_id TEXT, item TEXT, quantity INTEGER)",
    "INSERT INTO stock VALUES ('kettle', 25), ('lamp', 12), ('chair', 5)",
)
WANT = text("INSERT INTO wanted VALUES (:order, :item, :quantity)")
PAID = text("INSERT INTO paid VALUES (:order)")
READY = text("SELECT item, quantity FROM wanted WHERE order_id = :order AND order_id IN (SELECT order_id FROM paid)")
TAKE = text("UPDATE stock SET quantity = quantity - :quantity WHERE item = :item AND quantity >= :quantity")
GIVE = text("UPDATE stock SET quantity = quantity + :quantity WHERE item = :item")
RESERVE = text("INSERT INTO reserved VALUES (:order, :item, :quantity)")


def record_items(connection: Connection, message: Incoming) -> None:
    """Record the items of an order."""
    event = message.decode(OrderCreated)
    for item, quantity in event.items.items():
        connection.execute(WANT, {"order": event.order, "item": item, "quantity": quantity})
    reserve_if_ready(connection, event.order)


def record_payment(connection: Connection, message: Incoming) -> None:
    """Record that an order is paid."""
    event = message.decode(PaymentCompleted)
    connection.execute(PAID, {"order": event.order})
    reserve_if_ready(connection, event.order)


def reserve_if_ready(connection: Connection, order: str) -> None:
    """Reserve all items of an order, or none, once they are known and paid."""
    wanted = [row._asdict() for row in connection.execute(READY, {"order": order})]
    if not wanted:
        return
    taken = [one for one in wanted if connection.execute(TAKE, one).rowcount]
    if len(taken) < len(wanted):
        for one in taken:
            connection.execute(GIVE, one)
        missing = next(one["item"] for one in wanted if one not in taken)
        publish(connection, StockMissing(order=order, reason=f"no {missing}"))
        return
    for one in taken:
        connection.execute(RESERVE, {"order": order, **one})
    publish(connection, StockReserved(order=order))


SERVICE = Service("inventory", tables=TABLES, handlers={OrderCreated: record_items, PaymentCompleted: record_payment})
