"""Recovery as deliveries: a message for each two-phase commit that needs it, so that the engine retries each alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from postroom.message import Message
from postroom.rules.naming import TWOPHASE_QUEUE, TWOPHASE_RECOVER, twophase_key
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.dialect import listed, text
from postroom.store.sql.operations import Operations, chunks
from postroom.store.sql.states import unsettled
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from postroom.store.sql.names import Names

PERIOD = 60.0
"""Seconds in which a transaction gets one message, however many scan at once."""


class RecoveryQueue(Operations):
    """Adds two-phase commits to the queue of those to recover. Its messages have no key: they do not wait in line."""

    def __init__(self, names: Names, *, notify: bool = False, period: float = PERIOD) -> None:
        """`notify`: wake listening relays, where the database can."""
        super().__init__(names, TWOPHASE_QUEUE)
        self._writer = WRITERS[names.dialect](names, TWOPHASE_QUEUE, notify=notify)
        self._period_ms = period * 1000

    def add(self, txs: Collection[str]) -> Steps[int]:
        """Add a message for each transaction that has no delivery; returns how many were added.

        A delivery that was given up, and is dead, counts: an operator may requeue it. What was delivered in this period
        is not added again before the next one.
        """
        added = 0
        for chunk in chunks(sorted(set(txs))):
            added += yield from self.transaction(self._add, chunk)
        return added

    def _add(self, txs: Sequence[str]) -> Steps[int]:
        waiting = yield from self._waiting(txs)
        found = yield Query(f"SELECT {self.dialect.now_ms}")
        period = int(int(found.rows[0][0]) // self._period_ms)
        recorded = yield from self._writer.add([_message(tx, period) for tx in txs if tx not in waiting])
        return sum(not message.duplicate for message in recorded)

    def _waiting(self, txs: Sequence[str]) -> Steps[set[str]]:
        """Those of the transactions that have a delivery."""
        params = {f"id_{n}": tx for n, tx in enumerate(txs)}
        deliveries = open_deliveries(self, "")
        found = yield Query(
            f"SELECT tx FROM ({deliveries}) waiting WHERE tx IN ({listed(f':{name}' for name in params)})",
            {"queue": self.queue, **params},
        )
        return {text(tx) for [tx] in found.rows}


def open_deliveries(operations: Operations, columns: str) -> str:
    """A SELECT of the transactions, as `tx`, that have a delivery in this queue, with more columns of delivery `d`.

    It starts at deliveries, which are few: messages have no index of their aggregates, and in a join PostgreSQL may
    prefer to read all of them.
    """
    message = f"SELECT m.aggregate_id FROM {operations.outbox} m WHERE m.position = d.position"
    return f"SELECT ({message}) AS tx{columns} FROM {operations.delivery} d WHERE {unsettled('d')} AND d.queue = :queue"


def transaction_of(message: Message) -> str:
    """The id of the transaction that a message of this queue is about; empty if somebody else wrote it."""
    return (message.aggregate_id or "") if message.type == TWOPHASE_RECOVER else ""


def _message(tx: str, period: int) -> Message:
    message = Message.new(TWOPHASE_QUEUE, type=TWOPHASE_RECOVER, aggregate_id=tx)
    return msgspec.structs.replace(message, idempotency_key=twophase_key(tx, period))
