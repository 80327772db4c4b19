"""Renewals on PostgreSQL: messages and lanes in one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.outbox.postgresql.given import (
    deliveries_given,
    found_deliveries,
    given_deliveries,
    held_lanes,
    lanes_given,
)
from postroom.store.outbox.renewals import Renewals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.outbox.leases import Claimed, Lane, Lease
    from postroom.store.sql.steps import Steps


_FREE = " FOR UPDATE SKIP LOCKED"


class PostgreSQLRenewals(Renewals):
    def _renew(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float, lane_seconds: float
    ) -> Steps[tuple[set[Lease], set[Lease]]]:
        sql = self.sql
        statement = f"""
            WITH {given_deliveries()}, mine AS (
                {found_deliveries(sql, f"d.token = given.token AND d.leased_until > {sql.now}", _FREE)}
            ), renewed AS (
                UPDATE {sql.delivery} d SET leased_until = {sql.dialect.later(":seconds")}
                WHERE d.ctid = ANY (ARRAY(SELECT place FROM mine))
                RETURNING d.position, d.token
            ), free AS ({held_lanes(sql)} SKIP LOCKED), renewed_lanes AS (
                UPDATE {sql.lane} l SET leased_until = {sql.dialect.later(":lane_seconds")} FROM free
                WHERE l.queue = :queue AND l.lane = free.lane
                RETURNING l.lane, l.token
            )
            SELECT false, position, token FROM renewed UNION ALL SELECT true, lane, token FROM renewed_lanes"""
        rows = yield from sql.statement(
            statement,
            {
                "queue": sql.queue,
                "seconds": seconds,
                "lane_seconds": lane_seconds,
                **deliveries_given(claimed),
                **lanes_given([lane.lease for lane in lanes]),
            },
        )
        leases: tuple[set[Lease], set[Lease]] = set(), set()
        for is_lane, where, token in rows:
            leases[is_lane].add((where, token))
        return leases
