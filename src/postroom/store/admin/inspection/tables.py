"""Facts about the tables: what is missing, and what differs from what this version creates."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, inspect, text

from postroom.store.schema.ddl import add_function
from postroom.store.schema.guards import checks, trigger_names
from postroom.store.schema.partitions import is_partitioned
from postroom.store.schema.tables import STORAGE, metadata
from postroom.store.schema.versions import current_version
from postroom.store.sql.db_errors import is_denied, is_missing_table, reason
from postroom.store.sql.operations import DEFAULT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.store.sql.names import Names

_GUARDED = ("outbox", "outbox_delivery", "saga", "saga_step", "twophase")


class Version(NamedTuple):
    """The version on record, and whether there are tables."""

    number: int | None
    has_tables: bool


class MissingParts(NamedTuple):
    """What is not there, how many tables there should be, and how many of them the database's user may not see."""

    missing: list[str]
    expected: int
    hidden: int


class AddFunction(NamedTuple):
    """PostgreSQL's function `add`."""

    there: bool = False
    is_ours: bool = False
    is_public: bool = False


def version(connection: Connection, names: Names) -> Version:
    found = current_version(connection, names)
    return Version(found, inspect(connection).has_table(names.bare("outbox"), schema=names.schema))


def missing_parts(connection: Connection, names: Names) -> MissingParts:
    """The tables, columns and indexes that are not there."""
    inspector = inspect(connection)
    there = set(inspector.get_table_names(schema=names.schema))
    expected = metadata(names).tables.values()
    missing: list[str] = []
    hidden = 0
    partitioned = names.dialect == "postgresql" and is_partitioned(connection, names)
    if partitioned and names.bare("outbox_key") not in there:
        missing.append(f"table {names.bare('outbox_key')}")
    for table in expected:
        if names.dialect == "mysql" and _created_as(connection, names, table.name) is None:
            hidden += 1
            continue
        if table.name not in there:
            missing.append(f"table {table.name}")
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name, schema=names.schema)}
        missing += [f"column {table.name}.{name}" for name in table.columns.keys() if name not in columns]  # noqa: SIM118 - iterating gives columns
        indexes = {index["name"] for index in inspector.get_indexes(table.name, schema=names.schema)}
        # No unique index spans partitions: each has its own, and outbox_key keeps idempotency keys unique.
        wanted = [index.name for index in table.indexes if not (partitioned and index.unique)]
        missing += sorted(f"index {name}" for name in wanted if name not in indexes)
    return MissingParts(missing, len(expected), hidden)


def view_problem(connection: Connection, names: Names) -> str | None:
    """Why the view cannot be read."""
    try:
        connection.execute(text(f"SELECT * FROM {names.table('outbox_status')} WHERE 1 = 0"))
    except Exception as error:
        if is_denied(error):
            raise
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
    """The triggers, or MySQL's check constraints, that are not there."""
    if names.dialect == "mysql":
        created = {table: _created_as(connection, names, names.bare(table)) or "" for table in _GUARDED}
        return sorted(
            name
            for table, text_ in created.items()
            for name in checks(names, table)
            if text_ and names.quoted(name) not in text_
        )
    if names.dialect == "sqlite":
        found = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'"))
        return sorted(trigger_names(names) - {name for [name] in found})
    # Not information_schema, which hides what belongs to another role's tables.
    found = connection.execute(
        text(
            "SELECT c.conname FROM pg_constraint c JOIN pg_namespace n ON n.oid = c.connamespace "
            "WHERE c.contype = 'c' AND n.nspname = coalesce(:schema, 'public') UNION ALL "
            "SELECT tgname FROM pg_trigger WHERE tgrelid IN (to_regclass(:outbox), to_regclass(:delivery))"
        ),
        {"schema": names.schema, "outbox": names.table("outbox"), "delivery": names.table("outbox_delivery")},
    )
    wanted = trigger_names(names).union(*(checks(names, table) for table in _GUARDED))
    return sorted(wanted - {name for [name] in found})


def _created_as(connection: Connection, names: Names, table: str) -> str | None:
    """MySQL's statement for a table, empty if there is none; None if the database's user may not see it."""
    schema = "" if names.schema is None else f"{names.quoted(names.schema)}."
    try:
        return str(connection.exec_driver_sql(f"SHOW CREATE TABLE {schema}{names.quoted(table)}").one()[1])
    except Exception as error:
        if is_denied(error):
            return None
        if is_missing_table(error):
            return ""
        raise
