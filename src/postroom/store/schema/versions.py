"""Which version the tables have, and whether this Postroom works with it. It loads nothing that describes tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from postroom.errors import PrivilegeMissing, SchemaMissing, SchemaNewer, SchemaOutdated
from postroom.rules.schema_version import Fit, fit
from postroom.store.sql.db_errors import is_denied

if TYPE_CHECKING:
    from postroom.store.sql.names import Names

VERSION = 7
"""The version of the tables that this Postroom works with. Whoever changes them raises it, and adds a step to
`upgrades`."""
COMPATIBLE_FROM = 4
"""The oldest version whose code works with these tables, see `postroom.rules.schema_version`. It stays when a version
only adds what older code need not know: tables, columns with a default, indexes. It becomes `VERSION` with anything
else."""


def check(connection: Connection, names: Names) -> None:
    """Return if this Postroom works with the tables; otherwise raise a `SchemaError` that says what to do.

    Only reads. Tables without a version, as Alembic makes them, are assumed to be right.
    """
    listed = listed_versions(connection, names)
    outbox = names.bare("outbox")
    if not listed and inspect(connection).has_table(outbox, schema=names.schema):
        return
    match fit(listed, VERSION):
        case Fit.FITS:
            pass
        case Fit.UNFINISHED:
            place = outbox if names.schema is None else f"{names.schema}.{outbox}"
            database = connection.engine.url.database or "this one"  # the name alone: URLs hold passwords
            raise SchemaMissing(
                f"Postroom's tables are not in the database {database} (looked for {place}): run `postroom init` on "
                "it, or call postroom.schema.create"
            )
        case Fit.OUTDATED:
            raise SchemaOutdated(
                f"Postroom's tables are at version {max(listed)} ({names.table('schema_version')}), "
                f"this Postroom needs version {VERSION}: run `postroom init`"
            )
        case Fit.NEWER:
            raise SchemaNewer(newer(max(listed), names))
        case never:
            assert_never(never)


def current_version(connection: Connection, names: Names) -> int | None:
    """The version of the tables; None if none is recorded: no tables, or Alembic made them."""
    return max(listed_versions(connection, names), default=None)


def listed_versions(connection: Connection, names: Names) -> frozenset[int]:
    """The versions whose code works with the tables; empty if there are none, or Alembic made them."""
    table = names.table("schema_version")
    try:
        if not inspect(connection).has_table(names.bare("schema_version"), schema=names.schema):
            return frozenset()
        return frozenset(connection.scalars(text(f"SELECT version FROM {table}")))
    except DBAPIError as error:
        if not is_denied(error):
            raise
        raise PrivilegeMissing(
            f"the database's user may not read {table}: have the tables' owner run what "
            "`postroom schema --grants ROLE` prints; creating and upgrading the tables is for the owner"
        ) from error


def newer(version: int, names: Names) -> str:
    """Why tables of a newer version are of no use."""
    return (
        f"Postroom's tables are at version {version} ({names.table('schema_version')}), "
        f"and no longer work with this Postroom, which knows versions up to {VERSION}: upgrade postroom"
    )
