"""What the three services tell each other, and how.

Each event is about an order, and has the order's id as its key: events about one order stay in their order.
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
    """Something that has happened to an order."""

    topic: ClassVar[str]

    order: str
    occurred_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class OrderCreated(Event):
    """A customer wants something: how many of which items, for an amount."""

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
    """Everything that was ordered is set aside."""

    topic = "stock.reserved"


@dataclass(frozen=True, kw_only=True)
class StockMissing(Event):
    """Something that was paid for is not there; nothing is set aside."""

    topic = "stock.missing"

    reason: str


@dataclass(frozen=True, kw_only=True)
class PaymentRefunded(Event):
    """The customer has the money back."""

    topic = "payments.refunded"

    payment: str
    reason: str


outbox = Outbox()


def tell(connection: Connection, event: Event) -> None:
    """Record an event in the transaction of what it tells of: both are committed, or neither is."""
    outbox.add(connection, event.topic, event, key=event.order, type=type(event).__name__)
