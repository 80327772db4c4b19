"""Retention: remove what is old and done. What is not sent, or dead, stays however old it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.admin.retention import BATCH, Retention
from postroom.store.sql.operations import Operations
from postroom.telemetry.events import Cleaned

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

__all__ = ["Cleaned", "clean"]

DAY = 86_400.0


def clean(
    names: Names,
    *,
    days: float = 7,
    inbox_days: float = 7,
    batch: int = BATCH,
    tell: Callable[[int], None] | None = None,
) -> Steps[Cleaned]:
    """Remove messages settled more than `days` ago, inbox marks older than `inbox_days`, and expired ledger entries.

    In small batches, each a transaction of its own; `tell` hears how much went after each. Several may clean at once.
    A message's idempotency key can be used again when it is removed, and a mark that is gone no longer tells a
    repeated delivery from a first one: keep marks for longer than any redelivery takes.
    """
    retention = Retention(Operations(names))
    messages = yield from retention.remove_settled(days * DAY, batch, tell)
    marks = yield from retention.remove_marks(inbox_days * DAY, batch, tell)
    entries = yield from retention.remove_expired(batch, tell)
    return Cleaned(messages, marks, entries)
