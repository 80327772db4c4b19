"""Which version the tables have, and whether this Postroom works with it. It loads nothing that describes tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from postroom.errors import PrivilegeMissing, SchemaMissing, SchemaNewer, SchemaOutdated
from postroom.rules.schema_version import Fit, fit
from postroom.store.sql.db_errors import is_denied

if TYPE_CHECKING:
    from sqlalchemy import Connection

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

    For what has an open transaction: it only reads, and nothing that it reads can fail there. See `checking`.
    """
    listed = listed_versions(connection, names)
    if listed or not _has_table(connection, names, "outbox"):
        judge(listed, names, connection.engine.url.database)  # the name alone: URLs hold passwords


def judge(listed: frozenset[int], names: Names, database: str | None) -> None:
    """Return if this Postroom works with tables that list these versions; otherwise raise a `SchemaError`."""
    match fit(listed, VERSION):
        case Fit.FITS:
            pass
        case Fit.UNFINISHED:
            outbox = names.bare("outbox")
            place = outbox if names.schema is None else f"{names.schema}.{outbox}"
            raise SchemaMissing(
                f"Postroom's tables are not in the database {database or 'this one'} (looked for {place}): run "
                "`postroom init` on it, or call postroom.schema.create"
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
    from sqlalchemy import text  # whoever has a connection has loaded it
    from sqlalchemy.exc import DBAPIError

    try:
        if not _has_table(connection, names, "schema_version"):
            return frozenset()
        return frozenset(connection.scalars(text(f"SELECT version FROM {names.table('schema_version')}")))
    except DBAPIError as error:
        if not is_denied(error):
            raise
        raise PrivilegeMissing(unreadable(names)) from error


def _has_table(connection: Connection, names: Names, table: str) -> bool:
    from sqlalchemy import inspect

    return inspect(connection).has_table(names.bare(table), schema=names.schema)


def unreadable(names: Names) -> str:
    """Why the version cannot be read."""
    return (
        f"the database's user may not read {names.table('schema_version')}: have the tables' owner run what "
        "`postroom schema --grants ROLE` prints; creating and upgrading the tables is for the owner"
    )


def newer(version: int, names: Names) -> str:
    """Why tables of a newer version are of no use."""
    return (
        f"Postroom's tables are at version {version} ({names.table('schema_version')}), "
        f"and no longer work with this Postroom, which knows versions up to {VERSION}: upgrade postroom"
    )
