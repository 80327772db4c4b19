"""Which class speaks to which database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS, ClaimLimits
from postroom.store.deliveries import Deliveries
from postroom.store.leases import Order
from postroom.store.operations import DEFAULT_QUEUE
from postroom.store.postgresql import PostgreSQLDeliveries

if TYPE_CHECKING:
    from postroom.store.names import Names


def deliveries(
    names: Names,
    queue: str = DEFAULT_QUEUE,
    order: Order = Order.HOLD,
    limits: ClaimLimits = DEFAULT_CLAIM_LIMITS,
) -> Deliveries:
    """The lease protocol of one queue in a database with these names."""
    kind = PostgreSQLDeliveries if names.dialect == "postgresql" else Deliveries
    return kind(names, queue, order, limits)
