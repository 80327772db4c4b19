"""Orders: accepts orders, and directs the other services by a saga.

The relays of this service run it: ``postroom relay --app examples.saga.orders:place_order``.
"""

from __future__ import annotations

import atexit
import itertools
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import httpx
from sqlalchemy import text

from postroom import RetryPolicy, Saga
from postroom.saga import Refused, SagaContext

if TYPE_CHECKING:
    from sqlalchemy import Connection

TABLES = (
    "CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT, amount INTEGER, items TEXT, status TEXT, reason TEXT)",
    "CREATE TABLE withdrawn (order_id TEXT PRIMARY KEY)",
)
INSERT = text("INSERT INTO orders VALUES (:id, :customer, :amount, :items, 'placed', '')")
END = text("UPDATE orders SET status = :status, reason = :reason WHERE id = :id")
WITHDRAW = text("INSERT INTO withdrawn VALUES (:order)")
WITHDRAWN = text("SELECT 1 FROM withdrawn WHERE order_id = :order")

PATIENT = RetryPolicy.exponential(base=0.05, cap=1, max_attempts=10)
"""To make the example quick; a real service retries less often, and for longer."""


@dataclass(frozen=True)
class Order:
    """What a customer orders. It passes from step to step."""

    order: str
    customer: str
    amount: int
    items: dict[str, int]


http = httpx.Client()
atexit.register(http.close)
place_order = Saga("place_order", data=Order, deadline=300)


@place_order.step(retry=PATIENT)
def accept_order(saga: SagaContext[Order]) -> None:
    """Enter the order into our own books, in the transaction that also records this step."""
    check_address()
    order = saga.data
    items = ", ".join(f"{count} {item}" for item, count in order.items.items())
    row = {"id": order.order, "customer": order.customer, "amount": order.amount, "items": items}
    saga.connection.execute(INSERT, row)


@accept_order.compensation
def cancel_order(saga: SagaContext[Order]) -> None:
    """The last to be undone. The reason is that of the step that failed."""
    reason = saga.failure.text if saga.failure else ""
    saga.connection.execute(END, {"id": saga.data.order, "status": "cancelled", "reason": reason})


@place_order.call(retry=PATIENT, timeout=5)
def charge(saga: SagaContext[Order]) -> dict[str, str]:
    """Let payments charge the customer. No transaction is open while we wait for the answer."""
    return ask("payments", "charge", saga)


@charge.compensation(retry=PATIENT)
def refund(saga: SagaContext[Order]) -> None:
    """Give the money back. If the charge never happened, payments sees that by the headers, and does nothing."""
    ask("payments", "refund", saga)


@place_order.call(retry=PATIENT, timeout=5)
def reserve_stock(saga: SagaContext[Order]) -> dict[str, str]:
    """Let inventory reserve the goods of a paid order."""
    return ask("inventory", "reserve", saga)


@reserve_stock.compensation(retry=PATIENT)
def release_stock(saga: SagaContext[Order]) -> None:
    """Put the goods back."""
    ask("inventory", "release", saga)


@place_order.step
def complete_order(saga: SagaContext[Order]) -> None:
    """Paid and reserved. If the customer has withdrawn meanwhile, everything is undone."""
    if saga.connection.execute(WITHDRAWN, {"order": saga.data.order}).first():
        raise Refused("WITHDRAWN", "withdrawn")
    saga.connection.execute(END, {"id": saga.data.order, "status": "completed", "reason": ""})


def place(connection: Connection, order: Order, *, withdrawn: bool = False) -> None:
    """Take an order: the saga starts if the transaction commits. The same order again is the same saga."""
    place_order.start(connection, order, id=order.order)
    if withdrawn:
        connection.execute(WITHDRAW, {"order": order.order})


def ask(service: str, action: str, saga: SagaContext[Order]) -> dict[str, str]:
    """Call another service. The headers carry the key by which it recognises a repetition.

    An error of the network says nothing about whether the call has happened: it is retried, under the same key.
    """
    url = os.environ[f"{service.upper()}_URL"]
    answer = http.post(f"{url}/{action}", json=asdict(saga.data), headers=saga.headers)
    if answer.status_code == httpx.codes.CONFLICT:
        raise Refused(**answer.json())
    answer.raise_for_status()
    found: dict[str, str] = answer.json()
    return found


checks = itertools.count(1)
EVERY_SIXTH = 6


def check_address() -> None:
    """Somebody who is not always reachable. An exception rolls the step's transaction back, and it is retried."""
    if next(checks) % EVERY_SIXTH == 0:
        raise ConnectionError("the address check does not answer")
