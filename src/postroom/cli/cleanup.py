"""``postroom cleanup``: remove what is old and done."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.options import Database, Json, Schema, TablePrefix, days
from postroom.cli.output import counted, print_json, print_text, progress
from postroom.settings import LEAST_LOAD, Settings

Days = Annotated[
    int | None, days("--days", "Keep what is settled for this long. Default: POSTROOM_RETENTION_DAYS, or 7.")
]
InboxDays = Annotated[
    int | None, days("--inbox-days", "Keep inbox marks for this long. Default: POSTROOM_INBOX_RETENTION_DAYS, or 7.")
]

AuditDays = Annotated[
    int | None,
    days("--audit-days", "Keep the audit log for this long. Default: POSTROOM_AUDIT_RETENTION_DAYS, or 365."),
]
Load = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        min=LEAST_LOAD,
        max=1,
        help="Work for this share of the time; 1 for no pauses. Default: POSTROOM_CLEANUP_LOAD, or 0.25.",
    ),
]


def cleanup(
    days: Days = None,
    inbox_days: InboxDays = None,
    audit_days: AuditDays = None,
    load: Load = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Remove what is old and settled.

    Messages and two-phase commits that are settled; marks of inboxes, keys of the idempotency ledger, and the log of
    what operators did. Never what is not sent, nor dead letters. In small batches, with pauses: it may run beside
    everything else.
    """
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    kept = Settings.load(
        retention_days=days, inbox_retention_days=inbox_days, audit_retention_days=audit_days, cleanup_load=load
    )
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin, progress("removed") as tell:
        cleaned = admin.cleanup(
            days=kept.retention_days,
            inbox_days=kept.inbox_retention_days,
            audit_days=kept.audit_retention_days,
            load=kept.cleanup_load,
            progress=tell,
        )
    if as_json:
        print_json(jsonable(cleaned))
        return
    print_text(
        f"removed {counted(cleaned.messages, 'message')} and {counted(cleaned.transactions, 'two-phase commit')} "
        f"settled more than {counted(kept.retention_days, 'day')} ago, "
        f"{counted(cleaned.marks, 'inbox mark')} older than {counted(kept.inbox_retention_days, 'day')}, "
        f"{counted(cleaned.entries, 'expired idempotency key')}, "
        f"and {counted(cleaned.audit, 'audit record')} older than {counted(kept.audit_retention_days, 'day')}"
    )
