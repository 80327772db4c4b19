"""What MySQL and MariaDB do in their own way: which index a statement takes, and how messages are inserted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting
from postroom.rules.lifecycle import Transition, holding_states
from postroom.store.outbox.lanes import Lanes
from postroom.store.outbox.receipts import CountingSettlementWriter, Receipts
from postroom.store.outbox.selections import Selections
from postroom.store.outbox.two_statement_writer import Positions, TwoStatementWriter
from postroom.store.sql.db_errors import is_duplicate_entry
from postroom.store.sql.dialect import as_json, text, whole_numbers
from postroom.store.sql.states import in_state, ready
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from postroom.message import Message
    from postroom.store.sql.steps import Row, Steps


class MySQLSelections(Selections):
    def due_in(self, lanes: Sequence[int]) -> str:
        # Over several states or lanes at once the index gives no order: to claim a batch, MySQL would read, sort and,
        # worse, lock all that is due, and another relay would find nothing.
        sql = self.sql
        index = sql.names.quoted(sql.names.bare("outbox_delivery_due"))
        each = " UNION ALL ".join(
            f"(SELECT state, lane, position, {sql.size('d')} AS size, attempts, claims, due "
            f"FROM {sql.delivery} d FORCE INDEX ({index}) "
            f"WHERE {in_state(state)} AND queue = :queue AND lane = {int(lane)} AND due <= {sql.now} "
            f"AND leased_until <= {sql.now} ORDER BY due, position LIMIT :limit{sql.dialect.skip_locked})"
            for state in Transition.COME_DUE.stored
            for lane in lanes
        )
        columns = "state, lane, position, size, attempts, claims"
        return f"SELECT {columns} FROM ({each} ORDER BY due, position LIMIT :limit) due_rows"

    def unblocked(self) -> str:
        # By itself, the optimizer takes the primary key and reads all that failed for each message: 5 s for 20,000.
        # One probe for each state: with both in one it would read all messages of the key.
        sql = self.sql
        index = sql.names.quoted(sql.names.bare("outbox_delivery_key"))
        probes = " AND ".join(
            f"NOT EXISTS (SELECT 1 FROM {sql.delivery} b FORCE INDEX ({index}) WHERE b.queue = :queue "
            f"AND b.key_hash = d.key_hash AND {in_state(state, 'b')} AND b.position < d.position)"
            for state in holding_states(self.order)
        )
        return f"({self.nothing_failed()} OR ({probes}))"


class MySQLReceipts(Receipts):
    def _delete_scattered(self, lanes: Mapping[int, Sequence[int]], token: int) -> Steps[int]:
        # A DELETE with a list may read the whole queue, and wait for every row that some transaction has locked. In a
        # join it looks up each row by its whole key.
        sql = self.sql
        places = [[lane, position] for lane in sorted(lanes) for position in lanes[lane]]
        columns = "lane SMALLINT PATH '$[0]', position BIGINT PATH '$[1]'"
        result = yield Query(
            f"DELETE d FROM JSON_TABLE(:places, '$[*]' COLUMNS ({columns})) AS these "
            f"STRAIGHT_JOIN {sql.delivery} AS d{sql.dialect.by_primary_key} "
            f"WHERE {ready('d')} AND d.queue = :queue AND d.lane = these.lane AND d.position = these.position"
            f"{self._leased(token, 'd.')}",
            {"queue": sql.queue, "places": as_json(places), "token": token},
        )
        return result.changed


class MySQLSettlementWriter(CountingSettlementWriter):
    receipts = MySQLReceipts


class MySQLLanes(Lanes):
    def _rows(
        self, lanes: Sequence[int], after: Mapping[int, int], in_flight: Sequence[int], limit: int
    ) -> Steps[list[Row]]:
        """All lanes in one round trip. Not as derived tables: those with a payload are written to disk."""
        busy = f"AND d.position NOT IN ({whole_numbers(in_flight)})" if in_flight else ""
        each = (f"({self._lane_select(str(lane), str(after.get(lane, 0)), busy)})" for lane in lanes)
        found = yield Query(" UNION ALL ".join(each), {"queue": self.sql.queue, "limit": limit})
        return list(found.rows)


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

    def _insert_messages(self, chunk: Sequence[Message]) -> Steps[Positions]:
        """A duplicate undoes only its own statement: insert the rest again, without what exists."""
        while chunk:
            try:
                yield self._messages(chunk)
                return dict.fromkeys(message.id for message in chunk)
            except Exception as error:
                if not is_duplicate_entry(error):
                    raise
                known = yield from self._known(chunk)
                if not known:
                    raise
            chunk = [message for message in chunk if message.id not in known]
        return {}

    def _position(self, n: int, count: int) -> str:
        by_id = f"(SELECT position FROM {self.tables['outbox']} WHERE id = :id_{n}{{}})"
        if count > 1:  # they need not follow one another
            return by_id.format("")
        # Somebody else may have inserted on this connection since: a listener of SQLAlchemy's, another task.
        return f"coalesce({by_id.format(' AND position = last_insert_id()')}, {by_id.format('')})"

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
