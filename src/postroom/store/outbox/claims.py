"""Claims of messages without a key: a lease for each, oldest first, skipping what others hold."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.ordering import NO_LANE
from postroom.store.outbox.leases import Claim, Claimed, new_token
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import UNBOUNDED, Operations, fitting_in
from postroom.store.sql.states import becomes, in_state, ready
from postroom.store.sql.steps import Query, Row, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.screening import Screening
    from postroom.store.outbox.selections import Selections


class RowClaims:
    """Select for update, skipping what is locked, then update: one short transaction. PostgreSQL: one statement."""

    def __init__(self, sql: Operations, selections: Selections, screening: Screening) -> None:
        self.sql = sql
        self.selections = selections
        self._screening = screening

    def claim(
        self,
        worker: str,
        limit: int,
        seconds: float,
        *,
        token: int | None = None,
        after: int = 0,
        due: bool = True,
        most_bytes: int = UNBOUNDED,
    ) -> Steps[Claim]:
        """Lease messages without a key, oldest first, skipping those that others hold.

        Committed when it returns. What is past its expiry, has no message or was claimed too often is settled here
        and not handed out. `after` starts the scan behind a position; `due` includes scheduled and failed ones. Takes
        as many of each kind as fit into `most_bytes`, and the one that exceeds it.
        """
        token = token or new_token()
        lease = {
            "queue": self.sql.queue,
            "worker": worker,
            "seconds": float(seconds),
            "token": token,
            "most_bytes": most_bytes,
        }
        rows: list[Row] = []
        if due:
            rows += yield from self._lease_due({**lease, "limit": limit})
        if len(rows) < limit:
            rows += yield from self._lease_ready({**lease, "limit": limit - len(rows), "after": after})
        rows.sort(key=itemgetter(0))
        claimed = [
            Claimed(row[0], row[1], token, row[2], row[3], message, row[4])
            for row, message in zip(rows, self.sql.reader.messages(rows), strict=True)
        ]
        return (yield from self._screening.screen(claimed, {row[0] for row in rows if row[5]}))

    def _lease_ready(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        """Lease ready rows; returns position, lane, attempts, claims, size, expired and the message columns of each."""
        sql = self.sql
        first = (
            f"SELECT state, lane, position, {sql.size('d')} FROM {sql.delivery} d "
            f"WHERE {ready()} AND queue = :queue AND lane = {NO_LANE} AND position > :after "
            f"AND leased_until <= {sql.now} ORDER BY position LIMIT :limit{sql.dialect.skip_locked}"
        )
        return (yield from sql.transaction(self._lease, first, lease))

    def _lease_due(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        return (yield from self.sql.transaction(self._lease, self.selections.due_in([NO_LANE]), lease))

    def _lease(self, which: str, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        sql = self.sql
        found = yield Query(which, lease)
        states: dict[int, list[int]] = {}
        fitting = list(fitting_in(found.rows, 3, int(str(lease["most_bytes"]))))
        for state, _, position, _ in fitting:
            states.setdefault(state, []).append(position)
        for state, positions in states.items():
            yield Query(
                f"UPDATE {sql.delivery_by_key} SET {becomes(Transition.CLAIM)}, token = :token, owner = :worker, "
                f"claims = claims + 1, leased_until = {sql.dialect.later(':seconds')} "
                f"WHERE {in_state(Stored(state))} AND queue = :queue AND lane = {NO_LANE} "
                f"AND position IN ({whole_numbers(positions)})",
                lease,
            )
        return (yield from self._rows([position for _, _, position, _ in fitting]))

    def _rows(self, positions: Sequence[int]) -> Steps[Sequence[Row]]:
        sql = self.sql
        if not positions:
            return []
        result = yield Query(
            f"SELECT d.position, d.lane, {sql.tries()}, {sql.size('d', 'm')}, "
            f"coalesce(m.expires_at <= {sql.now}, 0), {sql.columns} "
            f"FROM {sql.delivery} d LEFT JOIN {sql.outbox} m ON m.position = d.position "
            f"WHERE {ready('d')} AND d.queue = :queue AND d.lane = {NO_LANE} "
            f"AND d.position IN ({whole_numbers(positions)})",
            {"queue": sql.queue},
        )
        return result.rows
