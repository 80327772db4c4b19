"""``postroom doctor``: check the live system, and say what mends it."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.options import Database, Json, Schema, TablePrefix
from postroom.cli.output import counted, print_json, print_table, print_text, shown
from postroom.rules.checks.findings import Verdict
from postroom.store.schema.purposes import Purpose

STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red", Verdict.SKIP: "dim"}
TROUBLE = (Verdict.WARN, Verdict.FAIL)


def doctor(  # noqa: PLR0913, PLR0917 - each option is a parameter
    broker: Annotated[
        str | None, typer.Option(metavar="URL", help="The broker to look at. Default: POSTROOM_BROKER.")
    ] = None,
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
        width = max((len(result.code) for result in report), default=0)
        for result in report:
            about = f"{result.subject}: " if result.subject else ""
            _say(result.verdict, f"{result.verdict:<4}  {result.code:<{width}}  {about}{result.evidence}")
            if result.verdict in TROUBLE:
                _say(result.verdict, f"{'':<{width + 8}}→ {result.remedy}")
                _say(result.verdict, f"{'':<{width + 8}}see {result.docs}")
        counts = ", ".join(f"{report.count(verdict)} {verdict}" for verdict in Verdict)
        print_text(f"\n{counted(len(report), 'result')}: {counts}")
    if report.failed(strict=strict):
        raise typer.Exit(1)


def _say(verdict: Verdict, text: str) -> None:
    print_text(shown(text), STYLES[verdict])


def _show_checks(only: list[str] | tuple[()], skip: list[str] | tuple[()], *, as_json: bool) -> None:
    from postroom.doctor import select

    checks = select(only, skip)
    if as_json:
        fields = ("code", "group", "question", "docs")
        print_json([{field: getattr(check, field) for field in fields} for check in checks])
    else:
        print_table(("code", "question", "see"), [(one.code, one.question, one.docs) for one in checks], spare=("see",))
