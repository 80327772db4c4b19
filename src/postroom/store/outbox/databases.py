"""Which class speaks to which database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS, ClaimLimits
from postroom.rules.ordering import Order
from postroom.store.outbox.deliveries import Deliveries
from postroom.store.outbox.mysql import MySQLDeliveries
from postroom.store.outbox.postgresql import PostgreSQLDeliveries
from postroom.store.sql.operations import DEFAULT_QUEUE

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

_KINDS: dict[str, type[Deliveries]] = {
    "postgresql": PostgreSQLDeliveries,
    "mysql": MySQLDeliveries,
    "sqlite": Deliveries,
}


def deliveries(
    names: Names,
    queue: str = DEFAULT_QUEUE,
    order: Order = Order.HOLD,
    limits: ClaimLimits = DEFAULT_CLAIM_LIMITS,
) -> Deliveries:
    """The lease protocol of one queue in a database with these names."""
    return _KINDS[names.dialect](names, queue, order, limits)
