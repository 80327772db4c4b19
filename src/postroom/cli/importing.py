"""``postroom import``: take over the messages of another outbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli.acting import By, Reason, actor_of
from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import counted, print_json, print_table, print_text, progress, shown, warn
from postroom.errors import InvalidSetting, PostroomError
from postroom.rules.importing.layouts import LAYOUTS, Format, Left

if TYPE_CHECKING:
    from postroom.admin import Imported

FormatName = Annotated[Format, typer.Argument(metavar="FORMAT", help=f"Whose table it is: {', '.join(Format)}.")]
FromTable = Annotated[
    str | None,
    typer.Option("--from-table", metavar="TABLE", help="The table: TABLE or SCHEMA.TABLE. Default: the format's own."),
]
ColumnNames = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="NAME=COLUMN", help="A column that is called otherwise. May be repeated."),
]
HeaderColumns = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME=COLUMN", help="A column to send as a header. May be repeated."),
]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic", metavar="TEMPLATE", help="The topic, with {topic} for the row's own. Default: {topic} for most."
    ),
]
ContentType = Annotated[
    str | None, typer.Option("--content-type", metavar="TYPE", help="Of all payloads. Default: what they look like.")
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="TOPIC", help="Only rows that go there, by their own name. May be repeated."),
]
TakeLeased = Annotated[
    bool, typer.Option("--take-leased", help="Take also what the other outbox has leased: stop it first.")
]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, max=5000, help="Rows in one transaction.")]
Follow = Annotated[bool, typer.Option("--follow", help="Go on with what is written later, until SIGTERM or Ctrl-C.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Write nothing; show what would become of the rows.")]


def import_messages(  # noqa: PLR0913, PLR0917 - a command has that many options
    format: FormatName,
    from_table: FromTable = None,
    column: ColumnNames = None,
    header: HeaderColumns = None,
    topic: Topic = None,
    content_type: ContentType = None,
    only: Only = None,
    take_leased: TakeLeased = False,
    batch: Batch = 500,
    follow: Follow = False,
    dry_run: DryRun = False,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Take over the unsent messages of another outbox.

    Each row is added to the outbox in the transaction that marks it as sent there, or deletes it: stopped or killed, it
    can be run again. Rows that cannot become messages stay, and are named on standard error.
    """
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable
    from postroom.cli.signals import stopped_by_signals

    if follow:
        typer.echo(f"postroom: a relay sends what is imported; {LAYOUTS[format].beside}", err=True)
    with (
        Admin(database, schema=schema, table_prefix=table_prefix) as admin,
        stopped_by_signals() as stop,
        progress("read" if dry_run else "imported") as tell,
    ):
        imported = admin.import_messages(
            format,
            from_table,
            actor=actor_of(by),
            reason=reason,
            columns=_pairs("--column", column),
            headers=_pairs("--header", header),
            topic=topic,
            content_type=content_type,
            only=only or (),
            take_leased=take_leased,
            batch=batch,
            follow=follow,
            dry_run=dry_run,
            stop=stop,
            progress=tell,
            problem=_warn_of,
            trouble=warn,
        )
    if as_json:
        print_json(jsonable(imported))
    else:
        _print(imported)
    _complain(imported)


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    pairs = [one.partition("=") for one in given or ()]
    for name, mark, column in pairs:
        if not (name and mark and column):
            raise InvalidSetting(f"{option} {name + mark + column!r} is not valid: give NAME=COLUMN")
    return {name: column for name, _, column in pairs}


def _warn_of(left: Left) -> None:
    warn(f"row {shown(left.id)} stays: {shown(left.reason)}")


def _print(imported: Imported) -> None:
    if imported.dry_run:
        print_table(("column", "becomes"), list(imported.mapping.items()))
        if imported.sample:
            typer.echo()
            rows = [(one.id, one.topic, one.key, one.type, one.bytes, one.deliver_at) for one in imported.sample]
            titles = ("id", "topic", "key", "type", "bytes", "deliver at (UTC)")
            print_table(titles, rows, right=("bytes",), spare=("deliver at (UTC)", "type", "key"))
        typer.echo()
    held = LAYOUTS[imported.format].held
    parts = [f"{'would import' if imported.dry_run else 'imported'} {counted(imported.added, 'message')}"]
    parts += [f"{imported.duplicates:,} there already"] if imported.duplicates else []
    parts += [f"{imported.held:,} {held}"] if imported.held else []
    parts += [f"{imported.left:,} cannot be imported"] if imported.left else []
    print_text(f"{', '.join(parts)}; {counted(imported.unsent, 'unsent row')} in {imported.table}")


def _complain(imported: Imported) -> None:
    if imported.stopped:
        raise PostroomError("stopped before the end: run it again for the rest; nothing is lost, nor imported twice")
    if imported.left:
        raise PostroomError(
            f"{counted(imported.left, 'row')} could not be imported, and stayed in {imported.table}. The first: "
            f"{shown(imported.problems[0].id)}: {shown(imported.problems[0].reason)}"
        )
