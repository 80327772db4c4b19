"""What MySQL and MariaDB must be told about the lease protocol: which index to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Transition, holding_states
from postroom.store.outbox.selections import Selections
from postroom.store.sql.states import in_state

if TYPE_CHECKING:
    from collections.abc import Sequence


class MySQLSelections(Selections):
    def due_in(self, lanes: Sequence[int]) -> str:
        # Over several states or lanes at once the index gives no order: to claim a batch of what was freed for a topic,
        # all of it would be read, sorted and, worse, locked, so that another relay finds nothing.
        sql = self.sql
        index = sql.names.quoted(sql.names.bare("outbox_delivery_due"))
        each = " UNION ALL ".join(
            f"(SELECT state, lane, position, {sql.size('d')} AS size, due "
            f"FROM {sql.delivery} d FORCE INDEX ({index}) "
            f"WHERE {in_state(state)} AND queue = :queue AND lane = {int(lane)} AND due <= {sql.now} "
            f"AND leased_until <= {sql.now} ORDER BY due, position LIMIT :limit{sql.dialect.skip_locked})"
            for state in Transition.COME_DUE.stored
            for lane in lanes
        )
        return f"SELECT state, lane, position, size FROM ({each} ORDER BY due, position LIMIT :limit) due_rows"

    def unblocked(self) -> str:
        # Left alone, the optimizer takes the primary key and reads all that failed for each message: 5 s where
        # 20,000 had. A probe for each state, as with both in one it would read all messages of the key.
        sql = self.sql
        index = sql.names.quoted(sql.names.bare("outbox_delivery_key"))
        return " AND ".join(
            f"NOT EXISTS (SELECT 1 FROM {sql.delivery} b FORCE INDEX ({index}) WHERE b.queue = :queue "
            f"AND b.key_hash = d.key_hash AND {in_state(state, 'b')} AND b.position < d.position)"
            for state in holding_states(self.order)
        )
