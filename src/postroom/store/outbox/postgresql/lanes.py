"""Lanes on PostgreSQL: taken, read and promoted in one statement each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Transition
from postroom.rules.routing import is_routed
from postroom.store.outbox.lanes import FREED, MOST_PROMOTED, Lanes
from postroom.store.outbox.leases import Ages, Cursors, Lane
from postroom.store.outbox.postgresql.given import held_lanes, lanes_given, numbers
from postroom.store.sql.operations import UNBOUNDED
from postroom.store.sql.states import becomes, before, ready
from postroom.store.stream.leadership import Leadership

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.sql.steps import Row, Steps


class PostgreSQLLanes(Lanes):
    def _take(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        sql = self.sql
        statement = f"""
            WITH free AS (
                SELECT lane, token FROM {sql.lane} WHERE queue = :queue AND leased_until <= {sql.now}
                ORDER BY lane LIMIT :limit FOR UPDATE SKIP LOCKED
            )
            UPDATE {sql.lane} l
            SET token = :token, owner = :worker, read_to = 0, leased_until = {sql.dialect.later(":seconds")}
            FROM free WHERE l.queue = :queue AND l.lane = free.lane
            RETURNING l.lane, free.token"""
        return (yield from sql.statement(statement, lease))

    def rest(self) -> Steps[bool]:
        return (yield from Leadership(self.sql.names).lanes_rest())

    def ages(self) -> Steps[Ages]:
        sql = self.sql
        if is_routed(sql.queue):
            return (yield from super().ages())
        # Not the snapshot's own upper end: transactions beyond it may be under way, and have positions.
        [[youngest, snapshot]] = yield from sql.statement(
            "SELECT pg_current_xact_id()::text::bigint, pg_current_snapshot()::text", {}
        )
        oldest, end, open_ = snapshot.split(":")
        return Ages(youngest, int(oldest), tuple(map(int, filter(None, open_.split(",")))), int(end))

    def _read(
        self,
        lanes: Sequence[Lane],
        limit: int,
        seconds: float,
        cursors: Cursors,
        in_flight: Sequence[int],
        most_bytes: int,
        renew: bool,  # noqa: FBT001 - as in `read`
        wait: bool,  # noqa: FBT001
    ) -> Steps[Sequence[Row]]:
        sql = self.sql
        # Without renewal no lane is locked: a read and a settlement of the same lane would wait for each other. But
        # something is written all the same: that commit flushes what producers committed asynchronously, so that
        # nothing is published that a crash of the database could undo.
        lock = "ORDER BY l.lane FOR NO KEY UPDATE OF l" if renew and wait else ""
        flushed = "written AS MATERIALIZED (SELECT pg_logical_emit_message(true, 'postroom', ''))"
        free = f"""free AS (
                SELECT l.lane FROM {sql.lane} l JOIN given ON l.lane = given.lane AND l.token = given.token
                WHERE l.queue = :queue AND l.leased_until > {sql.now} ORDER BY l.lane FOR NO KEY UPDATE OF l SKIP LOCKED
            ), """
        written = (
            f"""{"" if wait else free}renewed AS (
                UPDATE {sql.lane} l
                SET leased_until = {sql.dialect.later(":seconds")},
                    read_to = CASE WHEN l.read_to < 0 THEN l.read_to ELSE greatest(l.read_to, furthest.position) END
                FROM {"held" if wait else "free"} mine LEFT JOIN (
                    SELECT lane, max(position) AS position FROM next GROUP BY lane
                ) furthest USING (lane)
                WHERE l.queue = :queue AND l.lane = mine.lane
            ), {"written AS (SELECT 1)" if wait else flushed}"""
            if renew
            else flushed
        )
        statement = f"""
            WITH given AS (
                SELECT * FROM unnest(:lanes::text::smallint[], :tokens::text::bigint[], :after::text::bigint[],
                    :ahead::text::bigint[]) AS given (lane, token, after, ahead)
            ), held AS (
                SELECT l.lane, l.read_to < 0 AS freed, CASE
                    WHEN l.read_to < 0 AND greatest(given.after, given.ahead) > 0 THEN {UNBOUNDED}
                    WHEN given.ahead > given.after AND (
                        SELECT bool_and(NOT pg_visible_in_snapshot(one, pg_current_snapshot()))
                        FROM unnest(:while_open::text::xid8[]) AS one
                    ) THEN given.ahead ELSE given.after END AS after
                FROM {sql.lane} l JOIN given ON l.lane = given.lane AND l.token = given.token
                WHERE l.queue = :queue AND l.leased_until > {sql.now} {lock}
            ), ready AS (
                SELECT held.lane, d.position, d.attempts, d.claims, d.size,
                    sum(d.size) OVER (ORDER BY d.position) - d.size AS before
                FROM held CROSS JOIN LATERAL (
                    SELECT d.position, d.attempts, d.claims, {sql.size("d")} AS size FROM {sql.delivery} d
                    WHERE {ready("d")} AND d.queue = :queue AND d.lane = held.lane AND d.position > held.after
                      AND d.position NOT IN (SELECT unnest(:in_flight::text::bigint[]))
                      AND {self.selections.unblocked()}
                      {self.selections.before_unrouted("held.lane")}
                    ORDER BY d.position LIMIT :limit
                ) d
            ), next AS (
                SELECT * FROM ready WHERE before < :most_bytes
                UNION ALL SELECT lane, {FREED}, 0, 0, 0, 0 FROM held WHERE freed
            ), {written}
            SELECT d.position, d.lane, d.attempts, d.claims, d.size, coalesce(m.expires_at <= {sql.now}, false),
                {sql.columns}
            FROM next d CROSS JOIN written LEFT JOIN {sql.outbox} m ON m.position = d.position"""
        params = {
            "queue": sql.queue,
            "lanes": numbers([lane.number for lane in lanes]),
            "tokens": numbers([lane.token for lane in lanes]),
            "after": numbers([cursors.after.get(lane.number, 0) for lane in lanes]),
            "ahead": numbers([cursors.ahead.get(lane.number, 0) for lane in lanes]),
            "while_open": numbers(sorted(cursors.while_open)),
            "in_flight": numbers(in_flight),
            "most_bytes": most_bytes,
            "limit": limit,
            "seconds": seconds,
        }
        return (yield from sql.statement(statement, params))

    def _promote(self, lanes: Sequence[Lane], wait: bool) -> Steps[dict[int, int]]:  # noqa: FBT001 - as in `promote`
        sql = self.sql
        # Ordered, so that the due index is the plan whatever the statistics say: after an outage, when all was due,
        # the planner took the primary key and looked through everything scheduled, for 2 s.
        statement = f"""
            WITH held AS ({held_lanes(sql)}{"" if wait else " SKIP LOCKED"}), due AS (
                SELECT d.ctid FROM held CROSS JOIN LATERAL (
                    SELECT d.ctid FROM {sql.delivery} d
                    WHERE {before(Transition.COME_DUE, "d")} AND d.queue = :queue AND d.lane = held.lane
                      AND d.due <= {sql.now}
                    ORDER BY d.due, d.position LIMIT {MOST_PROMOTED}
                ) d
            ), ready AS (
                UPDATE {sql.delivery} d SET {becomes(Transition.COME_DUE)}
                WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM due))
                RETURNING d.lane, d.position
            )
            SELECT lane, min(position) FROM ready GROUP BY lane"""
        params = {"queue": sql.queue, **lanes_given([lane.lease for lane in lanes])}
        return dict((yield from sql.statement(statement, params)))
