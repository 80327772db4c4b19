"""Retention: remove what is old and done, in small batches, and never what is not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.dialect import whole_numbers
from postroom.store.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.store.operations import Operations

BATCH = 1000


class Retention:
    """Removes settled messages and old inbox marks."""

    def __init__(self, operations: Operations) -> None:
        self._o = operations

    def remove_settled(self, seconds: float, batch: int = BATCH) -> Steps[int]:
        """Remove up to a batch of messages that were settled longer ago; returns how many. Zero means done."""
        return (yield from self._o.transaction(self._remove_settled, float(seconds), batch))

    def remove_marks(self, seconds: float, batch: int = BATCH) -> Steps[int]:
        """Remove up to a batch of inbox marks that are older; returns how many. Zero means done."""
        return (yield from self._o.transaction(self._remove_marks, float(seconds), batch))

    def _remove_settled(self, seconds: float, batch: int) -> Steps[int]:
        o = self._o
        found = yield Query(
            f"SELECT position FROM {o.receipt} WHERE sent_at <= {o.dialect.later(':ago')} "
            f"ORDER BY position LIMIT :batch{o.dialect.skip_locked}",
            {"ago": -seconds, "batch": batch},
        )
        positions = whole_numbers([position for [position] in found.rows])
        if found.rows:
            yield Query(f"DELETE FROM {o.outbox} WHERE position IN ({positions})")
            yield Query(f"DELETE FROM {o.receipt} WHERE position IN ({positions})")
        return len(found.rows)

    def _remove_marks(self, seconds: float, batch: int) -> Steps[int]:
        o = self._o
        inbox = o.tables["inbox"]
        found = yield Query(
            f"SELECT consumer, message_id FROM {inbox} WHERE received_at <= {o.dialect.later(':ago')} "
            f"LIMIT :batch{o.dialect.skip_locked}",
            {"ago": -seconds, "batch": batch},
        )
        marks: dict[str, list[str]] = {}
        for consumer, message_id in found.rows:
            marks.setdefault(consumer, []).append(message_id)
        for consumer, ids in marks.items():
            params = {"consumer": consumer, **{f"id_{n}": one for n, one in enumerate(ids)}}
            names = ", ".join(f":id_{n}" for n in range(len(ids)))
            yield Query(f"DELETE FROM {inbox} WHERE consumer = :consumer AND message_id IN ({names})", params)
        return len(found.rows)
