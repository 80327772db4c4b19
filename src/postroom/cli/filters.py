"""The options that say which messages, beyond topic, key and code."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from postroom.errors import InvalidSetting

Queue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only in this queue.")]
Type = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only of this type.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only from this time on, as in 2030-01-31T12:00. UTC without a zone."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only from before this time.")]
Error = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", help="Only with this text in the last error's code or message, in any case."
    ),
]
Containing = Annotated[
    str | None, typer.Option("--containing", metavar="TEXT", help="Only with this text in the payload.")
]
Fingerprint = Annotated[
    str | None,
    typer.Option("--fingerprint", metavar="TEXT", help="Only with this fingerprint, as `dead groups` prints it."),
]


def moment(option: str, given: str | None) -> datetime | None:
    """A time as the command line gives it. Raises `InvalidSetting`."""
    if given is None:
        return None
    try:
        read = datetime.fromisoformat(given)
    except ValueError:
        raise InvalidSetting(
            f"{option} {given!r} is not a time: write it like 2030-01-31T12:00 or 2030-01-31"
        ) from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)
