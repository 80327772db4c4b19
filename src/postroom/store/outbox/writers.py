"""Which writer records messages in which database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.store.outbox.mysql import MySQLWriter
from postroom.store.outbox.postgresql.writer import PostgreSQLWriter
from postroom.store.outbox.two_statement_writer import SQLiteWriter

if TYPE_CHECKING:
    from postroom.store.outbox.writer import Writer

WRITERS: dict[str, type[Writer]] = {
    "postgresql": PostgreSQLWriter,
    "sqlite": SQLiteWriter,
    "mysql": MySQLWriter,
}
