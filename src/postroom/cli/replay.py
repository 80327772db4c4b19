"""``postroom messages replay``: add a changed copy of a message."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from postroom.cli.acting import By, actor_of
from postroom.cli.message_ids import MessageId
from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json, print_text
from postroom.errors import InvalidSetting


def replay(  # noqa: PLR0913, PLR0917 - a command has that many options
    id: MessageId,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Send it to another topic.")] = None,
    payload_file: Annotated[
        str | None,
        typer.Option("--payload-file", metavar="FILE", help="With the payload in this file; - reads standard input."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", metavar="NAME=VALUE", help="With these headers instead of the original's. Repeatable."
        ),
    ] = None,
    discard_original: Annotated[
        bool, typer.Option("--discard-original", help="Remove the original, which must be dead, in the same act.")
    ] = False,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the audit log.")] = "",
    by: By = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Add a copy of a message, with another payload, topic or headers. The original stays as it is."""
    from postroom.admin import UNCHANGED, Admin
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        done = admin.replay(
            id,
            actor=actor_of(by),
            reason=reason,
            payload=UNCHANGED if payload_file is None else _read(payload_file),
            headers=UNCHANGED if header is None else dict(map(_pair, header)),
            topic=UNCHANGED if topic is None else topic,
            discard_original=discard_original,
        )
    if as_json:
        print_json(jsonable(done))
        return
    print_text(f"replayed {done.original} as {done.id}{', and discarded it' if done.discarded else ''}")


def _read(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidSetting(f"--payload-file {file!r} cannot be read: {error.strerror}") from None


def _pair(header: str) -> tuple[str, str]:
    name, found, value = header.partition("=")
    if not found or not name:
        raise InvalidSetting(f"--header {header!r} is not NAME=VALUE")
    return name, value
