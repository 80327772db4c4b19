"""The options that commands share."""

from __future__ import annotations

from typing import Annotated, Literal

from postroom.cli.option import Option, option
from postroom.settings import MOST_DAYS

Database = Annotated[
    str | None,
    option(
        "--database",
        metavar="URL",
        help="The database: sqlite:///app.db, postgresql://…, mysql://… or mariadb://…. Default: POSTROOM_DATABASE.",
    ),
]
Schema = Annotated[
    str | None,
    option(
        "--schema",
        metavar="NAME",
        help="Schema of Postroom's tables. Default: POSTROOM_SCHEMA, or postroom on PostgreSQL.",
    ),
]
TablePrefix = Annotated[
    str | None,
    option(
        "--table-prefix",
        metavar="PREFIX",
        help="Prefix of the tables' names. Default: POSTROOM_TABLE_PREFIX, or postroom_ (none on PostgreSQL).",
    ),
]
HttpPort = Annotated[
    int | None,
    option(
        "--http-port",
        metavar="PORT",
        help="Serve /metrics, /livez and /readyz on this port. Default: POSTROOM_HTTP_PORT.",
    ),
]
HttpHost = Annotated[
    str | None,
    option("--http-host", metavar="HOST", help="Address to serve them at. Default: POSTROOM_HTTP_HOST, or 127.0.0.1."),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    option("--log-level", help="Log nothing below this level. Default: POSTROOM_LOG_LEVEL, or info."),
]
LogFormat = Annotated[
    Literal["json", "text"] | None,
    option(
        "--log-format",
        help="How to write logs. Default: POSTROOM_LOG_FORMAT, or text on a terminal and json elsewhere.",
    ),
]
Tracebacks = Annotated[
    bool | None,
    option(
        "--tracebacks/--no-tracebacks",
        help="Log the traceback when one of your functions fails; it may quote payloads. Default: "
        "POSTROOM_TRACEBACKS, or on a terminal only.",
    ),
]
Json = Annotated[bool, option("--json", help="Print JSON.")]
Limit = Annotated[int, option("--limit", min=1, max=100_000, metavar="N", help="At most this many.")]
Before = Annotated[
    int | None,
    option(
        "--before",
        min=1,
        max=2**63 - 1,
        metavar="POSITION",
        help="Only messages before this position, for the next page.",
    ),
]
Topic = Annotated[str | None, option("--topic", metavar="TOPIC", help="Only this topic.")]
Key = Annotated[str | None, option("--key", metavar="KEY", help="Only this ordering key.")]
Code = Annotated[str | None, option("--code", metavar="CODE", help="Only this reason code.")]


def days(name: str, help: str) -> Option:
    """An option that takes a number of days."""
    return option(name, min=0, max=MOST_DAYS, metavar="DAYS", help=help)


FailedDaysAgo = Annotated[int | None, days("--older-than", "Only those that failed more than this many days ago.")]
AddedDaysAgo = Annotated[int | None, days("--older-than", "Only those that were added more than this many days ago.")]
