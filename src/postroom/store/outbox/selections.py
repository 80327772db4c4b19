"""Selections: what a claim looks for, as SQL. MySQL and PostgreSQL word some of it in their own way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored, holding_states
from postroom.rules.ordering import NO_LANE, Order
from postroom.rules.routing import is_routed
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import DEFAULT_QUEUE, UNBOUNDED, Operations
from postroom.store.sql.states import comes_due, holds_key, in_state

if TYPE_CHECKING:
    from collections.abc import Sequence


class Selections:
    """Parts of statements on the deliveries of one queue."""

    def __init__(self, sql: Operations, order: Order) -> None:
        self.sql = sql
        self.order = order

    def due_in(self, lanes: Sequence[int]) -> str:
        """Lock what is due in these lanes, `:limit` of it, longest due first: state, lane, position, size and tries."""
        sql = self.sql
        return (
            f"SELECT state, lane, position, {sql.size('d')}, {sql.tries()} FROM {sql.delivery} d WHERE {comes_due()} "
            f"AND queue = :queue AND lane IN ({whole_numbers(lanes)}) AND due <= {sql.now} "
            f"AND leased_until <= {sql.now} ORDER BY due, position LIMIT :limit{sql.dialect.skip_locked}"
        )

    def unblocked(self) -> str:
        """Nothing that failed, or is dead and holds, stands before delivery `d` on its key."""
        return (
            f"({self.nothing_failed()} OR "
            f"NOT EXISTS (SELECT 1 FROM {self.sql.delivery} b WHERE b.queue = :queue AND b.key_hash = d.key_hash "
            f"AND b.position < d.position AND {holds_key(self.order, 'b')}))"
        )

    def nothing_failed(self) -> str:
        """No key is held back by anything. Asked once in a statement: only otherwise is each message's key looked up.

        A probe of the primary key for each state.
        """
        return "({})".format(
            " AND ".join(
                f"NOT EXISTS (SELECT 1 FROM {self.sql.delivery} f{self.sql.dialect.by_primary_key} "
                f"WHERE {in_state(state, 'f')} AND f.queue = :queue AND f.lane > {NO_LANE})"
                for state in holding_states(self.order)
            )
        )

    def before_unrouted(self, lane: str) -> str:
        """In a queue that messages are routed into: nothing unrouted stands before delivery `d` in its lane.

        It might have the same key, and belong to the same broker. It is routed soon: that needs no broker.
        """
        if not is_routed(self.sql.queue):
            return ""
        lowest = (
            f"coalesce((SELECT u.position FROM {self.sql.delivery} u WHERE {in_state(state, 'u')} "
            f"AND u.queue = '{DEFAULT_QUEUE}' AND u.lane = {lane} ORDER BY u.position LIMIT 1), {UNBOUNDED})"
            for state in (Stored.READY, *holding_states(Order.HOLD))
        )
        return "".join(f" AND d.position < {position}" for position in lowest)
