"""``postroom status``: how many messages are in which state."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from postroom import insight
from postroom.cli.databases import checked
from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json, print_table
from postroom.settings import Settings

if TYPE_CHECKING:
    from postroom.insight import Status
    from postroom.store.stores import BlockingStore

MEANINGS = {
    "pending": "to be sent now",
    "sending": "a relay has it",
    "waiting": "for its time, or for its next try",
    "dead": "given up, kept for an operator",
    "sent": "the broker has it",
    "expired": "its time was over before it was sent",
    "held": "of the pending: behind a failed or dead one of their key",
}


def status(
    database: Database = None, schema: Schema = None, table_prefix: TablePrefix = None, as_json: Json = False
) -> None:
    """Count the messages in each state. Also tells for how long the oldest has been waiting to leave."""
    with checked(Settings.load(database=database, schema=schema, table_prefix=table_prefix)) as store:
        found = read(store)
    if as_json:
        print_json(asdict(found))
    else:
        show(found)


def read(store: BlockingStore) -> Status:
    """The figures, from the database."""
    from postroom.store.watching import Watching

    return store.run(insight.status(Watching(store.names)))


def show(found: Status) -> None:
    """The figures for people."""
    rows = [(name, getattr(found, name), meaning) for name, meaning in MEANINGS.items()]
    if found.pending:
        rows[0] = ("pending", found.pending, f"to be sent now; the oldest for {found.oldest_pending_seconds:,.0f} s")
    print_table(("status", "messages", ""), rows, right=("messages",))
