"""Claims of messages without a key: a lease for each, oldest first, skipping what others hold."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.ordering import NO_LANE
from postroom.store.outbox.leases import Claim, Claimed, new_token
from postroom.store.sql.operations import UNBOUNDED, Operations, fitting_in
from postroom.store.sql.rows import MESSAGE_COLUMNS
from postroom.store.sql.states import becomes, in_state, ready, written_by
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
            f"SELECT state, lane, position, {sql.size('d')}, {sql.tries()} FROM {sql.delivery} d "
            f"WHERE {ready()} AND queue = :queue AND lane = {NO_LANE} AND position > :after "
            f"AND leased_until <= {sql.now} ORDER BY position LIMIT :limit{sql.dialect.skip_locked}"
        )
        return (yield from sql.transaction(self._lease, first, lease))

    def _lease_due(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        return (yield from self.sql.transaction(self._lease, self.selections.due_in([NO_LANE]), lease))

    def _lease(self, which: str, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        found = yield Query(which, lease)
        states: dict[int, list[int]] = {}
        fitting = list(fitting_in(found.rows, 3, int(str(lease["most_bytes"]))))
        for row in fitting:
            states.setdefault(row[0], []).append(row[2])
        for state, positions in states.items():
            yield from self._write_leases(Stored(state), sorted(positions), lease)
        messages = yield from self._messages(sorted([row[2] for row in fitting]))
        return [
            (position, lane, attempts, claims + 1, size, *messages.get(position, self._no_message))
            for _, lane, position, size, attempts, claims in fitting
        ]

    def _write_leases(self, state: Stored, positions: Sequence[int], lease: dict[str, object]) -> Steps[None]:
        sql = self.sql
        # To assign a column of the primary key makes databases write the rows in a second pass, even if it stays.
        change = "" if state is written_by(Transition.CLAIM) else f"{becomes(Transition.CLAIM)}, "
        for part in sql.parts_at(positions):
            yield Query(
                f"UPDATE {sql.delivery_by_key} SET {change}token = :token, owner = :worker, "
                f"claims = claims + 1, leased_until = {sql.dialect.later(':seconds')} "
                f"WHERE {in_state(state)} AND queue = :queue AND lane = {NO_LANE} AND {part.condition}",
                {**lease, **part.params},
            )

    def _messages(self, positions: Sequence[int]) -> Steps[dict[int, Row]]:
        """Whether each has expired, and its columns, by position."""
        sql = self.sql
        found: dict[int, Row] = {}
        for part in sql.parts_at(positions):
            result = yield Query(
                f"SELECT position, coalesce(expires_at <= {sql.now}, 0), {sql.columns} "
                f"FROM {sql.outbox} m WHERE {part.condition}",
                part.params,
            )
            found.update((row[0], row[1:]) for row in result.rows)
        return found

    _no_message: Row = (0, *(None for _ in MESSAGE_COLUMNS))
