"""What MySQL and MariaDB do in their own way: which index a claim takes, and how messages are inserted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting
from postroom.rules.lifecycle import Transition, holding_states
from postroom.store.outbox.selections import Selections
from postroom.store.outbox.two_statement_writer import TwoStatementWriter
from postroom.store.sql.db_errors import is_duplicate_entry
from postroom.store.sql.dialect import text
from postroom.store.sql.states import in_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from postroom.message import Message
    from postroom.store.sql.steps import Steps


class MySQLSelections(Selections):
    def due_in(self, lanes: Sequence[int]) -> str:
        # Over several states or lanes at once the index gives no order: to claim a batch, MySQL would read, sort and,
        # worse, lock all that is due, and another relay would find nothing.
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
        # By itself, the optimizer takes the primary key and reads all that failed for each message: 5 s for 20,000.
        # One probe for each state: with both in one it would read all messages of the key.
        sql = self.sql
        index = sql.names.quoted(sql.names.bare("outbox_delivery_key"))
        return " AND ".join(
            f"NOT EXISTS (SELECT 1 FROM {sql.delivery} b FORCE INDEX ({index}) WHERE b.queue = :queue "
            f"AND b.key_hash = d.key_hash AND {in_state(state, 'b')} AND b.position < d.position)"
            for state in holding_states(self.order)
        )


class MySQLWriter(TwoStatementWriter):
    """INSERT IGNORE would also accept values that do not fit, and async drivers would warn of every duplicate."""

    current = " LOCK IN SHARE MODE"
    savepoints = True  # adding must not require the right to delete

    def lock_keys(self, messages: Sequence[Message]) -> Steps[None]:
        del messages
        raise InvalidSetting(
            "lock_keys is not available on MySQL and MariaDB, which have no lock that ends with the transaction: "
            "lock the row that the key stands for with SELECT … FOR UPDATE before you add"
        )

    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        """A duplicate undoes only its own statement: insert the rest again, without what exists."""
        while chunk:
            try:
                yield self._messages(chunk)
                return {message.id for message in chunk}
            except Exception as error:
                if not is_duplicate_entry(error):
                    raise
                known = yield from self._known(chunk)
                if not known:
                    raise
            chunk = [message for message in chunk if message.id not in known]
        return set()

    def _known(self, chunk: Sequence[Message]) -> Steps[set[UUID]]:
        """Those whose id or idempotency key is in the outbox. The read that also locks gaps comes last."""
        ids = {str(message.id): message.id for message in chunk}
        keys = {message.idempotency_key: message.id for message in chunk if message.idempotency_key is not None}
        for suffix in ("", self.current):
            same_key = yield from self._select("idempotency_key", "idempotency_key", keys, suffix)
            same_id = yield from self._select("id", "id", ids, suffix)
            known = {keys[text(key)] for [key] in same_key} | {ids[text(identifier)] for [identifier] in same_id}
            if known:
                return known
        return set()

    def _payload(self, payload: bytes | None) -> str | None:
        # In hexadecimal: drivers differ in how they write bytes into a statement, and one fails at it.
        return None if payload is None else payload.hex()

    def _placeholder(self, column: str, n: int) -> str:
        placeholder = super()._placeholder(column, n)
        return f"unhex({placeholder})" if column == "payload" else placeholder
