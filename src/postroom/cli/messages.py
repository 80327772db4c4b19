"""``postroom messages``: look at messages, at their payloads only on request; free leases that have ended."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom import insight
from postroom.cli.databases import checked
from postroom.cli.options import Database, Json, MessageId, Schema, TablePrefix
from postroom.cli.output import on_terminal, print_json, print_table, print_text, progress, shown
from postroom.errors import InvalidSetting
from postroom.rules.lifecycle import State
from postroom.settings import Settings

if TYPE_CHECKING:
    from postroom.store.connections.stores import BlockingStore

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
SPARE = ("created (UTC)", "tries", "key", "error", "topic")
"""What a narrow terminal does without. Never the id, which the other commands want."""


def list_messages(
    status: Annotated[State | None, typer.Option(help="Only messages in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, metavar="N", help="At most this many.")] = 50,
    before: Annotated[
        int | None,
        typer.Option(
            min=1, max=2**63 - 1, metavar="POSITION", help="Only messages before this position, for the next page."
        ),
    ] = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """List messages, newest first."""
    with checked(Settings.load(database=database, schema=schema, table_prefix=table_prefix)) as store:
        found = read(store, status, limit, before)
    if as_json:
        print_json(found)
        return
    show(found)
    if on_terminal() and len(found) == limit:
        print_text(f"Older ones: --before {found[-1]['position']}")


def show_message(
    id: MessageId,
    payload: Annotated[bool, typer.Option("--payload", help="Print the payload too.")] = False,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Show everything about a message, and why it has not left yet. Never shows values of headers."""
    from postroom.rules.ordering import Order
    from postroom.store.admin.message_lookup import MessageLookup

    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    with checked(settings) as store:
        lookup = MessageLookup(store.names, Order(settings.order))
        found = store.run(insight.message(lookup, id, payload=payload))
    show_one(found, as_json=as_json)


def release(
    expired: Annotated[bool, typer.Option("--expired", help="Free expired leases.")] = False,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Free expired leases, so that no worker's name is left on them. Active leases are never touched."""
    from postroom.store.admin.expired_leases import ExpiredLeases

    if not expired:
        raise InvalidSetting("say which leases: use --expired; active leases are never freed")
    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    with checked(settings) as store, progress("freed") as tell:
        freed = store.run(ExpiredLeases(store.names).release(tell))
    if as_json:
        print_json(freed._asdict())
    else:
        print_text(f"freed {freed.messages:,} leases on messages and {freed.lanes:,} on lanes")


def show_one(found: dict[str, Any], *, as_json: bool) -> None:
    """One message, for people or as JSON."""
    if as_json:
        print_json({**{name: value for name, value in found.items() if name != "payload"}, **_payload(found)})
        return
    status, explanation = named(found), shown(found["explanation"])
    told = explanation if explanation.startswith(status) else f"{status}: {explanation}"
    print_text(f"{told}\n", style="bold")
    rows = [(name, ", ".join(value) if name == "headers" else value) for name, value in found.items()]
    hidden = ("status", "explanation", "blocker", "relays_down", "history", "payload")
    print_table(("field", "value"), [row for row in rows if row[0] not in hidden and row[1] not in (None, "")])
    if found["history"]:
        print_text("")
        print_table(("at (UTC)", "act", "by"), [tuple(act.values()) for act in found["history"]])
    for name, value in _payload(found).items():
        print_text(f"\n{name}:")
        print_text("\n".join(map(shown, str(value).splitlines())))


def named(message: dict[str, Any]) -> str:
    """Its state, in a word."""
    return message["status"] or "incomplete"


def _payload(found: dict[str, Any]) -> dict[str, Any]:
    """The payload as text, where it is text; nothing where it was not asked for."""
    if "payload" not in found:
        return {}
    payload: bytes | None = found["payload"]
    if payload is None:
        return {"payload": None}
    try:
        return {"payload": bytes(payload).decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def read(
    store: BlockingStore, status: State | None = None, limit: int = 50, before: int | None = None
) -> list[dict[str, Any]]:
    """The messages, from the database."""
    from postroom.store.admin.status import StatusReader

    return store.run(insight.messages(StatusReader(store.names), status, limit, before))


def show(found: Sequence[dict[str, Any]]) -> None:
    """The messages for people."""
    if not found:
        print_text("no messages")
        return
    rows = [[message[column] for column in COLUMNS] for message in ({**one, "status": named(one)} for one in found)]
    print_table(list(COLUMNS.values()), rows, right=("position", "tries"), spare=SPARE)
