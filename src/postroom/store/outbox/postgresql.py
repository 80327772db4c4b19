"""The lease protocol's hot parts on PostgreSQL: each one statement, one round trip, one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from postroom.rules.lifecycle import Stored, Transition
from postroom.rules.ordering import NO_LANE, Order
from postroom.rules.routing import is_sorted
from postroom.store.outbox.deliveries import Deliveries
from postroom.store.outbox.lanes import FREED, MOST_PROMOTED
from postroom.store.outbox.leases import Ages, Claimed, Failure, GivenBack, Lane, Lease, Receipt, Refiled, Settlement
from postroom.store.outbox.settling import failure_fields, receipt_fields, refiled_by_queue
from postroom.store.sql.db_errors import is_duplicate_entry
from postroom.store.sql.operations import UNBOUNDED
from postroom.store.sql.states import becomes, before, comes_due, holds_key, ready

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroom.store.sql.steps import Row, Steps


RECEIPT_ARRAYS = {"answer": "text", "dedup": "bigint"}
_IS_GIVEN = "d.state = given.state AND d.queue = given.queue AND d.lane = given.lane AND d.position = given.position"


class PostgreSQLDeliveries(Deliveries):
    """Rows are locked in the order of their positions, so that workers cannot deadlock."""

    def _lease_ready(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        return (
            yield from self.statement(
                self._lease_statement(f"{ready('d')} AND d.position > :after", "d.position"), lease
            )
        )

    def _lease_due(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        due = f"{comes_due('d')} AND d.due <= {self.now}"
        return (yield from self.statement(self._lease_statement(due, "d.due, d.position"), lease))

    def _lease_statement(self, which: str, order: str) -> str:
        return f"""
            WITH free AS (
                SELECT d.ctid, {self.size("d")} AS size FROM {self.delivery} d
                WHERE {which} AND d.queue = :queue AND d.lane = {NO_LANE} AND d.leased_until <= {self.now}
                ORDER BY {order} LIMIT :limit FOR UPDATE SKIP LOCKED
            ), fitting AS (
                SELECT ctid FROM (
                    SELECT ctid, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM free
                ) sized WHERE before < :most_bytes
            ), leased AS (
                UPDATE {self.delivery} d
                SET {becomes(Transition.CLAIM)}, token = :token, owner = :worker, claims = d.claims + 1,
                    leased_until = {self.dialect.later(":seconds")}
                WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM fitting))
                RETURNING d.position, d.lane, d.attempts, d.claims, d.size
            )
            SELECT d.position, d.lane, d.attempts, d.claims, {self.size("d", "m")},
                coalesce(m.expires_at <= {self.now}, false), {self.columns}
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

    def ages(self) -> Steps[Ages]:
        if is_sorted(self.queue):
            return (yield from super().ages())
        # Not the snapshot's own upper end: transactions beyond it may be under way, and have positions.
        [[youngest, oldest]] = yield from self.statement(
            "SELECT pg_current_xact_id()::text::bigint, pg_snapshot_xmin(pg_current_snapshot())::text::bigint", {}
        )
        return Ages(youngest, oldest)

    def _read_lanes(
        self,
        lanes: Sequence[Lane],
        limit: int,
        seconds: float,
        after: Mapping[int, int],
        in_flight: Sequence[int],
        most_bytes: int,
        renew: bool,  # noqa: FBT001 - as in `read_lanes`
    ) -> Steps[Sequence[Row]]:
        # Without renewal no lane is locked: a read and a settlement of the same lane would wait for each other. But
        # something is written all the same: that commit flushes what producers committed asynchronously, so that
        # nothing is published that a crash of the database could undo.
        lock = "ORDER BY l.lane FOR NO KEY UPDATE OF l" if renew else ""
        written = (
            f"""renewed AS (
                UPDATE {self.lane} l
                SET leased_until = {self.dialect.later(":seconds")},
                    read_to = CASE WHEN l.read_to < 0 THEN l.read_to ELSE greatest(l.read_to, furthest.position) END
                FROM held LEFT JOIN (
                    SELECT lane, max(position) AS position FROM next GROUP BY lane
                ) furthest USING (lane)
                WHERE l.queue = :queue AND l.lane = held.lane
            ), written AS (SELECT 1)"""
            if renew
            else "written AS MATERIALIZED (SELECT pg_logical_emit_message(true, 'postroom', ''))"
        )
        statement = f"""
            WITH given AS (
                SELECT * FROM unnest(:lanes::text::smallint[], :tokens::text::bigint[], :after::text::bigint[])
                    AS given (lane, token, after)
            ), held AS (
                SELECT l.lane, l.read_to < 0 AS freed,
                    CASE WHEN l.read_to < 0 AND given.after > 0 THEN {UNBOUNDED} ELSE given.after END AS after
                FROM {self.lane} l JOIN given ON l.lane = given.lane AND l.token = given.token
                WHERE l.queue = :queue AND l.leased_until > {self.now} {lock}
            ), ready AS (
                SELECT held.lane, d.position, d.attempts, d.claims, d.size,
                    sum(d.size) OVER (ORDER BY d.position) - d.size AS before
                FROM held CROSS JOIN LATERAL (
                    SELECT d.position, d.attempts, d.claims, {self.size("d")} AS size FROM {self.delivery} d
                    WHERE {ready("d")} AND d.queue = :queue AND d.lane = held.lane AND d.position > held.after
                      AND d.position NOT IN (SELECT unnest(:in_flight::text::bigint[])) AND {self._unblocked()}
                      {self._before_unsorted("held.lane")}
                    ORDER BY d.position LIMIT :limit
                ) d
            ), next AS (
                SELECT * FROM ready WHERE before < :most_bytes
                UNION ALL SELECT lane, {FREED}, 0, 0, 0, 0 FROM held WHERE freed
            ), {written}
            SELECT d.position, d.lane, d.attempts, d.claims, d.size, coalesce(m.expires_at <= {self.now}, false),
                {self.columns}
            FROM next d CROSS JOIN written LEFT JOIN {self.outbox} m ON m.position = d.position"""
        params = {
            "queue": self.queue,
            "lanes": numbers([lane.number for lane in lanes]),
            "tokens": numbers([lane.token for lane in lanes]),
            "after": numbers([after.get(lane.number, 0) for lane in lanes]),
            "in_flight": numbers(in_flight),
            "most_bytes": most_bytes,
            "limit": limit,
            "seconds": seconds,
        }
        return (yield from self.statement(statement, params))

    def _unblocked(self) -> str:
        # Asked once for the whole statement: has anything failed? Only then is each message's key looked up.
        # OFFSET and ORDER BY keep that a probe of the key index. As a join, with statistics that are missing or old,
        # the planner compares each message with all that failed: 46 s where 20,000 had.
        failed = (
            f"SELECT 1 FROM {self.delivery} f WHERE {holds_key(Order.HOLD, 'f')} AND f.queue = :queue "
            f"AND f.key_hash IS NOT NULL ORDER BY f.key_hash LIMIT 1 OFFSET 0"
        )
        return (
            f"(NOT EXISTS ({failed}) OR "
            f"NOT EXISTS (SELECT 1 FROM {self.delivery} b WHERE b.queue = :queue AND b.key_hash = d.key_hash "
            f"AND b.position < d.position AND {holds_key(self.order, 'b')} ORDER BY b.position OFFSET 0))"
        )

    def _promote(self, lanes: Sequence[Lane]) -> Steps[dict[int, int]]:
        # Ordered, so that the due index is the plan whatever the statistics say: after an outage, when all was due,
        # the planner took the primary key and looked through everything scheduled, for 2 s.
        statement = f"""
            WITH held AS ({self._held_lanes()}), due AS (
                SELECT d.ctid FROM held CROSS JOIN LATERAL (
                    SELECT d.ctid FROM {self.delivery} d
                    WHERE {before(Transition.COME_DUE, "d")} AND d.queue = :queue AND d.lane = held.lane
                      AND d.due <= {self.now}
                    ORDER BY d.due, d.position LIMIT {MOST_PROMOTED}
                ) d
            ), ready AS (
                UPDATE {self.delivery} d SET {becomes(Transition.COME_DUE)}
                WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM due))
                RETURNING d.lane, d.position
            )
            SELECT lane, min(position) FROM ready GROUP BY lane"""
        params = {
            "queue": self.queue,
            "lanes": numbers([lane.number for lane in lanes]),
            "lane_tokens": numbers([lane.token for lane in lanes]),
        }
        return dict((yield from self.statement(statement, params)))

    def _settle(self, settlements: Sequence[Settlement]) -> Steps[set[Lease]]:
        kinds: dict[type[Settlement], list[Any]] = {}
        for one in settlements:
            kinds.setdefault(type(one), []).append(one)
        lost: set[Lease] = set()
        for kind in get_args(Receipt):
            if kind in kinds:
                lost |= yield from self._settle_receipts(kinds[kind])
        failures = [one for kind in get_args(Failure) for one in kinds.get(kind, ())]
        if failures:
            lost |= yield from self._settle_failures(failures)
        if GivenBack in kinds:
            lost |= yield from self._settle_given_back([one.claimed for one in kinds[GivenBack]], self.queue)
        for queue, claimed in refiled_by_queue(kinds.get(Refiled, ())).items():
            lost |= yield from self._settle_given_back(claimed, queue)
        return lost

    def _settle_receipts(self, receipts: Sequence[Any]) -> Steps[set[Lease]]:
        """Receipts of one kind. Should one be there already, which nothing but a repair by hand explains, replace it.

        Not at once, because looking for a conflict costs every receipt.
        """
        claimed = [one.claimed for one in receipts]
        outcome, _, _ = receipt_fields(receipts[0])
        params: dict[str, Any] = {"outcome": outcome, "answer": None, "dedup": None}
        if outcome != "sent" or any(one.answer is not None or one.dedup is not None for one in receipts):
            _, answers, dedups = zip(*map(receipt_fields, receipts), strict=True)
            params |= {"answer": texts(answers), "dedup": texts(dedups)}
        try:
            return (yield from self._write(self._receipts(""), RECEIPT_ARRAYS, claimed, params))
        except Exception as error:
            if not is_duplicate_entry(error):
                raise
            return (
                yield from self._write(self._receipts(self.dialect.replace_receipt), RECEIPT_ARRAYS, claimed, params)
            )

    def _receipts(self, on_conflict: str) -> str:
        return f"""
                DELETE FROM {self.delivery} d USING given WHERE {self._mine()}
                RETURNING d.position, given.token, d.attempts, given.answer, given.dedup
            ), receipts AS (
                INSERT INTO {self.receipt} (position, attempts, outcome, answer, dedup)
                SELECT position, attempts, :outcome::text, answer, dedup FROM written
                {on_conflict}"""

    def _settle_failures(self, failures: Sequence[Failure]) -> Steps[set[Lease]]:
        types = {"becomes": "smallint", "delay": "float8", "attempts": "integer", "code": "text", "message": "text"}
        written = f"""
                UPDATE {self.delivery} d
                SET state = given.becomes, due = {self.dialect.later("given.delay")},
                    attempts = d.attempts + given.attempts,
                    claims = 0, failed_at = {self.failed_at("given.attempts", "given.becomes", "given.code")},
                    error_code = given.code, error_message = given.message,
                    token = 0, owner = '', leased_until = {self.dialect.never}
                FROM given WHERE {self._mine()}
                RETURNING d.position, given.token"""
        states, delays, attempts, codes, messages = zip(*map(failure_fields, failures), strict=True)
        params = {
            "becomes": numbers(states),
            "delay": numbers(delays),
            "attempts": numbers(attempts),
            "code": texts(codes),
            "message": texts(messages),
        }
        return (yield from self._write(written, types, [one.claimed for one in failures], params))

    def _settle_given_back(self, claimed: Sequence[Claimed], to: str) -> Steps[set[Lease]]:
        moved = "queue = :to, " if to != self.queue else ""  # else the row stays where it is: a HOT update
        written = f"""
                UPDATE {self.delivery} d
                SET {moved}token = 0, owner = '', leased_until = {self.dialect.never},
                    claims = CASE WHEN d.lane = {NO_LANE} THEN d.claims - 1 ELSE d.claims END
                FROM given WHERE {self._mine()}
                RETURNING d.position, given.token"""
        return (yield from self._write(written, {}, claimed, {"to": to} if moved else {}))

    def _write(
        self, written: str, types: Mapping[str, str], claimed: Sequence[Claimed], params: Mapping[str, Any]
    ) -> Steps[set[Lease]]:
        """Write what is still held; returns the leases that are not. Which were, comes back only if some were not."""
        lanes = sorted({(one.lane, one.token) for one in claimed if one.lane != NO_LANE})
        statement = f"""
            WITH {self._given(**types)}, held AS ({self._held_lanes()}), written AS ({written}
            )
            SELECT count(*), CASE WHEN count(*) < :expected THEN array_agg(ARRAY[position, token]) END FROM written"""
        [[count, kept]] = yield from self.statement(
            statement,
            {
                "queue": self.queue,
                **_leases(claimed),
                "lanes": numbers([lane for lane, _ in lanes]),
                "lane_tokens": numbers([token for _, token in lanes]),
                "expected": len(claimed),
                **params,
            },
        )
        if count == len(claimed):
            return set()
        return {one.lease for one in claimed} - {(position, token) for position, token in kept or ()}

    def _given(self, **extra: str) -> str:
        """What is claimed, as a table.

        State and queue are columns of it and not constants, and it is materialised, so that the planner cannot take
        all ready deliveries first and look for each among the given ones.
        """
        types = {"position": "bigint", "lane": "smallint", "token": "bigint", **extra}
        arrays = ", ".join(f":{name}::text::{kind}[]" for name, kind in types.items())
        return f"""given AS MATERIALIZED (
            SELECT {int(Stored.READY)}::smallint AS state, :queue::text COLLATE "C" AS queue, given.*
            FROM unnest({arrays}) AS given ({", ".join(types)})
        )"""

    def _held_lanes(self) -> str:
        return f"""
            SELECT l.lane, l.token FROM {self.lane} l
            JOIN unnest(:lanes::text::smallint[], :lane_tokens::text::bigint[]) AS wanted (lane, token)
                ON l.lane = wanted.lane AND l.token = wanted.token
            WHERE l.queue = :queue AND l.leased_until > {self.now}
            ORDER BY l.lane FOR NO KEY UPDATE OF l"""

    def _mine(self) -> str:
        """The delivery is the one given, and its lease, or its lane's, still holds."""
        return f"""{_IS_GIVEN}
            AND CASE WHEN d.lane = {NO_LANE} THEN d.token = given.token AND d.leased_until > {self.now}
                ELSE (given.lane, given.token) IN (SELECT held.lane, held.token FROM held) END"""

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
                **_leases(claimed),
                "lanes": numbers([lane.number for lane in lanes]),
                "lane_tokens": numbers([lane.token for lane in lanes]),
            },
        )
        leases: tuple[set[Lease], set[Lease]] = set(), set()
        for is_lane, where, token in rows:
            leases[is_lane].add((where, token))
        return leases


def _leases(claimed: Sequence[Claimed]) -> dict[str, str]:
    return {
        "position": numbers([one.position for one in claimed]),
        "lane": numbers([one.lane for one in claimed]),
        "token": numbers([one.token for one in claimed]),
    }


# Arrays travel as PostgreSQL writes them: of a list drivers look at every value, which took a third of the time.


def numbers(values: Sequence[float]) -> str:
    """An array of numbers."""
    return f"{{{','.join(map(str, values))}}}"


def texts(values: Iterable[object]) -> str:
    """An array of texts."""
    return f"{{{','.join(map(_quoted, values))}}}"


def _quoted(value: object) -> str:
    if value is None:
        return "NULL"
    escaped = str(value).replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'
