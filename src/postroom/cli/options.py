"""The options that commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="The database: sqlite:///app.db, postgresql://…, mysql://… or mariadb://…. Else POSTROOM_DATABASE.",
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema", metavar="NAME", help="The schema of Postroom's tables (PostgreSQL: postroom). Else POSTROOM_SCHEMA."
    ),
]
TablePrefix = Annotated[
    str | None,
    typer.Option(
        "--table-prefix",
        metavar="PREFIX",
        help="What the tables' names begin with (PostgreSQL: nothing; else postroom_). Else POSTROOM_TABLE_PREFIX.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
