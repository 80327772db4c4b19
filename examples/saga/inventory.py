"""Inventory: reserves goods for paid orders, and puts them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from examples.saga.service import Declined, Service

if TYPE_CHECKING:
    from sqlalchemy import Connection

TABLES = (
    "CREATE TABLE stock (item TEXT PRIMARY KEY, quantity INTEGER)",
    "CREATE TABLE reserved (order_id TEXT, item TEXT, quantity INTEGER)",
    "INSERT INTO stock VALUES ('kettle', 25), ('lamp', 12), ('chair', 5)",
)
TAKE = text("UPDATE stock SET quantity = quantity - :quantity WHERE item = :item AND quantity >= :quantity")
GIVE = text("UPDATE stock SET quantity = quantity + :quantity WHERE item = :item")
RESERVE = text("INSERT INTO reserved VALUES (:order, :item, :quantity)")
RELEASE = text("DELETE FROM reserved WHERE order_id = :order")


def reserve(connection: Connection, order: dict[str, Any]) -> dict[str, str]:
    """Reserve all items of an order, or none: what is declined is rolled back."""
    for item, quantity in sorted(order["items"].items()):
        row = {"order": order["order"], "item": item, "quantity": quantity}
        if not connection.execute(TAKE, row).rowcount:
            raise Declined("OUT_OF_STOCK", f"no {item}")
        connection.execute(RESERVE, row)
    return {}


def release(connection: Connection, order: dict[str, Any]) -> dict[str, str]:
    """Put the items of an order back."""
    connection.execute(RELEASE, order)
    for item, quantity in sorted(order["items"].items()):
        connection.execute(GIVE, {"item": item, "quantity": quantity})
    return {}


SERVICE = Service("inventory", tables=TABLES, actions={"reserve": reserve, "release": release})
