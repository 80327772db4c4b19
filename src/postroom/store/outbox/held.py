"""Which leases still hold. Portable writes of the lease protocol ask here first, and lock what they find."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import chunks
from postroom.store.sql.states import ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.leases import Claimed, Lane, Lease
    from postroom.store.sql.operations import Operations


class HeldLeases:
    """Leases of one queue, on deliveries without a key and on lanes."""

    def __init__(self, sql: Operations) -> None:
        self._sql = sql

    def of(self, claimed: Sequence[Claimed]) -> Steps[set[Lease]]:
        """Lock the lanes, then the rows; returns the leases that are still ours, a row's own or its lane's."""
        sql = self._sql
        lanes = yield from self.lanes(sorted({one.lane for one in claimed if one.ordered}))
        rows: dict[int, tuple[int, bool]] = {}
        for some in chunks(claimed):
            source, these = sql.only_deliveries(some)
            found = yield Query(
                f"SELECT d.position, d.token, d.leased_until > {sql.now} FROM {source} "
                f"WHERE {ready('d')} AND d.queue = :queue AND {these}{sql.dialect.for_update}",
                {"queue": sql.queue},
            )
            rows |= {position: (token, bool(live)) for position, token, live in found.rows}
        return {
            one.lease
            for one in claimed
            if one.position in rows
            and ((one.lane, one.token) in lanes if one.ordered else rows[one.position] == (one.token, True))
        }

    def lanes(self, numbers: Sequence[int], locking: str | None = None) -> Steps[dict[Lease, int]]:
        """Lock these lanes; returns the leases on them that have not ended, each with its `read_to`."""
        if not numbers:
            return {}
        sql = self._sql
        source, these = sql.dialect.only_lanes(sql.lane, numbers)
        locking = sql.dialect.for_update if locking is None else locking
        found = yield Query(
            f"SELECT l.lane, l.token, l.read_to FROM {source} WHERE l.queue = :queue AND {these} "
            f"AND l.leased_until > {sql.now} ORDER BY l.lane{locking}",
            {"queue": sql.queue},
        )
        return {(lane, token): read_to for lane, token, read_to in found.rows}

    def on_rows(self, claimed: Sequence[Claimed], locking: str = "") -> Steps[set[Lease]]:
        """Which leases on rows hold."""
        if not claimed:
            return set()
        sql = self._sql
        found = yield Query(
            f"SELECT position, token FROM {sql.delivery} WHERE {ready()} AND queue = :queue "
            f"AND {sql.places(claimed)} AND leased_until > {sql.now}{locking}",
            {"queue": sql.queue},
        )
        return {one.lease for one in claimed} & {(position, token) for position, token in found.rows}

    def on_lanes(self, lanes: Sequence[Lane], locking: str = "") -> Steps[set[Lease]]:
        """Which leases on lanes hold."""
        if not lanes:
            return set()
        sql = self._sql
        found = yield Query(
            f"SELECT lane, token FROM {sql.lane} WHERE queue = :queue "
            f"AND lane IN ({whole_numbers([lane.number for lane in lanes])}) AND leased_until > {sql.now}{locking}",
            {"queue": sql.queue},
        )
        return {lane.lease for lane in lanes} & {(number, token) for number, token in found.rows}
