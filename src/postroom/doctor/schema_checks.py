"""Looks at the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.checks import schema
from postroom.rules.checks.findings import skip
from postroom.rules.ordering import LANES

if TYPE_CHECKING:
    from postroom.doctor.surroundings import Surroundings
    from postroom.rules.checks.findings import Finding
    from postroom.store.admin.inspection.tables import Version


def version(at: Surroundings) -> Finding:
    """The version on record."""
    from postroom.store.schema.versions import VERSION

    found = _found(at)
    return schema.version(found.number, VERSION, has_tables=found.has_tables)


def parts(at: Surroundings) -> Finding:
    """Tables, columns and indexes."""
    from postroom.store.admin.inspection import tables

    if not _found(at).has_tables:
        return skip("there are no tables: see SCHEMA_VERSION")
    return schema.tables(*at.call(tables.missing_parts))


def view(at: Surroundings) -> Finding:
    """The view `outbox_status`."""
    from postroom.store.admin.inspection import tables

    if not _found(at).has_tables:
        return skip("there are no tables: see SCHEMA_VERSION")
    return schema.view(at.call(tables.view_problem))


def function(at: Surroundings) -> Finding:
    """PostgreSQL's function `add`."""
    from postroom.store.admin.inspection import tables

    if at.dialect != "postgresql":
        return skip("only PostgreSQL has the function add")
    if not _found(at).has_tables:
        return skip("there are no tables: see SCHEMA_VERSION")
    return schema.function(**at.call(tables.add_function_found)._asdict())


def lanes(at: Surroundings) -> Finding:
    """The lanes of each queue."""
    from postroom.store.admin.inspection import tables

    return schema.lanes(at.call(tables.lanes), LANES)


def storage(at: Surroundings) -> Finding:
    """How the tables are stored."""
    from postroom.store.admin.inspection import tables

    if at.dialect == "sqlite":
        return skip("SQLite has no storage parameters")
    if not _found(at).has_tables:
        return skip("there are no tables: see SCHEMA_VERSION")
    return schema.storage(*at.call(tables.storage), remedy=_STORAGE[at.dialect])


_STORAGE = {
    "postgresql": schema.REPAIR,
    "mysql": "ALTER TABLE … ENGINE = InnoDB, CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
}


def guards(at: Surroundings) -> Finding:
    """Check constraints, or SQLite's triggers."""
    from postroom.store.admin.inspection import tables

    if not _found(at).has_tables:
        return skip("there are no tables: see SCHEMA_VERSION")
    return schema.guards(at.call(tables.missing_guards))


def _found(at: Surroundings) -> Version:
    from postroom.store.admin.inspection import tables

    return at.once("version", lambda: at.call(tables.version))


def privileges(at: Surroundings) -> Finding:
    """What the database's user lacks for what it is for."""
    from postroom.store.connections.urls import parse
    from postroom.store.schema.grants import missing_rights

    if at.dialect == "sqlite":
        return schema.no_privileges()
    lacking = {purpose.value: at.read(missing_rights(at.names, purpose)) for purpose in at.purposes}
    if not any(lacking.values()) and not _found(at).has_tables:
        return skip("there are no tables: see SCHEMA_VERSION")
    return schema.privileges(lacking, parse(at.settings.database or "").username or "")
