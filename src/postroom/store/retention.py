"""Retention: remove what is old and done, in small batches, and never what is not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.dialect import whole_numbers
from postroom.store.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.operations import Operations

    Tell = Callable[[int], None]

BATCH = 1000


class Retention:
    """Removes settled messages and old inbox marks.

    Each batch starts behind the one before: what a batch removed, and what is to stay, is not read again.
    """

    def __init__(self, operations: Operations) -> None:
        self._o = operations
        self._inbox = operations.tables["inbox"]

    def remove_settled(self, seconds: float, batch: int = BATCH) -> Steps[int]:
        """Remove up to a batch of messages that were settled longer ago; returns how many. Zero means done."""
        return len((yield from self._o.transaction(self._remove_settled, float(seconds), batch, 0)))

    def remove_all_settled(self, seconds: float, batch: int = BATCH, tell: Tell | None = None) -> Steps[int]:
        """Remove all messages that were settled longer ago, batch by batch; returns how many."""
        removed = 0
        after: int | None = 0
        while after is not None:
            positions = yield from self._o.transaction(self._remove_settled, float(seconds), batch, after)
            removed += len(positions)
            if tell:
                tell(len(positions))
            after = positions[-1] if len(positions) == batch else None
        return removed

    def remove_marks(self, seconds: float, batch: int = BATCH, tell: Tell | None = None) -> Steps[int]:
        """Remove all inbox marks that are older, batch by batch; returns how many."""
        removed = 0
        consumer = yield from self._consumer_after("")
        while consumer is not None:
            after: str | None = ""
            while after is not None:
                ids = yield from self._o.transaction(self._remove_marks, float(seconds), batch, consumer, after)
                removed += len(ids)
                if tell:
                    tell(len(ids))
                after = ids[-1] if len(ids) == batch else None
            consumer = yield from self._consumer_after(consumer)
        return removed

    def _remove_settled(self, seconds: float, batch: int, after: int) -> Steps[list[int]]:
        o = self._o
        found = yield Query(
            f"SELECT position FROM {o.receipt} WHERE position > :after AND sent_at <= {o.dialect.later(':ago')} "
            f"ORDER BY position LIMIT :batch{o.dialect.skip_locked}",
            {"ago": -seconds, "batch": batch, "after": after},
        )
        removed = [position for [position] in found.rows]
        if removed:
            positions = whole_numbers(removed)
            yield Query(f"DELETE FROM {o.outbox} WHERE position IN ({positions})")
            yield Query(f"DELETE FROM {o.receipt} WHERE position IN ({positions})")
        return removed

    def _consumer_after(self, consumer: str) -> Steps[str | None]:
        found = yield Query(
            f"SELECT consumer FROM {self._inbox} WHERE consumer > :consumer ORDER BY consumer LIMIT 1",
            {"consumer": consumer},
        )
        return str(found.rows[0][0]) if found.rows else None

    def _remove_marks(self, seconds: float, batch: int, consumer: str, after: str) -> Steps[list[str]]:
        o = self._o
        found = yield Query(
            f"SELECT message_id FROM {self._inbox} WHERE consumer = :consumer AND message_id > :after "
            f"AND received_at <= {o.dialect.later(':ago')} ORDER BY message_id LIMIT :batch{o.dialect.skip_locked}",
            {"consumer": consumer, "after": after, "ago": -seconds, "batch": batch},
        )
        ids = [str(message_id) for [message_id] in found.rows]
        if ids:
            names = ", ".join(f":id_{n}" for n in range(len(ids)))
            yield Query(
                f"DELETE FROM {self._inbox} WHERE consumer = :consumer AND message_id IN ({names})",
                {"consumer": consumer, **{f"id_{n}": one for n, one in enumerate(ids)}},
            )
        return ids
