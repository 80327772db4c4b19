"""`postroom` as if it were of another version: ``another_version.py VERSION COMPATIBLE_FROM arguments…``.

Each version after the real one adds a table, and a column to a table that relays read and write.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from sqlalchemy import inspect

from postroom.cli import main
from postroom.store.schema import ddl, migrations, versions

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from postroom.store.sql.names import Names


def pretend(version: int, compatible_from: int) -> None:
    """Be of this version, whose tables work with code of the other and later ones."""
    for later in range(migrations.LATEST + 1, version + 1):
        migrations.UPGRADES.append(_addition(later))
    vars(ddl).update(VERSION=version, COMPATIBLE_FROM=compatible_from)
    vars(versions).update(VERSION=version)
    vars(migrations).update(LATEST=version, COMPATIBLE_FROM=compatible_from)


def _addition(version: int) -> migrations.Upgrade:
    def add(connection: Connection, names: Names) -> None:
        table, column = names.table("outbox_delivery"), f"added_in_{version}"
        there = {one["name"] for one in inspect(connection).get_columns(names.bare("outbox_delivery"), names.schema)}
        if column not in there:
            connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column} INTEGER NOT NULL DEFAULT 7")
        new = table.replace("outbox_delivery", column)
        connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {new} (id INTEGER NOT NULL PRIMARY KEY)")

    return add


if __name__ == "__main__":
    pretend(int(sys.argv[1]), int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
