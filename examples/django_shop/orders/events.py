"""What the shop announces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.events import event

if TYPE_CHECKING:
    from orders.models import Order


@event("orders.created", key="order_id")
@dataclass
class OrderCreated:
    """An order was taken."""

    order_id: int
    cents: int

    @classmethod
    def of(cls, order: Order) -> OrderCreated:
        """The event of an order that was saved."""
        return cls(order.pk, order.cents)
