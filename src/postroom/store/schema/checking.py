"""Whether the tables are what this version works with, and whether the database's user may do what it is there for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import PrivilegeMissing
from postroom.store.schema import migrations
from postroom.store.schema.grants import check_privileges
from postroom.store.schema.purposes import Purpose

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from postroom.store.sql.names import Names


def check(connection: Connection, names: Names, purpose: str) -> None:
    """Return if all is well; raise a `SchemaError`, or `PrivilegeMissing`, that says what to do otherwise."""
    try:
        migrations.check(connection, names)
    except PrivilegeMissing:
        connection.rollback()  # the next line tells of all that is missing
    check_privileges(connection, names, Purpose(purpose))
