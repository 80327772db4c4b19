"""What is kept for those who watch: how many messages went through, by the minute, and each attempt that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table

from postroom.store.schema.columns import Types, number, words

if TYPE_CHECKING:
    from postroom.store.sql.names import Names


def flow(tables: MetaData, names: Names, types: Types) -> Table:
    """One row for each minute in which a process did something of a kind in a queue. Written every few seconds."""
    return Table(
        names.bare("flow"),
        tables,
        Column("minute", BigInteger, primary_key=True, autoincrement=False),  # since 1970, by the database's clock
        Column("queue", types.queue, primary_key=True),
        Column("kind", String(16), primary_key=True),  # rules.flow.FlowKind
        Column("run", BigInteger, primary_key=True, autoincrement=False),  # so that no process writes another's row
        number("messages", BigInteger),
        sqlite_with_rowid=False,
    )


def attempt(tables: MetaData, names: Names, types: Types) -> Table:
    """One row for each attempt that failed, removed with its message. A message that is sent at once has none."""
    return Table(
        names.bare("outbox_attempt"),
        tables,
        Column("position", types.position, primary_key=True, autoincrement=False),
        Column("at", types.moment, primary_key=True, server_default=types.now),
        number("attempt", Integer),
        words("worker", 255),
        words("error_code", 64),
        words("error_message", 512),
        sqlite_with_rowid=False,
    )
