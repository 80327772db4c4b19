"""Retention: remove what is old and done, in small batches. What is not sent, or dead, stays however old it is.

A saga counts from its end, and is removed whole: its message, its record and its events. A two-phase commit counts
from when it was settled, and stays until its deadline has passed as long: then no coordinator can decide it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.saga_plan import SagaOutcome
from postroom.rules.twophase_ids import transaction_id
from postroom.store.outbox.flow import Flow
from postroom.store.sql.dialect import listed, text, whole_numbers
from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps
from postroom.store.twophase.branches import WITNESS, WITNESS_KEPT
from postroom.telemetry.events import Cleaned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.admin.selection import Progress
    from postroom.store.sql.names import Names

BATCH = 1000
DAY = 86_400.0
FLOW_KEPT_MINUTES = 14 * 1440
"""For how long the counters of what went through are kept."""


def clean(
    names: Names, *, days: float = 7, inbox_days: float = 7, batch: int = BATCH, progress: Progress | None = None
) -> Steps[Cleaned]:
    """Remove what was settled more than `days` ago, inbox marks older than `inbox_days`, and expired ledger entries.

    In small batches, each a transaction of its own. Several may clean at once.
    """
    retention = Retention(names)
    messages = yield from retention.remove_settled(days * DAY, batch, progress)
    marks = yield from retention.remove_marks(inbox_days * DAY, batch, progress)
    entries = yield from retention.remove_expired(batch, progress)
    transactions = yield from retention.remove_transactions(days * DAY, batch, progress)
    yield from retention.remove_flow(FLOW_KEPT_MINUTES, batch)
    return Cleaned(messages, marks, entries, transactions)


class _Kept(NamedTuple):
    """Old rows of a table whose primary key has two columns, the first of which has few values."""

    table: str
    group: str
    name: str
    old: str
    params: dict[str, float]


class Retention(Operations):
    """Removes settled messages and two-phase commits, old inbox marks and expired entries of the idempotency ledger.

    Each batch starts behind the one before, so nothing is read twice.
    """

    def remove_settled(self, seconds: float, batch: int = BATCH, progress: Progress | None = None) -> Steps[int]:
        """Remove all messages settled longer ago than this, batch by batch; returns how many."""
        removed = 0
        after: int | None = 0
        while after is not None:
            positions = yield from self.transaction(self._remove_settled_batch, float(seconds), batch, after)
            removed += len(positions)
            if progress:
                progress(len(positions))
            after = positions[-1] if len(positions) == batch else None
        return removed

    def remove_marks(self, seconds: float, batch: int = BATCH, progress: Progress | None = None) -> Steps[int]:
        """Remove all inbox marks older than this, batch by batch; returns how many.

        Those that branches of two-phase commits left stay for 7 days at least: recovery looks for them.
        """
        later = self.dialect.later
        old = f"received_at <= {later(':ago')} AND (consumer <> '{WITNESS}' OR received_at <= {later(':witness')})"
        ages = {"ago": -float(seconds), "witness": -WITNESS_KEPT}
        marks = _Kept(self.tables["inbox"], "consumer", "message_id", old, ages)
        return (yield from self._remove_all(marks, batch, progress))

    def remove_expired(self, batch: int = BATCH, progress: Progress | None = None) -> Steps[int]:
        """Remove all ledger entries that have expired and that no run holds, batch by batch; returns how many.

        When an entry expires was decided when it was written.
        """
        old = f"expires_at <= {self.now} AND leased_until <= {self.now}"
        entries = _Kept(self.tables["idempotency"], "scope", "idempotency_key", old, {})
        return (yield from self._remove_all(entries, batch, progress))

    def remove_transactions(self, seconds: float, batch: int = BATCH, progress: Progress | None = None) -> Steps[int]:
        """Remove all two-phase commits settled longer ago than this, batch by batch; returns how many.

        What was aborted goes only as long after its deadline: before that, its coordinator could still decide to
        commit, if nothing in the log told it otherwise.
        """
        found = yield Query(f"SELECT {self.dialect.now_ms}")
        ended_ms = int(found.rows[0][0]) - int(seconds * 1000)
        removed = 0
        after: str | None = ""
        while after is not None:
            ids = yield from self.transaction(self._remove_transactions, float(seconds), ended_ms, batch, after)
            removed += len(ids)
            if progress and ids:
                progress(len(ids))
            after = ids[-1] if len(ids) == batch else None
        return removed

    def remove_flow(self, minutes: int, batch: int = BATCH) -> Steps[None]:
        """Remove counters that are older than this many minutes, a few minutes at a time."""
        table = self.tables["flow"]
        until = (yield from Flow(self.names).minute()) - minutes
        while True:
            found = yield Query(
                f"SELECT minute FROM {table} WHERE minute < :until ORDER BY minute LIMIT :batch",
                {"until": until, "batch": batch},
            )
            if not found.rows:
                return
            last = int(found.rows[-1][0])
            yield from self.statement(f"DELETE FROM {table} WHERE minute <= :last", {"last": last})

    def _remove_all(self, kept: _Kept, batch: int, progress: Progress | None) -> Steps[int]:
        """Group by group, each in batches along the primary key."""
        removed = 0
        group = yield from self._first_group(kept, ">=", "")
        while group is not None:
            after: str | None = ""
            while after is not None:
                names = yield from self.transaction(self._remove, kept, batch, group, after)
                removed += len(names)
                if progress:
                    progress(len(names))
                after = names[-1] if len(names) == batch else None
            group = yield from self._first_group(kept, ">", group)
        return removed

    def _remove_settled_batch(self, seconds: float, batch: int, after: int) -> Steps[list[int]]:
        found = yield Query(
            f"SELECT position FROM {self.receipt} WHERE position > :after AND sent_at <= {self.dialect.later(':ago')} "
            f"ORDER BY position LIMIT :batch{self.dialect.skip_locked}",
            {"ago": -seconds, "batch": batch, "after": after},
        )
        settled = [position for [position] in found.rows]
        if settled:
            positions = whole_numbers(sorted({*settled} - (yield from self._remove_sagas(settled))))
            for table in (self.tables["attempt"], self.outbox, self.receipt):
                yield Query(f"DELETE FROM {table} WHERE position IN ({positions})")
        return settled

    def _remove_sagas(self, positions: Sequence[int]) -> Steps[set[int]]:
        """Remove all of the sagas that ended; returns those that are open, which stay whole whatever a receipt says."""
        found = yield Query(
            f"SELECT position, outcome FROM {self.tables['saga']} WHERE position IN ({whole_numbers(positions)})"
        )
        sagas = {position: SagaOutcome(outcome) for position, outcome in found.rows}
        ended = whole_numbers([position for position, outcome in sagas.items() if outcome is not SagaOutcome.OPEN])
        if sagas:
            for table in ("saga_event", "saga_step", "saga"):
                yield Query(f"DELETE FROM {self.tables[table]} WHERE position IN ({ended})")
        return {position for position, outcome in sagas.items() if outcome is SagaOutcome.OPEN}

    def _remove_transactions(self, seconds: float, ended_ms: int, batch: int, after: str) -> Steps[list[str]]:
        log = self.tables["twophase"]
        found = yield Query(
            f"SELECT id FROM {log} WHERE id > :after AND id < :until AND deadline_ms <= :ended "
            f"AND settled_at <= {self.dialect.later(':ago')} ORDER BY id LIMIT :batch{self.dialect.skip_locked}",
            # Ids begin with the deadline: newer ones need not be read.
            {
                "after": after,
                "until": transaction_id(max(0, ended_ms) + 1, "0" * 12),
                "ended": ended_ms,
                "ago": -seconds,
                "batch": batch,
            },
        )
        ids = [text(id_) for [id_] in found.rows]
        if ids:
            params = {f"id_{n}": id_ for n, id_ in enumerate(ids)}
            yield Query(f"DELETE FROM {log} WHERE id IN ({listed(f':{name}' for name in params)})", params)
        return ids

    def _first_group(self, kept: _Kept, where: str, value: str) -> Steps[str | None]:
        group = kept.group
        found = yield Query(
            f"SELECT {group} FROM {kept.table} WHERE {group} {where} :value ORDER BY {group} LIMIT 1", {"value": value}
        )
        return str(found.rows[0][0]) if found.rows else None

    def _remove(self, kept: _Kept, batch: int, group: str, after: str) -> Steps[list[str]]:
        found = yield Query(
            f"SELECT {kept.name} FROM {kept.table} WHERE {kept.group} = :group AND {kept.name} > :after "
            f"AND {kept.old} ORDER BY {kept.name} LIMIT :batch{self.dialect.skip_locked}",
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
