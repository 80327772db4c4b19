"""The steps from one version of the tables to the next. Each is safe to run again after it was interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import inspect
from sqlalchemy.schema import CreateTable

from postroom.store.schema.ddl import indexes_of
from postroom.store.schema.guards import FORMER_CHECKS, checks, repairs
from postroom.store.schema.tables import metadata

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from postroom.store.sql.names import Names

SAGA_TABLES = ("saga", "saga_step", "saga_event")
TWOPHASE_TABLES = ("twophase", "twophase_scope")
WATCHING_TABLES = ("flow", "outbox_attempt")
STREAM_TABLES = ("outbox_stream",)


def guard_tables(connection: Connection, names: Names) -> None:
    """Version 2: the tables refuse rows that no relay could read. Messages that are there already stay as they are."""
    for statement in repairs(names):
        connection.exec_driver_sql(statement)
    for table in ("outbox", "outbox_delivery"):
        there = {one["name"] for one in inspect(connection).get_check_constraints(names.bare(table), names.schema)}
        for name, condition in checks(names, table).items():
            if name not in there:
                _add_check(connection, names, table, f"CONSTRAINT {names.quoted(name)} CHECK ({condition})")


def add_sagas(connection: Connection, names: Names) -> None:
    """Version 3: the tables of sagas."""
    _add_tables(connection, names, SAGA_TABLES)


def add_twophase(connection: Connection, names: Names) -> None:
    """Version 4: the log of two-phase commits."""
    _add_tables(connection, names, TWOPHASE_TABLES)


def add_watching(connection: Connection, names: Names) -> None:
    """Version 5: counters by the minute, and attempts that failed."""
    _add_tables(connection, names, WATCHING_TABLES)


def add_stream(connection: Connection, names: Names) -> None:
    """Version 6: on PostgreSQL, messages without a delivery, and who reads them from the write-ahead log."""
    if names.dialect == "postgresql":
        connection.exec_driver_sql(
            f"ALTER TABLE {names.table('outbox')} ADD COLUMN IF NOT EXISTS streamed boolean NOT NULL DEFAULT false"
        )
        _add_tables(connection, names, STREAM_TABLES)


def lighten_guards(connection: Connection, names: Names) -> None:
    """Version 7: on PostgreSQL, triggers refuse bad rows, which are made afterwards, instead of check constraints."""
    if names.dialect == "postgresql":
        for table, former in FORMER_CHECKS.items():
            drops = ", ".join(f"DROP CONSTRAINT IF EXISTS {names.quoted(names.bare(check))}" for check in former)
            connection.exec_driver_sql(f"ALTER TABLE {names.table(table)} {drops}")


def _add_tables(connection: Connection, names: Names, added: Collection[str]) -> None:
    for table in metadata(names).tables.values():
        if table.name in map(names.bare, added):
            if not inspect(connection).has_table(table.name, schema=table.schema):
                connection.execute(CreateTable(table))
            for index in indexes_of(table):
                index.create(connection, checkfirst=True)


def _add_check(connection: Connection, names: Names, table: str, check: str) -> None:
    """Add a check for new rows. Existing rows are not checked if the database allows that."""
    addition = f"ALTER TABLE {names.table(table)} ADD {check}"
    if names.dialect == "postgresql":
        addition = f"{addition} NOT VALID"
    elif getattr(connection.dialect, "is_mariadb", False):
        addition = f"SET STATEMENT check_constraint_checks = 0 FOR {addition}"
    connection.exec_driver_sql(addition)
