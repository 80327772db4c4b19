"""Claims of messages without a key on PostgreSQL, and how it is asked what a key waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Transition
from postroom.rules.ordering import NO_LANE, Order
from postroom.store.outbox.claims import RowClaims
from postroom.store.outbox.selections import Selections
from postroom.store.sql.states import becomes, comes_due, holds_key, ready

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.store.sql.steps import Row, Steps


class PostgreSQLSelections(Selections):
    def unblocked(self) -> str:
        sql = self.sql
        # Asked once for the whole statement: has anything failed? Only then is each message's key looked up.
        # OFFSET and ORDER BY keep that a probe of the key index. As a join, with statistics that are missing or old,
        # the planner compares each message with all that failed: 46 s where 20,000 had.
        failed = (
            f"SELECT 1 FROM {sql.delivery} f WHERE {holds_key(Order.HOLD, 'f')} AND f.queue = :queue "
            f"AND f.key_hash IS NOT NULL ORDER BY f.key_hash LIMIT 1 OFFSET 0"
        )
        return (
            f"(NOT EXISTS ({failed}) OR "
            f"NOT EXISTS (SELECT 1 FROM {sql.delivery} b WHERE b.queue = :queue AND b.key_hash = d.key_hash "
            f"AND b.position < d.position AND {holds_key(self.order, 'b')} ORDER BY b.position OFFSET 0))"
        )


class PostgreSQLRowClaims(RowClaims):
    def _lease_ready(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        return (
            yield from self.sql.statement(
                self._lease_statement(f"{ready('d')} AND d.position > :after", "d.position"), lease
            )
        )

    def _lease_due(self, lease: dict[str, object]) -> Steps[Sequence[Row]]:
        sql = self.sql
        due = f"{comes_due('d')} AND d.due <= {sql.now}"
        return (yield from sql.statement(self._lease_statement(due, "d.due, d.position"), lease))

    def _lease_statement(self, which: str, order: str) -> str:
        sql = self.sql
        return f"""
            WITH free AS (
                SELECT d.ctid, {sql.size("d")} AS size FROM {sql.delivery} d
                WHERE {which} AND d.queue = :queue AND d.lane = {NO_LANE} AND d.leased_until <= {sql.now}
                ORDER BY {order} LIMIT :limit FOR UPDATE SKIP LOCKED
            ), fitting AS (
                SELECT ctid FROM (
                    SELECT ctid, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM free
                ) sized WHERE before < :most_bytes
            ), leased AS (
                UPDATE {sql.delivery} d
                SET {becomes(Transition.CLAIM)}, token = :token, owner = :worker, claims = d.claims + 1,
                    leased_until = {sql.dialect.later(":seconds")}
                WHERE d.ctid = ANY (ARRAY(SELECT ctid FROM fitting))
                RETURNING d.position, d.lane, d.attempts, d.claims, d.size
            )
            SELECT d.position, d.lane, d.attempts, d.claims, {sql.size("d", "m")},
                coalesce(m.expires_at <= {sql.now}, false), {sql.columns}
            FROM leased d LEFT JOIN {sql.outbox} m ON m.position = d.position"""
