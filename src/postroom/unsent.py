"""Unsent messages: cancel those that are not to be sent any more. What is dead is among `dead_letters`.

Each function is an operation that a store runs, sync or async::

    store.run(unsent.cancel(store.names, Choice(topic="orders"), by="ada"))
    await store.run(unsent.count(store.names))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.ordering import Order
from postroom.store.admin.cancellation import Cancellation, Cancelled
from postroom.store.admin.dead_letters import ALL, Choice

if TYPE_CHECKING:
    from postroom.store.admin.dead_letters import Tell
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

__all__ = ["Cancelled", "Choice", "cancel", "count"]


def count(names: Names, choice: Choice = ALL) -> Steps[int]:
    """How many messages `cancel` would look at: pending and waiting ones, and those that are being sent."""
    return (yield from Cancellation(names).count(choice))


def cancel(
    names: Names, choice: Choice = ALL, by: str = "", tell: Tell | None = None, order: str = Order.HOLD
) -> Steps[Cancelled]:
    """Remove messages that were not sent yet, for good; those behind them on their keys go on in their order.

    What is dead, sent or expired is left alone; so is what a relay is `sending`. One with a key that a relay has read
    within the last second may go out all the same; the audit then has a conflict for it. A keyed request that waits
    for a message fails with `CANCELLED`. `older_than` counts from when it was added; `order` is that of the relays.
    """
    return (yield from Cancellation(names, Order(order)).cancel(choice, by, tell))
