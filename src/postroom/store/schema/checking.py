"""Check that the tables are those of this version, and that the database's user has the privileges it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import PrivilegeMissing
from postroom.store.schema import versions
from postroom.store.schema.grants import check_privileges
from postroom.store.sql.db_errors import is_denied, is_missing_table
from postroom.store.sql.steps import Query

if TYPE_CHECKING:
    from postroom.store.schema.purposes import Purpose
    from postroom.store.sql.names import Names
    from postroom.store.sql.steps import Steps

_WHERE = {
    "postgresql": "SELECT current_database()",
    "mysql": "SELECT database()",
    "sqlite": "SELECT file FROM pragma_database_list WHERE name = 'main'",
}
"""What each database calls itself."""


def check(names: Names, *purposes: Purpose) -> Steps[None]:
    """Return if all is well; otherwise raise a `SchemaError` or `PrivilegeMissing` that says what to do.

    Only reads. Tables without a version, as Alembic makes them, are assumed to be right.
    """
    try:
        yield from _check_version(names)
    except PrivilegeMissing:
        if not purposes:
            raise
    for purpose in purposes:  # names everything that is missing
        yield from check_privileges(names, purpose)


def _check_version(names: Names) -> Steps[None]:
    listed = yield from _listed_versions(names)
    if listed:
        versions.judge(listed, names, "")
    elif not (yield from _has_outbox(names)):
        found = yield Query(_WHERE[names.dialect])
        versions.judge(listed, names, found.rows[0][0])


def _listed_versions(names: Names) -> Steps[frozenset[int]]:
    try:
        found = yield Query(f"SELECT version FROM {names.table('schema_version')}")
    except Exception as error:
        if is_missing_table(error):
            return frozenset()
        if is_denied(error):
            raise PrivilegeMissing(versions.unreadable(names)) from error
        raise
    return frozenset(version for (version,) in found.rows)


def _has_outbox(names: Names) -> Steps[bool]:
    try:
        yield Query(f"SELECT 1 FROM {names.table('outbox')} WHERE 1 = 0")
    except Exception as error:
        if is_missing_table(error):
            return False
        if not is_denied(error):  # which it can only be if it is there
            raise
    return True
