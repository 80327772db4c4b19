"""Drop the tables: the way back of a migration that created them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from postroom.errors import SchemaError
from postroom.store.schema.tables import metadata

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

KEYS = "outbox_key"
FUNCTIONS = ("add", "outbox_check", "outbox_delivery_check", "outbox_take_key", "outbox_free_key")
"""PostgreSQL's; like the table `KEYS`, the last two are there if the outbox is partitioned."""


def drop_tables(connection: Connection, names: Names) -> None:
    """Drop all tables in the connection's transaction. Raises `SchemaError` while messages wait to be sent.

    On PostgreSQL the schema stays: other things may be in it.
    """
    _refuse_loss(connection, names)
    for statement in drop_statements(names):
        connection.exec_driver_sql(statement)


def _refuse_loss(connection: Connection, names: Names) -> None:
    found = inspect(connection)

    def rows(table: str, where: str) -> int:
        if not found.has_table(names.bare(table), schema=names.schema):
            return 0
        return connection.scalar(text(f"SELECT count(*) FROM {names.table(table)} WHERE {where}")) or 0

    if waiting := rows("outbox_delivery", "true"):
        raise SchemaError(
            f"{waiting:,} messages of {names.table('outbox')} are not settled, and would be lost: let a relay send "
            "them, or see `postroom messages` and `postroom dead discard`; then drop the tables"
        )
    if names.dialect == "postgresql" and rows("outbox_stream", "mode <> 'table'"):
        raise SchemaError(
            f"messages of {names.table('outbox')} are read from the write-ahead log, and may not be sent yet: run "
            "`postroom cdc off`, then drop the tables"
        )


def drop_statements(names: Names) -> list[str]:
    """The statements that drop view, functions and tables, whatever of them is there."""
    statements = [f"DROP VIEW IF EXISTS {names.table('outbox_status')}"]
    tables = [table.name.removeprefix(names.prefix) for table in reversed(metadata(names).sorted_tables)]
    if names.dialect == "postgresql":
        statements += [f"DROP FUNCTION IF EXISTS {names.table(name)} CASCADE" for name in FUNCTIONS]
        tables.append(KEYS)
    return [*statements, *(f"DROP TABLE IF EXISTS {names.table(table)}" for table in tables)]
