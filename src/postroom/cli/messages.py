"""``postroom messages``: look at messages, never at their payloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom import insight
from postroom.cli.databases import checked
from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import on_terminal, print_json, print_table, print_text
from postroom.rules.lifecycle import State
from postroom.settings import Settings

if TYPE_CHECKING:
    from postroom.store.stores import BlockingStore

COLUMNS = {
    "position": "position",
    "status": "status",
    "topic": "topic",
    "key": "key",
    "attempts": "tries",
    "created_at": "created (UTC)",
    "error_code": "error",
    "id": "id",
}
"""What people are shown of a message → its title. JSON has all columns of the view `outbox_status`."""


def list_messages(
    status: Annotated[State | None, typer.Option(help="Only messages in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many at the most.")] = 50,
    before: Annotated[
        int | None,
        typer.Option(min=1, max=2**63 - 1, metavar="POSITION", help="Only older ones: those before this position."),
    ] = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """List messages, the newest first."""
    with checked(Settings.load(database=database, schema=schema, table_prefix=table_prefix)) as store:
        found = read(store, status, limit, before)
    if as_json:
        print_json(found)
        return
    show(found)
    if on_terminal() and len(found) == limit:
        print_text(f"Older ones: --before {found[-1]['position']}")


def read(
    store: BlockingStore, status: State | None = None, limit: int = 50, before: int | None = None
) -> list[dict[str, Any]]:
    """The messages, from the database."""
    from postroom.store.watching import Watching

    return store.run(insight.messages(Watching(store.names), status, limit, before))


def show(found: Sequence[dict[str, Any]]) -> None:
    """The messages for people."""
    if not found:
        print_text("no messages")
        return
    rows = [[message[column] for column in COLUMNS] for message in found]
    print_table(list(COLUMNS.values()), rows, right=("position", "tries"), spare="id")
