"""``postroom doctor``: check the live system, and say what mends it."""

from __future__ import annotations

from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated

import typer

from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import counted, on_terminal, print_json, print_table, print_text, shown
from postroom.cli.relay_options import BrokerFor, brokers_of
from postroom.rules.checks.findings import Verdict
from postroom.store.schema.purposes import Purpose

STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red", Verdict.SKIP: "dim"}
LEAST_ROOM = 30
TROUBLE = (Verdict.WARN, Verdict.FAIL)


def doctor(  # noqa: PLR0913, PLR0917 - each option is a parameter
    broker: Annotated[
        str | None, typer.Option(metavar="URL", help="The broker to look at. Default: POSTROOM_BROKER.")
    ] = None,
    broker_for: BrokerFor = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="Run only this check; repeat it, or write BROKER_*.")
    ] = None,
    skip: Annotated[list[str] | None, typer.Option(metavar="CODE", help="Leave this check out; as --only.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on a warning too.")] = False,
    purposes: Annotated[
        list[Purpose] | None,
        typer.Option("--for", help="What the database's user is for; repeat it for several. Default: relay."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=3600, metavar="SECONDS", help="Time for each check.")
    ] = 10.0,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks, and run none.")] = False,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Check the running system, and say what mends it.

    Looks at tables, messages, settings, database and brokers, and changes nothing. Run it with the relays' settings.
    Exits with 1 if a check fails.
    """
    from postroom.doctor import as_json as jsonable
    from postroom.doctor import examine

    if list_checks:
        _show_checks(only or (), skip or (), as_json=as_json)
        return
    report = examine(
        database,
        broker,
        brokers=brokers_of(broker_for),
        only=only or (),
        skip=skip or (),
        purposes=purposes or (Purpose.RELAY,),
        limit=timeout,
        schema=schema,
        table_prefix=table_prefix,
    )
    if as_json:
        print_json(jsonable(report))
    else:
        indent = max((len(result.code) for result in report), default=0) + len("WARN  ") + 2
        for result in report:
            about = f"{result.subject}: " if result.subject else ""
            _say(result.verdict, f"{result.verdict:<4}  {result.code}", f"{about}{result.evidence}", indent)
            if result.verdict in TROUBLE:
                _say(result.verdict, "", f"→ {result.remedy}", indent)
                _say(result.verdict, "", f"see {result.docs}", indent)
        counts = ", ".join(f"{report.count(verdict)} {verdict}" for verdict in Verdict)
        print_text(f"\n{counted(len(report), 'result')}: {counts}")
    if report.failed(strict=strict):
        raise typer.Exit(1)


def _say(verdict: Verdict, head: str, text: str, indent: int) -> None:
    """Print a line; on a terminal, what does not fit goes below its beginning."""
    room = max(LEAST_ROOM, get_terminal_size().columns - indent - 1) if on_terminal() else len(text) + 1
    for line in wrap(shown(text), room, break_long_words=False, break_on_hyphens=False) or [""]:
        print_text(f"{head:<{indent}}{line}", STYLES[verdict])
        head = ""


def _show_checks(only: list[str] | tuple[()], skip: list[str] | tuple[()], *, as_json: bool) -> None:
    from postroom.doctor import select

    checks = select(only, skip)
    if as_json:
        fields = ("code", "group", "question", "docs")
        print_json([{field: getattr(check, field) for field in fields} for check in checks])
    else:
        print_table(("code", "question", "see"), [(one.code, one.question, one.docs) for one in checks], spare=("see",))
