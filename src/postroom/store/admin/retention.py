"""Retention: remove what is old and done, in small batches, and never what is not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.sql.operations import Operations

    Tell = Callable[[int], None]

BATCH = 1000


class _Kept(NamedTuple):
    """Rows of a table whose primary key has two columns, of which the first has few values; and which are to go."""

    table: str
    group: str
    name: str
    old: str
    params: dict[str, float]


class Retention:
    """Removes settled messages, old inbox marks, and entries of the idempotency ledger that have expired.

    Each batch starts behind the one before: what a batch removed, and what is to stay, is not read again.
    """

    def __init__(self, operations: Operations) -> None:
        self._o = operations

    def remove_settled(self, seconds: float, batch: int = BATCH, tell: Tell | None = None) -> Steps[int]:
        """Remove all messages that were settled longer ago, batch by batch; returns how many."""
        removed = 0
        after: int | None = 0
        while after is not None:
            positions = yield from self._o.transaction(self._remove_batch, float(seconds), batch, after)
            removed += len(positions)
            if tell:
                tell(len(positions))
            after = positions[-1] if len(positions) == batch else None
        return removed

    def remove_marks(self, seconds: float, batch: int = BATCH, tell: Tell | None = None) -> Steps[int]:
        """Remove all inbox marks that are older, batch by batch; returns how many."""
        old = f"received_at <= {self._o.dialect.later(':ago')}"
        marks = _Kept(self._o.tables["inbox"], "consumer", "message_id", old, {"ago": -float(seconds)})
        return (yield from self._remove_all(marks, batch, tell))

    def remove_expired(self, batch: int = BATCH, tell: Tell | None = None) -> Steps[int]:
        """Remove all entries of the ledger that have expired and that no run holds, batch by batch; returns how many.

        How long an entry is kept was decided when it was written.
        """
        old = f"expires_at <= {self._o.now} AND leased_until <= {self._o.now}"
        entries = _Kept(self._o.tables["idempotency"], "scope", "idempotency_key", old, {})
        return (yield from self._remove_all(entries, batch, tell))

    def _remove_all(self, kept: _Kept, batch: int, tell: Tell | None) -> Steps[int]:
        """Group by group, and in each batch by batch through the primary key."""
        removed = 0
        group = yield from self._first_group(kept, ">=", "")
        while group is not None:
            after: str | None = ""
            while after is not None:
                names = yield from self._o.transaction(self._remove, kept, batch, group, after)
                removed += len(names)
                if tell:
                    tell(len(names))
                after = names[-1] if len(names) == batch else None
            group = yield from self._first_group(kept, ">", group)
        return removed

    def _remove_batch(self, seconds: float, batch: int, after: int) -> Steps[list[int]]:
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

    def _first_group(self, kept: _Kept, where: str, value: str) -> Steps[str | None]:
        group = kept.group
        found = yield Query(
            f"SELECT {group} FROM {kept.table} WHERE {group} {where} :value ORDER BY {group} LIMIT 1", {"value": value}
        )
        return str(found.rows[0][0]) if found.rows else None

    def _remove(self, kept: _Kept, batch: int, group: str, after: str) -> Steps[list[str]]:
        found = yield Query(
            f"SELECT {kept.name} FROM {kept.table} WHERE {kept.group} = :group AND {kept.name} > :after "
            f"AND {kept.old} ORDER BY {kept.name} LIMIT :batch{self._o.dialect.skip_locked}",
            {"group": group, "after": after, "batch": batch, **kept.params},
        )
        names = [str(name) for [name] in found.rows]
        if names:
            places = ", ".join(f":name_{n}" for n in range(len(names)))
            yield Query(
                f"DELETE FROM {kept.table} WHERE {kept.group} = :group AND {kept.name} IN ({places})",
                {"group": group, **{f"name_{n}": name for n, name in enumerate(names)}},
            )
        return names
