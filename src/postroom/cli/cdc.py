"""``postroom cdc``: watch the stream, set it up, switch it off, and sweep what was left in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from postroom.cli.acting import By, Reason, Yes, actor_of, ask
from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import counted, duration, print_json, print_table, print_text, shown, warn
from postroom.errors import PostroomError
from postroom.rules.checks.findings import sized
from postroom.rules.stream.modes import Mode

if TYPE_CHECKING:
    from postroom.admin import StreamStatus

MEANINGS = {
    Mode.TABLE: "every message has a delivery",
    Mode.STREAM: "messages are read from the write-ahead log",
    Mode.CLOSING: "on its way back to the table: nobody reads the log any more",
    Mode.DRAINING: "on its way back to the table: what is left in the log gets deliveries",
    Mode.DEBEZIUM: "Debezium reads messages from the write-ahead log",
}

Switch = Annotated[Literal["on", "off"], typer.Argument(help="Hand the outbox to Debezium, or take it back.")]
SlotName = Annotated[str, typer.Option("--slot", metavar="NAME", help="The slot of the connector.")]
NoWait = Annotated[
    bool,
    typer.Option("--no-wait", help="With off: Debezium is gone; relays send again what it may not have sent."),
]
Sql = Annotated[bool, typer.Option("--sql", help="Print the SQL, for somebody who may run it, and do nothing.")]
Timeout = Annotated[float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Wait no longer than this.")]


def status(
    database: Database = None, schema: Schema = None, table_prefix: TablePrefix = None, as_json: Json = False
) -> None:
    """Show who reads the log, how far, and what the server keeps for it."""
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        found = admin.cdc_status()
    if as_json:
        print_json(jsonable(found))
        return
    print_table(("field", "value"), _rows(found))
    for problem in _problems(found):
        warn(problem)


def _rows(found: StreamStatus) -> list[tuple[str, object]]:
    slot = found.slot
    limit = "no limit" if found.most_held_bytes is None else f"the server's limit is {sized(found.most_held_bytes)}"
    rows: list[tuple[str, object]] = [
        ("mode", f"{found.mode}: {MEANINGS[found.mode]}"),
        ("for", duration(found.mode_seconds)),
        ("read by", "Debezium" if found.is_of_debezium else shown(found.reader) or "nobody"),
        ("slot", found.slot_name if slot else f"{found.slot_name} (not there)"),
    ]
    if slot is not None:
        rows += [
            ("active", "no" if slot.active_pid is None else f"yes, process {slot.active_pid} of the server"),
            ("log", slot.wal_status),
            ("kept for it", f"{sized(slot.held_bytes)}; {limit}"),
            ("behind", sized(found.behind_bytes)),
        ]
    publication = "right" if found.is_published else "wrong" if found.has_publication else "not there"
    rows += [
        ("publication", f"{found.publication} ({publication})"),
        ("wal_level", found.server.wal_level),
    ]
    return rows


def _problems(found: StreamStatus) -> list[str]:
    """What an operator should not miss; `postroom doctor --only CDC_SLOT` and its neighbours tell more."""
    if found.mode is Mode.TABLE:
        if found.slot is None:
            return []
        start = "start `postroom relay --cdc`, or, if it is left over, drop it with `postroom cdc off`"
        return [f"nobody reads the slot {found.slot_name}, which keeps log: {start}"]
    problems: list[str] = []
    if found.is_of_debezium and (found.slot is None or found.slot.active_pid is None):
        missing = "is gone" if found.slot is None else "is read by no connector, and keeps log"
        problems.append(f"the slot {found.slot_name} {missing}: `postroom doctor --only CDC_SLOT` says what to do")
    if found.mode is Mode.STREAM and not found.reader:
        problems.append("nobody reads: start `postroom relay --cdc`, or go back with `postroom cdc off`")
    if found.mode.lanes_rest:
        command = "postroom cdc debezium off" if found.is_of_debezium else "postroom cdc off"
        problems.append(f"keys rest until the outbox is back in the table: `{command}` helps, and says what for")
    if found.mode is Mode.STREAM and not found.is_published:
        problems.append("the publication does not show what is in the stream: restart `postroom relay --cdc`")
    return problems


def _tell(waits: str) -> None:
    print_text(f"waiting: {shown(waits)}")


def setup(
    sql: Sql = False,
    timeout: Timeout = None,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Make publication and slot now, or print the SQL.

    A relay with --cdc makes them too, if it may. From then on the server keeps log until a relay reads it. Says for
    which open transactions it waits.
    """
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        if sql:
            statements = admin.cdc_sql()
            if as_json:
                print_json(statements)
            else:
                typer.echo("\n".join(f"{statement};" for statement in statements))
            return
        progress = None if as_json else _tell
        try:
            made = admin.set_up_cdc(actor=actor_of(by), reason=reason, timeout=timeout, progress=progress)
        except TimeoutError as error:
            raise PostroomError(
                f"no slot within {timeout:g} s: {error}; run `postroom cdc setup` again when they have ended"
            ) from None
    if as_json:
        print_json(jsonable(made))
        return
    new = [f"{what} {name}" for what, name in (("publication", made.publication), ("slot", made.slot)) if name]
    print_text(f"made: {', '.join(new)}" if new else "nothing to do: publication and slot are there")


def off(
    timeout: Timeout = None,
    yes: Yes = False,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Go back to the table while everything runs, and drop the slot.

    Messages with a key rest meanwhile. A slot that is left over in table mode is dropped, too.
    """
    from postroom.admin import Admin

    if not yes:
        ask("take", "the outbox back to the table")
    waited: list[str] = []

    def tell(waits: str) -> None:
        waited.append(waits)
        if not as_json:
            _tell(waits)

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        try:
            was_in_stream = admin.switch_cdc_off(actor=actor_of(by), reason=reason, timeout=timeout, progress=tell)
        except TimeoutError as error:
            raise PostroomError(
                f"not back in the table within {timeout:g} s: {error}; nothing is lost, and keys rest until it is: run "
                "`postroom cdc off` again"
            ) from None
    if as_json:
        print_json({"was_in_stream": was_in_stream, "waited_for": waited})
    else:
        print_text(
            "the outbox is back in the table" if was_in_stream else "the outbox was in the table; no slot is left"
        )


def sweep(
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Give deliveries to messages that were left in the log.

    Only while nobody reads it. Relays sweep by themselves when a slot was lost.
    """
    from postroom.admin import Admin

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        swept = admin.sweep_cdc(actor=actor_of(by), reason=reason)
    if as_json:
        print_json({"swept": swept})
    else:
        print_text(f"{counted(swept, 'message')} got a delivery")


def debezium(  # noqa: PLR0913, PLR0917 - a command has that many options
    switch: Switch,
    slot: SlotName = "postroom_debezium",
    sql: Sql = False,
    no_wait: NoWait = False,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
) -> None:
    """Let Debezium read the outbox instead of a relay, or take it back."""
    from postroom.admin import Admin

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        if switch == "off":
            admin.debezium_off(wait=not no_wait, progress=_tell, actor=actor_of(by), reason=reason)
            print_text("the outbox is back in the table")
        elif sql:
            typer.echo("\n".join(f"{statement};" for statement in admin.debezium_sql(slot)))
        else:
            admin.debezium_on(slot, actor=actor_of(by), reason=reason)
            print_text(f"producers with cdc write for Debezium; its slot is {slot}")
