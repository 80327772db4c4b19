"""Start an instance on PostgreSQL: message, delivery and instance in one statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.naming import SAGA_ID
from postroom.store.outbox.postgresql.writer import PostgreSQLWriter
from postroom.store.saga.starting import Starting
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from postroom.message import Message
    from postroom.store.saga.tables import SagaTables


class _StartWriter(PostgreSQLWriter):
    def beside(self) -> str:
        # Without a deadline the interval is NULL, and so is the sum.
        return f""", saga AS (
                INSERT INTO {self.tables["saga"]} (position, name, id, deadline)
                SELECT position, :saga_name::text, :saga_id::text, {self.dialect.later(":deadline")} FROM message
            )"""


class PostgreSQLStarting(Starting):
    def __init__(self, sql: SagaTables) -> None:
        super().__init__(sql)
        self._start = _StartWriter(sql.names, sql.queue, notify=sql.notify)

    def start(self, message: Message, deadline: float | None) -> Steps[Message]:
        of_saga = {"saga_name": self._sql.saga_name, "saga_id": message.headers[SAGA_ID], "deadline": deadline}
        inserted = yield Query(self._start.one, {**self._start.row(message), **of_saga})
        if inserted.rows:
            return message
        return (yield from self._start.existing([message]))[message.id]
