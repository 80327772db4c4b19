"""``postroom messages``: look at messages, and at their payloads on request; cancel them; release expired leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom.cli.acting import Act, command
from postroom.cli.filters import Containing, Error, Queue, Since, Type, Until, moment
from postroom.cli.message_ids import MessageId
from postroom.cli.options import AddedDaysAgo, Before, Database, Json, Key, Limit, Schema, TablePrefix, Topic
from postroom.cli.output import counted, print_json, print_table, print_text, progress, shown
from postroom.cli.pages import PagePrinter
from postroom.errors import InvalidSetting
from postroom.rules.lifecycle import State

if TYPE_CHECKING:
    from postroom.admin import ListedMessage

INCOMPLETE = "incomplete"
"""What people are told of half a message, which has no state."""


def _cell(message: ListedMessage, column: str) -> object:
    return message.status or INCOMPLETE if column == "status" else getattr(message, column)


PAGES = PagePrinter(
    "messages",
    {
        "position": "position",
        "status": "status",
        "topic": "topic",
        "key": "key",
        "attempts": "tries",
        "created_at": "created (UTC)",
        "error_code": "error",
        "id": "id",
    },
    spare=("created (UTC)", "tries", "key", "error", "topic"),
    cell=_cell,
)


def list_messages(  # noqa: PLR0913, PLR0917 - a command has that many options
    status: Annotated[State | None, typer.Option(help="Only messages in this state.")] = None,
    queue: Queue = None,
    topic: Topic = None,
    key: Key = None,
    type: Type = None,
    since: Since = None,
    until: Until = None,
    error: Error = None,
    containing: Containing = None,
    limit: Limit = 50,
    before: Before = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """List messages, newest first."""
    from postroom.admin import Admin

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        page = admin.messages(
            status=status,
            queue=queue,
            topic=topic,
            key=key,
            type=type,
            since=moment("--since", since),
            until=moment("--until", until),
            error=error,
            payload=containing,
            limit=limit,
            before=before,
        )
    PAGES.print(page, as_json=as_json)


def show_message(
    id: MessageId,
    payload: Annotated[bool, typer.Option("--payload", help="Print the payload too.")] = False,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Show everything about a message, and why it has not left yet. Never shows values of headers."""
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        found = admin.message(id, payload=payload)
    show_one(jsonable(found, payload=payload), as_json=as_json)


def show_one(found: dict[str, Any], *, as_json: bool) -> None:
    """One message in the form that `--json` prints, or the same for people."""
    if as_json:
        print_json(found)
        return
    status, explanation = found["status"] or INCOMPLETE, shown(found["explanation"])
    told = explanation if explanation.startswith(status) else f"{status}: {explanation}"
    print_text(f"{told}\n", style="bold")
    rows = [(name, ", ".join(value) if name == "headers" else value) for name, value in found.items()]
    payload = ("payload", "payload_base64")
    hidden = ("status", "explanation", "blocker", "relays_down", "history", "timeline", *payload)
    print_table(("field", "value"), [row for row in rows if row[0] not in hidden and row[1] not in (None, "")])
    if len(timeline := found.get("timeline", ())) > 1:  # more than that it was added
        print_text("")
        names = ("at", "text", "code", "worker", "actor", "detail")
        events = [tuple("" if event[name] is None else event[name] for name in names) for event in timeline]
        print_table(("at (UTC)", "what", "error", "worker", "by", "more"), events, spare=("worker", "more"))
    for name in payload:
        if name in found:
            print_text(f"\n{name}:")
            print_text("\n".join(map(shown, str(found[name]).splitlines())))


cancel = command(
    Act(
        verb="cancel",
        done="cancelled",
        noun="message",
        help="Remove messages that were not sent yet. By ids, by a filter, or all of them. Not what is being sent, nor "
        "dead.",
        older_than=AddedDaysAgo,
        all_help="All messages that are neither sent nor dead.",
        refusal=" (what is being sent can be cancelled if it fails, or once its relay has stopped; what is in the "
        "stream cannot; for dead ones: dead discard; for sagas: sagas abort)",
        count=lambda admin, which: admin.count_unsent(which),
        act=lambda admin: admin.cancel,
    )
)


def release(
    expired: Annotated[bool, typer.Option("--expired", help="Free expired leases.")] = False,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Free expired leases, so that no worker's name is left on them. Active leases are never touched."""
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    if not expired:
        raise InvalidSetting("say which leases: use --expired; active leases are never freed")
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin, progress("freed") as tell:
        released = admin.release_expired(progress=tell)
    if as_json:
        print_json(jsonable(released))
    else:
        print_text(f"freed {counted(released.messages, 'lease')} on messages and {released.lanes:,} on lanes")
