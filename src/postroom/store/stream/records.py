"""Records of the stream: receipts for what was sent, deliveries for what was not, and what is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import LANES, NO_LANE, Order
from postroom.rules.routing import is_routed
from postroom.rules.stream.modes import STREAM
from postroom.store.outbox.attempts import COLUMNS as ATTEMPT
from postroom.store.outbox.postgresql.given import numbers, texts
from postroom.store.sql.db_errors import is_duplicate_entry
from postroom.store.sql.operations import DEFAULT_QUEUE, Operations
from postroom.store.sql.states import holds_key, ready
from postroom.store.sql.steps import Query, Steps
from postroom.store.stream.log_messages import LogRecords

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from postroom.store.sql.names import Names
    from postroom.store.stream.log_messages import UnsentOfLog

LOOKED_AT = 1000
"""Ready deliveries of a lane that are looked at, to tell which keys they have. Beyond that, every key waits."""


class NewReceipts(NamedTuple):
    """Messages of the stream that were sent, or need not be, by columns."""

    positions: Sequence[int] = ()
    outcomes: Sequence[str] = ()
    answers: Sequence[str | None] = ()


class NewDelivery(NamedTuple):
    """A message of the stream that goes on as a delivery, because it was not sent."""

    position: int
    queue: str
    state: int
    lane: int
    key_hash: int | None
    size: int
    delay: float
    attempts: int
    claims: int
    code: str
    message: str


class HeldKeys(NamedTuple):
    """Keys that have something in the table, which must leave first."""

    hashes: set[int]
    """Also of keys that were not asked about."""
    lanes: set[int]
    """Whole lanes, because they hold too much to look at."""

    @property
    def is_any(self) -> bool:
        """Whether there is any."""
        return bool(self.hashes or self.lanes)

    def has(self, key_hash: int | None, lane: int) -> bool:
        """Whether a message with this key must wait."""
        return key_hash is not None and (key_hash in self.hashes or lane in self.lanes)


class StreamRecords(Operations):
    """Writes under the lease on the stream: by its token, or not at all."""

    def __init__(self, names: Names, order: Order = Order.HOLD) -> None:
        super().__init__(names)
        self._order = order
        self._lead = (
            f"SELECT 1 FROM {self.tables['stream']} "
            f"WHERE name = '{STREAM}' AND token = :token AND leased_until > {self.now} FOR SHARE"
        )

    def record(
        self,
        token: int,
        receipts: NewReceipts,
        deliveries: Sequence[NewDelivery],
        unsent: Sequence[UnsentOfLog] = (),
    ) -> Steps[bool]:
        """Write receipts and deliveries together. Returns False if the lease was lost: then nothing is written.

        `unsent` are messages that are in the log alone: they get a row too.
        """
        if deliveries or unsent:
            return (yield from self.transaction(self._record, token, receipts, deliveries, unsent))
        try:
            return (yield from self._statement(self._receipts("", receipts, token)))
        except Exception as error:
            if not is_duplicate_entry(error):
                raise
            # Somebody repaired it by hand. To look for a conflict costs every receipt, so only at the second try.
            return (yield from self._statement(self._receipts("ON CONFLICT DO NOTHING", receipts, token)))

    def _statement(self, query: Query) -> Steps[bool]:
        rows = yield from self.statement(query.text, query.params)
        return bool(rows[0][0])

    def _record(
        self,
        token: int,
        receipts: NewReceipts,
        deliveries: Sequence[NewDelivery],
        unsent: Sequence[UnsentOfLog],
    ) -> Steps[bool]:
        held = yield Query(self._lead, {"token": token})
        if not held.rows:
            return False
        if receipts.positions:
            yield self._receipts("ON CONFLICT DO NOTHING", receipts, token)
        lanes: dict[str, set[int]] = {}
        for one in deliveries:
            if one.lane != NO_LANE:
                lanes.setdefault(one.queue, set()).add(one.lane)
        for queue in sorted(lanes):
            yield from self.reread_lanes(queue, lanes[queue])
        if deliveries:
            yield self._deliveries(deliveries)
        if unsent:
            yield from LogRecords(self.names).park(unsent)
        failed = [one for one in deliveries if one.attempts]
        if failed:
            yield self._failed_attempts(failed)
        return True

    def _receipts(self, on_conflict: str, receipts: NewReceipts, token: int) -> Query:
        positions, outcomes, answers = receipts
        alike = len(set(outcomes)) == 1
        return Query(
            f"""
            WITH lead AS MATERIALIZED ({self._lead}), receipts AS (
                INSERT INTO {self.receipt} (position, attempts, outcome, answer)
                SELECT given.position, 0, {":outcome::text" if alike else "given.outcome"},
                    {"given.answer" if any(answers) else "NULL"}
                FROM lead, unnest(:positions::text::bigint[]
                    {"" if alike else ", :outcomes::text::text[]"}{", :answers::text::text[]" if any(answers) else ""}
                ) AS given (position{"" if alike else ", outcome"}{", answer" if any(answers) else ""})
                {on_conflict}
            )
            SELECT count(*) FROM lead""",
            {
                "token": token,
                "positions": numbers(positions),
                **({"outcome": outcomes[0]} if alike else {"outcomes": texts(outcomes)}),
                **({"answers": texts(answers)} if any(answers) else {}),
            },
        )

    def _deliveries(self, deliveries: Sequence[NewDelivery]) -> Query:
        columns = zip(*deliveries, strict=True)
        position, queue, state, lane, key_hash, size, delay, attempts, claims, code, message = columns
        return Query(
            f"""
            INSERT INTO {self.delivery} (position, queue, state, lane, key_hash, size, due, attempts, claims,
                failed_at, error_code, error_message)
            SELECT g.position, g.queue, g.state, g.lane, g.key_hash, g.size,
                CASE WHEN g.state = {int(Stored.READY)} THEN {self.dialect.never}
                    ELSE {self.dialect.later("g.delay")} END,
                g.attempts, g.claims, CASE WHEN g.code = '' THEN {self.dialect.never} ELSE {self.now} END,
                g.code, g.message
            FROM unnest(:position::text::bigint[], :queue::text::text[], :state::text::smallint[],
                :lane::text::smallint[], :key_hash::text::bigint[], :size::text::integer[], :delay::text::float8[],
                :attempts::text::integer[], :claims::text::integer[], :code::text::text[], :message::text::text[]
            ) AS g (position, queue, state, lane, key_hash, size, delay, attempts, claims, code, message)
            ORDER BY g.position ON CONFLICT DO NOTHING""",
            {
                "position": numbers(position),
                "queue": texts(queue),
                "state": numbers(state),
                "lane": numbers(lane),
                "key_hash": texts(key_hash),
                "size": numbers(size),
                "delay": numbers(delay),
                "attempts": numbers(attempts),
                "claims": numbers(claims),
                "code": texts(code),
                "message": texts(message),
            },
        )

    def _failed_attempts(self, failed: Sequence[NewDelivery]) -> Query:
        return Query(
            f"""
            INSERT INTO {self.tables["attempt"]} ({ATTEMPT})
            SELECT g.position, {self.now}, g.attempts,
                coalesce((SELECT owner FROM {self.tables["stream"]} WHERE name = '{STREAM}'), ''), g.code, g.message
            FROM unnest(:position::text::bigint[], :attempts::text::integer[], :code::text::text[],
                :message::text::text[]) AS g (position, attempts, code, message)
            ON CONFLICT DO NOTHING""",
            {
                "position": numbers([one.position for one in failed]),
                "attempts": numbers([one.attempts for one in failed]),
                "code": texts(one.code for one in failed),
                "message": texts(one.message for one in failed),
            },
        )

    def held_keys(self, queue: str, hashes: Mapping[int, int]) -> Steps[HeldKeys]:
        """Which keys of a queue have something in the table that leaves before what is in the stream.

        `hashes` are those of the keys, each with its lane.
        """
        # What was not routed yet may have the same key. Mostly there is nothing of any key: then none is looked for.
        # OFFSET and ORDER BY keep each look a probe of its index, whatever the statistics say: see
        # `PostgreSQLSelections.unblocked`.
        queues = [queue, DEFAULT_QUEUE] if is_routed(queue) else [queue]
        found = yield Query(
            f"""
            WITH held AS MATERIALIZED (
                SELECT q.queue,
                    EXISTS (
                        SELECT 1 FROM {self.delivery} f
                        WHERE {holds_key(Order.HOLD, "f")} AND f.queue = q.queue COLLATE "C" AND f.key_hash IS NOT NULL
                        ORDER BY f.key_hash LIMIT 1 OFFSET 0
                    ) AS any_failed,
                    EXISTS (
                        SELECT 1 FROM {self.delivery} r
                        WHERE {ready("r")} AND r.queue = q.queue COLLATE "C" AND r.lane > {NO_LANE}
                        ORDER BY r.lane, r.position LIMIT 1 OFFSET 0
                    ) AS any_ready
                FROM unnest(:queues::text::text[]) AS q (queue)
            )
            SELECT {NO_LANE}, 0::bigint, ARRAY[h.key_hash]
            FROM held q CROSS JOIN unnest(:hashes::text::bigint[]) AS h (key_hash)
            WHERE q.any_failed AND EXISTS (
                SELECT 1 FROM {self.delivery} b WHERE b.queue = q.queue COLLATE "C" AND b.key_hash = h.key_hash
                    AND {holds_key(self._order, "b")} ORDER BY b.position OFFSET 0
            )
            UNION ALL
            SELECT l.lane, d.looked_at, CASE WHEN d.looked_at <= {LOOKED_AT} THEN d.hashes END
            FROM held q CROSS JOIN unnest(:lanes::text::smallint[]) AS l (lane) CROSS JOIN LATERAL (
                SELECT count(*) AS looked_at, array_agg(first.key_hash) AS hashes FROM (
                    SELECT d.key_hash FROM {self.delivery} d
                    WHERE {ready("d")} AND d.queue = q.queue COLLATE "C" AND d.lane = l.lane
                    ORDER BY d.position LIMIT {LOOKED_AT + 1}
                ) first
            ) d
            WHERE q.any_ready""",
            {
                "queues": texts(queues),
                "hashes": numbers(list(hashes)),
                "lanes": numbers(sorted(set(hashes.values()))),
            },
        )
        held = HeldKeys(set(), set())
        for lane, looked_at, some in found.rows:
            held.hashes.update(some or ())
            if looked_at > LOOKED_AT:
                held.lanes.add(lane)
        return held

    def unrecorded(self, places: Sequence[tuple[int, int]], queues: Collection[str]) -> Steps[set[int]]:
        """The positions of messages that are there, and have neither a receipt nor a delivery.

        `places` are positions and lanes, `queues` all that a delivery may be in: by these, its primary key finds it.
        """
        states = ", ".join(f"({int(state)}::smallint)" for state in Stored)
        found = yield Query(
            f"""
            SELECT given.position
            FROM unnest(:positions::text::bigint[], :lanes::text::smallint[]) AS given (position, lane)
            WHERE EXISTS (SELECT 1 FROM {self.outbox} m WHERE m.position = given.position)
                AND NOT EXISTS (SELECT 1 FROM {self.receipt} r WHERE r.position = given.position)
                AND NOT EXISTS (
                    SELECT 1 FROM (VALUES {states}) AS s (state) CROSS JOIN unnest(:queues::text::text[]) AS q (queue)
                    JOIN {self.delivery} d ON d.state = s.state AND d.queue = q.queue COLLATE "C"
                        AND d.lane = given.lane AND d.position = given.position
                )""",
            {
                "positions": numbers([position for position, _ in places]),
                "lanes": numbers([lane for _, lane in places]),
                "queues": texts(sorted(queues)),
            },
        )
        return {position for [position] in found.rows}

    def queues(self) -> Steps[set[str]]:
        """All queues that may have deliveries."""
        found = yield Query(
            f"SELECT DISTINCT queue FROM {self.lane} UNION SELECT DISTINCT queue FROM {self.tables['worker']}"
        )
        return {queue for [queue] in found.rows}

    def sweep(self, token: int | None) -> Steps[int | None]:
        """Give a delivery to every message of the stream that has neither that nor a receipt; returns how many.

        Under the lease with this token, or, without one, while nobody has a lease. None if that is not so.
        """
        return (yield from self.transaction(self._sweep, token))

    def _sweep(self, token: int | None) -> Steps[int | None]:
        mine = "token = :token AND leased_until >" if token else "leased_until <="
        held = yield Query(
            f"SELECT 1 FROM {self.tables['stream']} WHERE name = '{STREAM}' AND {mine} {self.now} FOR UPDATE",
            {"token": token} if token else {},
        )
        if not held.rows:
            return None
        # It goes through the whole outbox, once. To look for each message, as our sessions are set to do, takes hours.
        for way in ("seqscan", "hashjoin", "mergejoin"):
            yield Query(f"SET LOCAL enable_{way} = on")
        hashed = "('x' || left(md5(convert_to(m.ordering_key, 'UTF8')), 16))::bit(64)::bigint"
        swept = yield Query(
            f"""
            WITH left_over AS MATERIALIZED (
                SELECT m.queue, m.position, {hashed} AS key_hash, {self.dialect.bytes_of("m")} AS size
                FROM {self.outbox} m
                LEFT JOIN {self.receipt} r ON r.position = m.position
                LEFT JOIN {self.delivery} d ON d.position = m.position
                WHERE m.streamed AND r.position IS NULL AND d.position IS NULL
            ), delivery AS (
                INSERT INTO {self.delivery} (queue, position, state, lane, key_hash, size)
                SELECT queue, position, {int(Stored.READY)}, coalesce(key_hash & {LANES - 1}, {NO_LANE}), key_hash, size
                FROM left_over ORDER BY position
            )
            SELECT queue, count(*) FROM left_over GROUP BY queue""",
        )
        for queue in sorted(queue for queue, _ in swept.rows):
            yield from self.reread_lanes(queue, range(LANES))
        # What the next reader finds may be on record already.
        yield Query(f"UPDATE {self.tables['stream']} SET read_to = 0 WHERE name = '{STREAM}' AND read_to > 0")
        return sum(int(count) for _, count in swept.rows)
