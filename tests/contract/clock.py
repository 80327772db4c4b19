"""Time passes without waiting: every moment in the tables is moved into the past."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.connections.stores import BlockingStore
    from postroom.store.sql.dialect import Dialect

MOMENTS = {
    "delivery": ("due", "leased_until", "failed_at"),
    "lane": ("leased_until",),
    "outbox": ("created_at", "expires_at"),
    "receipt": ("sent_at",),
    "inbox": ("received_at",),
    "idempotency": ("leased_until", "created_at", "finished_at", "expires_at"),
    "audit": ("at",),
    "attempt": ("at",),
    "worker": ("seen_at",),
    "saga": ("deadline", "started", "ended"),
    "saga_step": ("started", "finished"),
    "saga_event": ("received_at",),
    "twophase": ("decided_at", "settled_at"),
}
_EARLIER = {
    "postgresql": "{moment} - make_interval(secs => :seconds::float8)",
    "mysql": "{moment} - INTERVAL :seconds SECOND",
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', {moment}, -:seconds || ' seconds')",
}


def advance(store: BlockingStore, seconds: float) -> None:
    """Let so many seconds of the database's clock pass: leases end, messages come due, expire and grow old."""
    operations = Operations(store.names)
    store.run(operations.transaction(_advance, operations, float(seconds)))


def _advance(operations: Operations, seconds: float) -> Steps[None]:
    for table, columns in MOMENTS.items():
        moved = ", ".join(f"{column} = {_earlier(operations.dialect, column)}" for column in columns)
        yield Query(f"UPDATE {operations.tables[table]} SET {moved}", {"seconds": seconds})


def _earlier(dialect: Dialect, moment: str) -> str:
    """The moment, so many seconds earlier. What is never, or NULL, stays so."""
    earlier = _EARLIER[dialect.name].format(moment=moment)
    return f"CASE WHEN {moment} <> {dialect.never} THEN {earlier} ELSE {moment} END"
