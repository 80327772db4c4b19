"""``postroom schema``: the tables as SQL."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json
from postroom.errors import InvalidSetting
from postroom.settings import Settings


class Dialect(StrEnum):
    """The databases that there is SQL for."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"
    SQLITE = "sqlite"


def schema(
    dialect: Annotated[Dialect | None, typer.Option(help="For which database. Default: that of the URL.")] = None,
    sql: Annotated[bool, typer.Option("--sql", show_default=False, help="Print SQL, as it does anyway.")] = True,  # noqa: ARG001 - as it says
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Print the SQL that creates Postroom's tables. For you to run; it connects to no database."""
    from postroom.store.ddl import create_statements
    from postroom.store.names import Names

    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    name = dialect.value if dialect else _dialect_of(settings)
    statements = create_statements(name, Names.of(name, settings.schema, settings.table_prefix))
    if as_json:
        print_json(statements)
    else:
        typer.echo("\n\n".join(f"{statement};" for statement in statements))


def _dialect_of(settings: Settings) -> str:
    if settings.database is None:
        raise InvalidSetting(
            f"no dialect is given: use --dialect ({', '.join(Dialect)}), or --database URL or POSTROOM_DATABASE"
        )
    from postroom.store.urls import dialect_of_url

    return dialect_of_url(settings.database)
