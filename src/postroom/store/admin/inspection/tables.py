"""Facts about the tables: what is missing, and what differs from what this version creates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, inspect, text

from postroom.store.schema.ddl import add_function
from postroom.store.schema.guards import checks, triggers
from postroom.store.schema.migrations import current_version
from postroom.store.schema.tables import STORAGE, metadata
from postroom.store.sql.db_errors import reason
from postroom.store.sql.operations import DEFAULT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.store.sql.names import Names

_GUARDED = ("outbox", "outbox_delivery", "saga", "saga_step", "twophase")


class Version(NamedTuple):
    """The version on record, and whether there are tables."""

    number: int | None
    has_tables: bool


class AddFunction(NamedTuple):
    """PostgreSQL's function `add`."""

    there: bool = False
    is_ours: bool = False
    is_public: bool = False


def version(connection: Connection, names: Names) -> Version:
    found = current_version(connection, names)
    return Version(found, inspect(connection).has_table(names.bare("outbox"), schema=names.schema))


def missing_parts(connection: Connection, names: Names) -> tuple[list[str], int]:
    """The tables, columns and indexes that are not there; and how many tables there should be."""
    inspector = inspect(connection)
    there = set(inspector.get_table_names(schema=names.schema))
    expected = metadata(names).tables.values()
    missing: list[str] = []
    for table in expected:
        if table.name not in there:
            missing.append(f"table {table.name}")
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name, schema=names.schema)}
        missing += [f"column {table.name}.{name}" for name in table.columns.keys() if name not in columns]  # noqa: SIM118 - iterating gives columns
        indexes = {index["name"] for index in inspector.get_indexes(table.name, schema=names.schema)}
        missing += sorted(f"index {index.name}" for index in table.indexes if index.name not in indexes)
    return missing, len(expected)


def view_problem(connection: Connection, names: Names) -> str | None:
    """Why the view cannot be read."""
    try:
        connection.execute(text(f"SELECT * FROM {names.table('outbox_status')} WHERE 1 = 0"))
    except Exception as error:  # noqa: BLE001 - whatever it is, this is what was asked for
        connection.rollback()
        return reason(error)
    return None


def add_function_found(connection: Connection, names: Names) -> AddFunction:
    public = "EXISTS (SELECT 1 FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee = 0)"
    found = connection.execute(
        text(
            f"SELECT p.prosrc, p.prosecdef, {public} FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
            "WHERE n.nspname = :schema AND p.proname = :name"
        ),
        {"schema": names.schema, "name": names.bare("add")},
    ).all()
    if not found:
        return AddFunction()
    _, body, _ = add_function(names)[0].split("$postroom$")
    source, is_definer, is_public = found[0]
    return AddFunction(there=True, is_ours=is_definer and source.strip() == body.strip(), is_public=is_public)


def lanes(connection: Connection, names: Names) -> dict[str, int]:
    """How many lanes each queue has; the default one in any case."""
    table = names.table("outbox_lane")
    found = connection.execute(text(f"SELECT queue, count(*) FROM {table} GROUP BY queue"))
    return {DEFAULT_QUEUE: 0} | {queue: int(count) for queue, count in found}


def storage(connection: Connection, names: Names) -> tuple[dict[str, str], Mapping[str, str]]:
    """How tables are stored, and how they should be."""
    if names.dialect == "postgresql":
        found = connection.scalar(
            text("SELECT reloptions FROM pg_class WHERE oid = to_regclass(:table)"),
            {"table": names.table("outbox_delivery")},
        )
        options = dict(one.split("=", 1) for one in found or ())
        return options, {name: str(value) for name, value in STORAGE.items()}
    bare = [table.name for table in metadata(names).tables.values()]
    rows = connection.execute(
        text(
            "SELECT table_name, engine, table_collation FROM information_schema.tables "
            "WHERE table_schema = coalesce(:schema, database())"
        ),
        {"schema": names.schema},
    )
    stored = {name: f"{engine}, {collation}" for name, engine, collation in rows if name in bare}
    return stored, dict.fromkeys(stored, "InnoDB, utf8mb4_bin")


def missing_guards(connection: Connection, names: Names) -> list[str]:
    """The check constraints, or SQLite's triggers, that are not there."""
    if names.dialect == "sqlite":
        wanted = {statement.split('"')[1] for statement in triggers(names) if statement.startswith("CREATE")}
        found = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
    else:
        wanted = {name for table in _GUARDED for name in checks(names, table)}
        here = "database()" if names.dialect == "mysql" else "'public'"
        found = connection.execute(
            text(
                "SELECT constraint_name FROM information_schema.table_constraints "
                f"WHERE constraint_type = 'CHECK' AND table_schema = coalesce(:schema, {here})"
            ),
            {"schema": names.schema},
        )
    return sorted(wanted - {name for [name] in found})
