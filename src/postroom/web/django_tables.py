"""Create the tables in a migration of a Django project that does without the application `postroom.django`."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from postroom.settings import Settings
from postroom.store.connections.kinds import sync_kind
from postroom.store.schema.ddl import create_statements
from postroom.store.sql.db_errors import is_missing_table
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, run


def create_tables(_apps: Any, schema_editor: Any, schema: str | None = None, table_prefix: str | None = None) -> None:
    """Create Postroom's tables if there are none, in a migration: ``migrations.RunPython(create_tables, …noop)``.

    That also creates them in test databases. Tables that exist are left as they are: `postroom init` upgrades them.
    """
    connection = schema_editor.connection
    settings = Settings.load(schema=schema, table_prefix=table_prefix)
    names = Names.of(connection.vendor, settings.schema, settings.table_prefix)
    if _has_tables(connection, names):
        return
    with connection.cursor() as cursor:
        for statement in create_statements(names.dialect, names):
            cursor.execute(statement)


def _has_tables(connection: Any, names: Names) -> bool:
    table = names.mapping()["schema_version"]
    try:
        with transaction.atomic(using=connection.alias):
            run(_read_version(table), sync_kind(connection, "").execute)
    except Exception as error:
        if not is_missing_table(error):
            raise
        return False
    return True


def _read_version(table: str) -> Any:
    return (yield Query(f"SELECT version FROM {table}"))  # noqa: S608 - a name of ours, quoted
