"""The options that commands share."""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import UUID

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
HttpPort = Annotated[
    int | None,
    typer.Option(
        "--http-port", metavar="PORT", help="Serve /metrics, /livez and /readyz there. Else OUTBOX_HTTP_PORT."
    ),
]
HttpHost = Annotated[
    str | None,
    typer.Option(
        "--http-host", metavar="HOST", help="The address to serve them at (127.0.0.1). Else OUTBOX_HTTP_HOST."
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option("--log-level", help="Log nothing below this level (info). Else POSTROOM_LOG_LEVEL."),
]
LogFormat = Annotated[
    Literal["json", "text"] | None,
    typer.Option(
        "--log-format", help="How to write logs (text on a terminal, json elsewhere). Else POSTROOM_LOG_FORMAT."
    ),
]
Tracebacks = Annotated[
    bool | None,
    typer.Option(
        "--tracebacks/--no-tracebacks",
        help="Log the traceback when one of your functions fails (on a terminal only). It may quote payloads. "
        "Else POSTROOM_TRACEBACKS.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _message_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a message id: give a UUID, as the lists show it") from None


MessageId = Annotated[UUID, typer.Argument(metavar="ID", parser=_message_id, help="The message's id.")]
MessageIds = Annotated[list[UUID] | None, typer.Argument(metavar="ID", parser=_message_id, help="The messages' ids.")]
