"""Start an instance: its message, its delivery and its row, in the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.naming import SAGA_ID, saga_key
from postroom.store.outbox.writers import WRITERS
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.message import Message
    from postroom.store.saga.tables import SagaTables


class Starting:
    def __init__(self, sql: SagaTables) -> None:
        self._sql = sql
        self._writer = WRITERS[sql.names.dialect](sql.names, sql.queue, notify=sql.notify)

    def start(self, message: Message, deadline: float | None) -> Steps[Message]:
        """Record an instance, whose id is in the message's headers; `deadline`: seconds from now.

        For an id that is in use, the existing message comes back, marked as a duplicate, and nothing is written.
        Raises `IdempotencyConflict` if it was started with other data.
        """
        [recorded] = yield from self._writer.add([message])
        if not recorded.duplicate:
            sql = self._sql
            until = "NULL" if deadline is None else sql.dialect.later(":deadline")
            yield Query(
                f"INSERT INTO {sql.saga} (position, name, id, deadline) SELECT position, :name, :id, {until} "
                f"FROM {sql.outbox} WHERE id = :message{self._writer.text_as_id}",
                {
                    "name": sql.saga_name,
                    "id": message.headers[SAGA_ID],
                    "deadline": deadline,
                    "message": str(recorded.id),
                },
            )
        return recorded

    def position_of(self, id: str) -> Steps[int | None]:
        """Where the instance with this id is; None if there is none, or retention has removed it."""
        sql = self._sql
        found = yield Query(
            f"SELECT position FROM {sql.outbox} WHERE idempotency_key = :key", {"key": saga_key(sql.saga_name, id)}
        )
        return int(found.rows[0][0]) if found.rows else None
