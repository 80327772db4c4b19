"""``postroom status``: how many messages are in which state."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from postroom import insight
from postroom.cli.databases import checked
from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import print_json, print_table, print_text
from postroom.settings import Settings

if TYPE_CHECKING:
    from postroom.insight import Status
    from postroom.store.connections.stores import BlockingStore

MEANINGS = {
    "pending": "to be sent now",
    "sending": "a relay or a consumer has it",
    "waiting": "for its time, or for its next try",
    "dead": "given up, kept for an operator",
    "sent": "the broker has it, or a consumer's handler is done",
    "expired": "its time was over before it was sent",
    "held": "of the pending: behind a failed or dead one of their key",
}
TARGETS = {"topic": "topic", "waiting": "waiting", "since": "since", "reason": "why it takes no messages"}
"""What people are shown of a topic that takes no messages → its title."""
RELAYS = {
    "worker": "relay",
    "queue": "queue",
    "host": "host",
    "pid": "pid",
    "lanes": "lanes",
    "in_flight": "in flight",
    "broker_down": "broker",
    "seen_seconds_ago": "seen (s ago)",
}
"""What people are shown of a relay → its title."""


def status(
    database: Database = None, schema: Schema = None, table_prefix: TablePrefix = None, as_json: Json = False
) -> None:
    """Count messages by state, and list live relays.

    Also shows how long the oldest message has been waiting.
    """
    settings = Settings.load(database=database, schema=schema, table_prefix=table_prefix)
    with checked(settings) as store:
        found = read(store, settings.order)
    if as_json:
        print_json(asdict(found))
    else:
        show(found)
        show_targets(found)
        show_relays(found)


def read(store: BlockingStore, order: str = "hold") -> Status:
    """The figures, from the database."""
    from postroom.rules.ordering import Order
    from postroom.store.admin.status import StatusReader

    return store.run(insight.status(StatusReader(store.names, Order(order))))


def show(found: Status) -> None:
    """The figures for people."""
    rows = [(name, getattr(found, name), meaning) for name, meaning in MEANINGS.items()]
    if found.pending:
        rows[0] = ("pending", found.pending, f"to be sent now; the oldest for {found.oldest_pending_seconds:,.0f} s")
    print_table(("status", "messages", ""), rows, right=("messages",))


def show_targets(found: Status) -> None:
    """The topics that take no messages, for people."""
    if found.targets:
        print_text("")
        rows = [[_of_target(target, column) for column in TARGETS] for target in found.targets]
        print_table(list(TARGETS.values()), rows, right=("waiting",), spare=("since",))


def _of_target(target: dict[str, Any], column: str) -> object:
    value = target[column]
    return f"{value:%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else value


def show_relays(found: Status) -> None:
    """The relays for people."""
    if not found.relays:
        print_text("\nno relay and no consumer is alive")
        return
    print_text("")
    rows = [[_of_relay(relay, column) for column in RELAYS] for relay in found.relays]
    print_table(list(RELAYS.values()), rows, right=("pid", "lanes", "in flight", "seen (s ago)"), spare=("host",))


def _of_relay(relay: dict[str, Any], column: str) -> object:
    value = relay[column]
    match column:
        case "broker_down":
            return f"down: {value}" if value else "up"
        case "seen_seconds_ago":
            return f"{value:.1f}"
        case _:
            return value
