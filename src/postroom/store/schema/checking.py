"""Check that the tables are those of this version, and that the database's user has the privileges it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import PrivilegeMissing
from postroom.store.schema import versions
from postroom.store.schema.grants import check_privileges

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from postroom.store.schema.purposes import Purpose
    from postroom.store.sql.names import Names


def check(connection: Connection, names: Names, *purposes: Purpose) -> None:
    """Return if all is well; otherwise raise a `SchemaError` or `PrivilegeMissing` that says what to do."""
    try:
        versions.check(connection, names)
    except PrivilegeMissing:
        connection.rollback()  # the next line names everything that is missing
    for purpose in purposes:
        check_privileges(connection, names, purpose)
