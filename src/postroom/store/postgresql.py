"""The lease protocol's hot parts on PostgreSQL: each one statement, one round trip, one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.ordering import NO_LANE
from postroom.store.deliveries import Deliveries
from postroom.store.lanes import MOST_PROMOTED
from postroom.store.leases import Claimed, Failure, GivenBack, Lane, Lease, Receipt, Settlement
from postroom.store.operations import columns
from postroom.store.settling import failure_fields, receipt_fields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.store.steps import Row, Steps


_IS_GIVEN = "d.state = given.state AND d.queue = given.queue AND d.lane = given.lane AND d.position = given.position"


class PostgreSQLDeliveries(Deliveries):
    """Rows are locked in the order of their positions, so that workers cannot deadlock."""

    def _lease_ready(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        return (
            yield from self.statement(self._lease_statement("d.state = 0 AND d.position > :after", "d.position"), lease)
        )

    def _lease_due(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        due = f"d.state IN (1, 2) AND d.due <= {self.now}"
        return (yield from self.statement(self._lease_statement(due, "d.due, d.position"), lease))

    def _lease_statement(self, which: str, order: str) -> str:
        return f"""
            WITH free AS (
                SELECT d.ctid, d.position, d.size FROM {self.delivery} d
                WHERE {which} AND d.queue = :queue AND d.lane = {NO_LANE} AND d.leased_until <= {self.now}
                ORDER BY {order} LIMIT :limit FOR UPDATE SKIP LOCKED
            ), fitting AS (
                SELECT ctid FROM (
                    SELECT ctid, sum(size) OVER (ORDER BY position) - size AS before FROM free
                ) sized WHERE before < :most_bytes
            ), leased AS (
                UPDATE {self.delivery} d
                SET state = 0, token = :token, owner = :worker, claims = d.claims + 1,
                    leased_until = {self.dialect.later(":seconds")}
                WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM fitting))
                RETURNING d.position, d.lane, d.attempts, d.claims
            )
            SELECT d.position, d.lane, d.attempts, d.claims, coalesce(m.expires_at <= {self.now}, false), {columns("m")}
            FROM leased d LEFT JOIN {self.outbox} m ON m.position = d.position"""

    def _take_lanes(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        statement = f"""
            WITH free AS (
                SELECT lane, token FROM {self.lane} WHERE queue = :queue AND leased_until <= {self.now}
                ORDER BY lane LIMIT :limit FOR UPDATE SKIP LOCKED
            )
            UPDATE {self.lane} l
            SET token = :token, owner = :worker, read_to = 0, leased_until = {self.dialect.later(":seconds")}
            FROM free WHERE l.queue = :queue AND l.lane = free.lane
            RETURNING l.lane, free.token"""
        return (yield from self.statement(statement, lease))

    def _read_lanes(
        self,
        lanes: Sequence[Lane],
        limit: int,
        seconds: float,
        after: Mapping[int, int],
        in_flight: Sequence[int],
        most_bytes: int,
    ) -> Steps[Sequence[Row]]:
        # The lanes' rows are written too: that commit flushes what producers committed asynchronously, so that
        # nothing is published that a crash of the database could undo.
        statement = f"""
            WITH given AS (
                SELECT * FROM unnest(:lanes::smallint[], :tokens::bigint[], :after::bigint[])
                    AS given (lane, token, after)
            ), held AS (
                SELECT l.lane, given.after
                FROM {self.lane} l JOIN given ON l.lane = given.lane AND l.token = given.token
                WHERE l.queue = :queue AND l.leased_until > {self.now}
                ORDER BY l.lane FOR NO KEY UPDATE OF l
            ), ready AS (
                SELECT held.lane, d.position, d.attempts, d.claims,
                    sum(d.size) OVER (ORDER BY d.position) - d.size AS before
                FROM held CROSS JOIN LATERAL (
                    SELECT d.position, d.attempts, d.claims, d.size FROM {self.delivery} d
                    WHERE d.state = 0 AND d.queue = :queue AND d.lane = held.lane AND d.position > held.after
                      AND d.position <> ALL (:in_flight::bigint[]) AND {self._unblocked()}
                    ORDER BY d.position LIMIT :limit
                ) d
            ), next AS (
                SELECT * FROM ready WHERE before < :most_bytes
            ), renewed AS (
                UPDATE {self.lane} l
                SET leased_until = {self.dialect.later(":seconds")}, read_to = greatest(l.read_to, furthest.position)
                FROM held LEFT JOIN (
                    SELECT lane, max(position) AS position FROM next GROUP BY lane
                ) furthest USING (lane)
                WHERE l.queue = :queue AND l.lane = held.lane
            )
            SELECT d.position, d.lane, d.attempts, d.claims, coalesce(m.expires_at <= {self.now}, false), {columns("m")}
            FROM next d LEFT JOIN {self.outbox} m ON m.position = d.position"""
        params = {
            "queue": self.queue,
            "lanes": [lane.number for lane in lanes],
            "tokens": [lane.token for lane in lanes],
            "after": [after.get(lane.number, 0) for lane in lanes],
            "in_flight": in_flight,
            "most_bytes": most_bytes,
            "limit": limit,
            "seconds": seconds,
        }
        return (yield from self.statement(statement, params))

    def _unblocked(self) -> str:
        # OFFSET and ORDER BY keep it a probe of the key index for each message. As a join, with statistics that are
        # missing or old, the planner compares each message with all that failed: 46 s where 20,000 had.
        return (
            f"NOT EXISTS (SELECT 1 FROM {self.delivery} b WHERE b.queue = :queue AND b.key_hash = d.key_hash "
            f"AND b.position < d.position AND b.state {self.blocking} ORDER BY b.position OFFSET 0)"
        )

    def _promote(self, lanes: Sequence[Lane]) -> Steps[dict[int, int]]:
        # Ordered, so that the due index is the plan whatever the statistics say: after an outage, when all was due,
        # the planner took the primary key and looked through everything scheduled, for 2 s.
        statement = f"""
            WITH held AS ({self._held_lanes()}), due AS (
                SELECT d.ctid FROM held CROSS JOIN LATERAL (
                    SELECT d.ctid FROM {self.delivery} d
                    WHERE d.state IN (1, 2) AND d.queue = :queue AND d.lane = held.lane AND d.due <= {self.now}
                    ORDER BY d.due, d.position LIMIT {MOST_PROMOTED}
                ) d
            ), ready AS (
                UPDATE {self.delivery} d SET state = 0 WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM due))
                RETURNING d.lane, d.position
            )
            SELECT lane, min(position) FROM ready GROUP BY lane"""
        params = {
            "queue": self.queue,
            "lanes": [lane.number for lane in lanes],
            "lane_tokens": [lane.token for lane in lanes],
        }
        return dict((yield from self.statement(statement, params)))

    def _settle(self, settlements: Sequence[Settlement]) -> Steps[set[Lease]]:
        settled: set[Lease] = set()
        receipts = [one for one in settlements if isinstance(one, Receipt)]
        failures = [one for one in settlements if isinstance(one, Failure)]
        given_back = [one.claimed for one in settlements if isinstance(one, GivenBack)]
        if receipts:
            settled |= yield from self._settle_receipts(receipts)
        if failures:
            settled |= yield from self._settle_failures(failures)
        if given_back:
            settled |= yield from self._settle_given_back(given_back)
        return settled

    def _settle_receipts(self, receipts: Sequence[Receipt]) -> Steps[set[Lease]]:
        types = {"outcome": "text", "answer": "text", "dedup": "bigint"}
        statement = f"""
            WITH {self._given(**types)}, held AS ({self._held_lanes()}), gone AS (
                DELETE FROM {self.delivery} d USING given WHERE {self._mine()}
                RETURNING d.position, d.attempts, given.token, given.outcome, given.answer, given.dedup
            ), receipts AS (
                INSERT INTO {self.receipt} (position, attempts, outcome, answer, dedup)
                SELECT position, attempts, outcome, answer, dedup FROM gone
                {self.dialect.replace_receipt}
            )
            SELECT position, token FROM gone"""
        fields = zip(*map(receipt_fields, receipts), strict=True)
        params = dict(zip(types, map(list, fields), strict=True))
        return (yield from self._settled(statement, [one.claimed for one in receipts], params))

    def _settle_failures(self, failures: Sequence[Failure]) -> Steps[set[Lease]]:
        types = {"becomes": "smallint", "delay": "float8", "attempts": "integer", "code": "text", "message": "text"}
        statement = f"""
            WITH {self._given(**types)}, held AS ({self._held_lanes()})
            UPDATE {self.delivery} d
            SET state = given.becomes, due = {self.dialect.later("given.delay")},
                attempts = d.attempts + given.attempts,
                claims = 0, failed_at = {self.now}, error_code = given.code, error_message = given.message,
                token = 0, owner = '', leased_until = {self.dialect.never}
            FROM given WHERE {self._mine()}
            RETURNING d.position, given.token"""
        fields = zip(*map(failure_fields, failures), strict=True)
        params = dict(zip(types, map(list, fields), strict=True))
        return (yield from self._settled(statement, [one.claimed for one in failures], params))

    def _settle_given_back(self, claimed: Sequence[Claimed]) -> Steps[set[Lease]]:
        statement = f"""
            WITH {self._given()}, held AS ({self._held_lanes()})
            UPDATE {self.delivery} d
            SET token = 0, owner = '', leased_until = {self.dialect.never},
                claims = CASE WHEN d.lane = {NO_LANE} THEN d.claims - 1 ELSE d.claims END
            FROM given WHERE {self._mine()}
            RETURNING d.position, given.token"""
        return (yield from self._settled(statement, claimed, {}))

    def _settled(self, statement: str, claimed: Sequence[Claimed], params: Mapping[str, Any]) -> Steps[set[Lease]]:
        lanes = sorted({(one.lane, one.token) for one in claimed if one.ordered})
        rows = yield from self.statement(
            statement,
            {
                "queue": self.queue,
                "position": [one.position for one in claimed],
                "lane": [one.lane for one in claimed],
                "token": [one.token for one in claimed],
                "lanes": [lane for lane, _ in lanes],
                "lane_tokens": [token for _, token in lanes],
                **params,
            },
        )
        return {(position, token) for position, token in rows}

    def _given(self, **extra: str) -> str:
        """What is claimed, as a table.

        State and queue are columns of it and not constants, and it is materialised, so that the planner cannot take
        all ready deliveries first and look for each among the given ones.
        """
        types = {"position": "bigint", "lane": "smallint", "token": "bigint", **extra}
        arrays = ", ".join(f":{name}::{kind}[]" for name, kind in types.items())
        return f"""given AS MATERIALIZED (
            SELECT 0::smallint AS state, :queue::text COLLATE "C" AS queue, given.*
            FROM unnest({arrays}) AS given ({", ".join(types)})
        )"""

    def _held_lanes(self) -> str:
        return f"""
            SELECT l.lane, l.token FROM {self.lane} l
            JOIN unnest(:lanes::smallint[], :lane_tokens::bigint[]) AS wanted (lane, token)
                ON l.lane = wanted.lane AND l.token = wanted.token
            WHERE l.queue = :queue AND l.leased_until > {self.now}
            ORDER BY l.lane FOR NO KEY UPDATE OF l"""

    def _mine(self) -> str:
        """The delivery is the one given, and its lease, or its lane's, still holds."""
        return f"""{_IS_GIVEN}
            AND CASE WHEN d.lane = {NO_LANE} THEN d.token = given.token AND d.leased_until > {self.now}
                ELSE EXISTS (SELECT 1 FROM held WHERE held.lane = given.lane AND held.token = given.token) END"""

    def _renew(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float, lane_seconds: float
    ) -> Steps[tuple[set[Lease], set[Lease]]]:
        statement = f"""
            WITH {self._given()}, mine AS (
                SELECT d.ctid FROM {self.delivery} d JOIN given ON {_IS_GIVEN}
                WHERE d.token = given.token AND d.leased_until > {self.now}
                ORDER BY d.position FOR UPDATE OF d SKIP LOCKED
            ), renewed AS (
                UPDATE {self.delivery} d SET leased_until = {self.dialect.later(":seconds")}
                WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM mine))
                RETURNING d.position, d.token
            ), free AS ({self._held_lanes()} SKIP LOCKED), renewed_lanes AS (
                UPDATE {self.lane} l SET leased_until = {self.dialect.later(":lane_seconds")} FROM free
                WHERE l.queue = :queue AND l.lane = free.lane
                RETURNING l.lane, l.token
            )
            SELECT false, position, token FROM renewed UNION ALL SELECT true, lane, token FROM renewed_lanes"""
        rows = yield from self.statement(
            statement,
            {
                "queue": self.queue,
                "seconds": seconds,
                "lane_seconds": lane_seconds,
                "position": [one.position for one in claimed],
                "lane": [one.lane for one in claimed],
                "token": [one.token for one in claimed],
                "lanes": [lane.number for lane in lanes],
                "lane_tokens": [lane.token for lane in lanes],
            },
        )
        leases: tuple[set[Lease], set[Lease]] = set(), set()
        for is_lane, where, token in rows:
            leases[is_lane].add((where, token))
        return leases
