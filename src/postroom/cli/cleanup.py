"""``postroom cleanup``: remove what is old and done."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from postroom.cli.databases import checked
from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json, print_text, progress
from postroom.settings import MOST_DAYS, Settings


def cleanup(
    days: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_DAYS,
            metavar="DAYS",
            help="Keep settled messages for this long. Default: POSTROOM_RETENTION_DAYS, or 7.",
        ),
    ] = None,
    inbox_days: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MOST_DAYS,
            metavar="DAYS",
            help="Keep inbox marks for this long. Default: POSTROOM_INBOX_RETENTION_DAYS, or 7.",
        ),
    ] = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Remove old settled messages, inbox marks and idempotency keys.

    The marks are those of inboxes, the keys those of the idempotency ledger. Never what is not sent, nor dead
    letters. In small batches: it may run beside everything else.
    """
    from postroom import retention

    settings = Settings.load(
        database=database,
        schema=schema,
        table_prefix=table_prefix,
        retention_days=days,
        inbox_retention_days=inbox_days,
    )
    kept, marks_kept = settings.retention_days, settings.inbox_retention_days
    with checked(settings) as store, progress("removed") as tell:
        cleaned = store.run(retention.clean(store.names, days=kept, inbox_days=marks_kept, tell=tell))
    if as_json:
        print_json(asdict(cleaned))
        return
    print_text(
        f"removed {cleaned.messages:,} messages settled more than {kept} days ago, "
        f"{cleaned.marks:,} inbox marks older than {marks_kept} days, "
        f"and {cleaned.entries:,} expired idempotency keys"
    )
