"""``postroom status``: how many messages are in which state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import counted, duration, print_json, print_table, print_text, shown, warn
from postroom.rules.saga_state import SagaState
from postroom.rules.twophase_state import TransactionState

if TYPE_CHECKING:
    from postroom.admin import HeldTarget, SagaCount, Status, TransactionCount, Worker

MEANINGS = {
    "pending": "to be sent now",
    "sending": "a relay or a consumer has it",
    "waiting": "for its time, or for its next try",
    "dead": "given up, kept for an operator",
    "sent": "the broker has it, or a consumer's handler is done",
    "expired": "not sent before its expiry",
    "held": "of the pending: behind a failed or dead one of their key",
}
TARGETS = {"topic": "topic", "waiting": "waiting", "since": "since", "reason": "why it takes no messages"}
"""What people are shown of a topic that takes no messages → its title."""
WORKERS = {
    "name": "relay",
    "queue": "queue",
    "host": "host",
    "pid": "pid",
    "lanes": "lanes",
    "in_flight": "in flight",
    "broker_down": "broker",
    "seen_seconds_ago": "seen (s ago)",
}
"""What people are shown of a relay or consumer → its title."""
STUCK = (SagaState.PARKED, SagaState.STRANDED)
"""Sagas in these states wait for somebody."""


def status(
    database: Database = None, schema: Schema = None, table_prefix: TablePrefix = None, as_json: Json = False
) -> None:
    """Count what is in which state, and list live relays.

    It counts messages, sagas and two-phase commits. Also shows how long the oldest message has been waiting.
    """
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        found = admin.status()
    if as_json:
        print_json(jsonable(found))
        return
    _show_counts(found)
    _show_stream(found)
    _show_sagas(found.sagas)
    _show_transactions(found.transactions)
    _show_targets(found.targets)
    _show_workers(found.workers)


def _show_counts(found: Status) -> None:
    rows = [(name, getattr(found, name), meaning) for name, meaning in MEANINGS.items()]
    if found.pending:
        rows[0] = ("pending", found.pending, f"to be sent now; the oldest for {found.oldest_pending_seconds:,.0f} s")
    print_table(("status", "messages", ""), rows, right=("messages",))


def _show_stream(found: Status) -> None:
    """Who reads what is in the stream, which is in no count."""
    if found.stream is None:
        return
    print_text("")
    reader = f"read by {shown(found.stream.owner)}" if found.stream.owner else "read by nobody"
    print_text(f"stream: {found.stream.mode}, {reader}; what is in it is not counted: see `postroom cdc status`")
    if not found.stream.owner:
        warn("nobody reads the stream: start `postroom relay --cdc`, or go back with `postroom cdc off`")


def _show_sagas(counts: Sequence[SagaCount]) -> None:
    """A line for each name, a column for each state that occurs; and what to do about those that are stuck."""
    if not counts:
        return
    states = [state for state in SagaState if any(one.state is state for one in counts)]
    by_name: dict[str, dict[SagaState, int]] = {}
    for one in counts:
        by_name.setdefault(one.name, {})[one.state] = one.count
    print_text("")
    rows = [(name, *(found.get(state, 0) for state in states)) for name, found in by_name.items()]
    print_table(("saga", *states), rows, right=states)
    for state in STUCK:
        if total := sum(one.count for one in counts if one.state is state):
            are = "is" if total == 1 else "are"
            warn(f"{counted(total, 'saga')} {are} {state}: see `postroom sagas list --state {state}`")


def _show_transactions(counts: Sequence[TransactionCount]) -> None:
    """A line for each state that occurs; and what to do about those that are stuck."""
    if not counts:
        return
    print_text("")
    titles = ("two-phase commits", "count", "oldest")
    rows = [(one.state.value, one.count, duration(one.oldest_seconds)) for one in counts]
    print_table(titles, rows, right=titles[1:])
    for one in counts:
        if one.state is TransactionState.STUCK:
            are = "is" if one.count == 1 else "are"
            warn(
                f"{counted(one.count, 'two-phase commit')} {are} stuck: see `postroom transactions list --state stuck`"
            )


def _show_targets(targets: Sequence[HeldTarget]) -> None:
    if targets:
        print_text("")
        rows = [[_of_target(target, column) for column in TARGETS] for target in targets]
        print_table(list(TARGETS.values()), rows, right=("waiting",), spare=("since",))


def _of_target(target: HeldTarget, column: str) -> object:
    value = getattr(target, column)
    return f"{value:%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else value


def _show_workers(workers: Sequence[Worker]) -> None:
    if not workers:
        print_text("\nno relay and no consumer is alive")
        return
    print_text("")
    rows = [[_of_worker(worker, column) for column in WORKERS] for worker in workers]
    print_table(list(WORKERS.values()), rows, right=("pid", "lanes", "in flight", "seen (s ago)"), spare=("host",))


def _of_worker(worker: Worker, column: str) -> object:
    value = getattr(worker, column)
    match column:
        case "broker_down":
            return f"down: {value}" if value else "up"
        case "seen_seconds_ago":
            return f"{value:.1f}"
        case _:
            return value
