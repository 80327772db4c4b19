"""``postroom cleanup``: remove what is old and done."""

from __future__ import annotations

from typing import Annotated

from postroom.cli.options import Database, Json, Schema, TablePrefix, days
from postroom.cli.output import counted, print_json, print_text, progress
from postroom.settings import Settings

Days = Annotated[
    int | None, days("--days", "Keep what is settled for this long. Default: POSTROOM_RETENTION_DAYS, or 7.")
]
InboxDays = Annotated[
    int | None, days("--inbox-days", "Keep inbox marks for this long. Default: POSTROOM_INBOX_RETENTION_DAYS, or 7.")
]


def cleanup(
    days: Days = None,
    inbox_days: InboxDays = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Remove old messages, transactions, marks and keys.

    Messages and two-phase commits that are settled; marks of inboxes, and keys of the idempotency ledger.
    Never what is not sent, nor dead letters. In small batches: it may run beside everything else.
    """
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    kept = Settings.load(retention_days=days, inbox_retention_days=inbox_days)
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin, progress("removed") as tell:
        cleaned = admin.cleanup(days=kept.retention_days, inbox_days=kept.inbox_retention_days, progress=tell)
    if as_json:
        print_json(jsonable(cleaned))
        return
    print_text(
        f"removed {counted(cleaned.messages, 'message')} and {counted(cleaned.transactions, 'two-phase commit')} "
        f"settled more than {counted(kept.retention_days, 'day')} ago, "
        f"{counted(cleaned.marks, 'inbox mark')} older than {counted(kept.inbox_retention_days, 'day')}, "
        f"and {counted(cleaned.entries, 'expired idempotency key')}"
    )
