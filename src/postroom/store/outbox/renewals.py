"""Renewals: the heartbeat of leases on messages without a key and on lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.outbox.leases import Renewal
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.states import ready
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.held import HeldLeases
    from postroom.store.outbox.leases import Claimed, Lane, Lease
    from postroom.store.sql.operations import Operations


class Renewals:
    """Select for update, skipping what is locked, then update: one short transaction. PostgreSQL: one statement."""

    def __init__(self, sql: Operations, held: HeldLeases) -> None:
        self.sql = sql
        self._held = held

    def renew(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float, lane_seconds: float | None = None
    ) -> Steps[Renewal]:
        """Extend leases of messages without a key and of lanes; tells which were extended and which are lost.

        A row that somebody works on is passed over, so that it cannot block the heartbeat: it is neither. What this
        worker settled itself in the meantime is told as lost: the caller knows.
        """
        renewed, renewed_lanes = yield from self._renew(claimed, lanes, float(seconds), float(lane_seconds or seconds))
        missing = [one for one in claimed if one.lease not in renewed]
        missing_lanes = [lane for lane in lanes if lane.lease not in renewed_lanes]
        still = yield from self._held.on_rows(missing)
        still_lanes = yield from self._held.on_lanes(missing_lanes)
        return Renewal(
            renewed,
            renewed_lanes,
            [one for one in missing if one.lease not in still],
            [lane for lane in missing_lanes if lane.lease not in still_lanes],
        )

    def _renew(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float, lane_seconds: float
    ) -> Steps[tuple[set[Lease], set[Lease]]]:
        """Extend what can be extended without waiting; returns those leases, of messages and of lanes."""
        return (yield from self.sql.transaction(self._lock_and_renew, claimed, lanes, seconds, lane_seconds))

    def _lock_and_renew(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float, lane_seconds: float
    ) -> Steps[tuple[set[Lease], set[Lease]]]:
        sql = self.sql
        params = {"queue": sql.queue, "seconds": seconds, "lane_seconds": lane_seconds}
        held = yield from self._held.on_rows(claimed, sql.dialect.skip_locked)
        if held:
            mine = [one for one in claimed if one.lease in held]
            yield Query(
                f"UPDATE {sql.delivery_by_key} SET leased_until = {sql.dialect.later(':seconds')} "
                f"WHERE {ready()} AND queue = :queue AND {sql.places(mine)}",
                params,
            )
        held_lanes = yield from self._held.on_lanes(lanes, sql.dialect.skip_locked)
        if held_lanes:
            numbers = whole_numbers(sorted(number for number, _ in held_lanes))
            yield Query(
                f"UPDATE {sql.lane} SET leased_until = {sql.dialect.later(':lane_seconds')} "
                f"WHERE queue = :queue AND lane IN ({numbers})",
                params,
            )
        return held, held_lanes
