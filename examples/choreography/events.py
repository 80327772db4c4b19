"""The events that the services exchange.

Each event is about an order and has the order's id as its key, so events about one order stay in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from postroom import Outbox

if TYPE_CHECKING:
    from sqlalchemy import Connection

SUBJECTS = "orders.*,payments.*,stock.*"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to an order."""

    topic: ClassVar[str]

    order: str
    occurred_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class OrderCreated(Event):
    """A customer orders items for an amount."""

    topic = "orders.created"

    customer: str
    amount: int
    items: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class PaymentCompleted(Event):
    """The customer has paid."""

    topic = "payments.completed"

    payment: str


@dataclass(frozen=True, kw_only=True)
class PaymentFailed(Event):
    """The customer cannot pay; no money was taken."""

    topic = "payments.failed"

    reason: str


@dataclass(frozen=True, kw_only=True)
class StockReserved(Event):
    """Everything that was ordered is reserved."""

    topic = "stock.reserved"


@dataclass(frozen=True, kw_only=True)
class StockMissing(Event):
    """Something that was paid for is out of stock; nothing is reserved."""

    topic = "stock.missing"

    reason: str


@dataclass(frozen=True, kw_only=True)
class PaymentRefunded(Event):
    """The customer got the money back."""

    topic = "payments.refunded"

    payment: str
    reason: str


outbox = Outbox()


def publish(connection: Connection, event: Event) -> None:
    """Record an event in the transaction of the change that it reports: both commit, or neither does."""
    outbox.add(connection, event.topic, event, key=event.order, type=type(event).__name__)
