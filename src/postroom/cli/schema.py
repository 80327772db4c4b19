"""``postroom schema``: the tables as SQL."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json
from postroom.errors import InvalidSetting
from postroom.settings import Settings
from postroom.store.schema.purposes import Purpose


class Dialect(StrEnum):
    """The databases that there is SQL for."""

    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"
    SQLITE = "sqlite"


def schema(
    dialect: Annotated[Dialect | None, typer.Option(help="For which database. Default: that of the URL.")] = None,
    grants: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE", help="Print what the database's owner has to grant a role, instead of the tables."
        ),
    ] = None,
    purposes: Annotated[
        list[Purpose] | None,
        typer.Option(
            "--for", help="With --grants: what the role is for; repeat it for several. Default: everything but cdc."
        ),
    ] = None,
    sql: Annotated[bool, typer.Option("--sql", show_default=False, help="Print SQL, as it does anyway.")] = True,  # noqa: ARG001 - as it says
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Print the SQL for the tables, or what to grant a role. For you to run; it connects to no database."""
    from postroom.store.schema.ddl import create_statements
    from postroom.store.schema.grants import EVERYTHING, grant_statements
    from postroom.store.sql.names import Names

    if purposes and grants is None:
        raise InvalidSetting("--for is given without --grants ROLE: say whom to grant it to")
    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    name = dialect.value if dialect else _dialect_of(settings)
    names = Names.of(name, settings.schema, settings.table_prefix)
    if grants is None:
        statements = create_statements(name, names)
    else:
        statements = grant_statements(names, grants, purposes or EVERYTHING)
    if as_json:
        print_json(statements)
    else:
        typer.echo("\n\n".join(f"{statement};" for statement in statements))


def _dialect_of(settings: Settings) -> str:
    if settings.database is None:
        raise InvalidSetting(
            f"no dialect is given: use --dialect ({', '.join(Dialect)}), or --database URL or POSTROOM_DATABASE"
        )
    from postroom.store.connections.urls import dialect_of_url

    return dialect_of_url(settings.database)
