"""``postroom transactions``: list, show, recover, decide and forget two-phase commits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from postroom.cli.acting import MOST_NAMED, By, Reason, Yes, actor_of, ask
from postroom.cli.options import Database, Json, Limit, Schema, TablePrefix
from postroom.cli.output import counted, duration, print_json, print_table, print_text, shown, warn
from postroom.cli.pages import LONGEST_CELL, PagePrinter, short
from postroom.errors import InvalidSetting, PostroomError, TransactionActRefused, TransactionNotFound
from postroom.rules.twophase_state import TransactionState
from postroom.runtime.functions import load_object

if TYPE_CHECKING:
    from postroom.admin import ListedTransaction
    from postroom.twophase import TwoPhaseCommit

App = Annotated[
    list[str],
    typer.Option(
        metavar="MODULE:OBJECT",
        help="The TwoPhaseCommit, or a list of them, as in shop.bank:transfers; may be repeated.",
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The transaction's id.")]
Ids = Annotated[list[str], typer.Argument(metavar="ID", help="The transactions' ids.")]
States = Annotated[
    list[TransactionState] | None,
    typer.Option("--state", help="Only those in this state. May be given several times. Default: all not settled."),
]
Every = Annotated[bool, typer.Option("--all", help="In all states, also settled ones.")]
Before = Annotated[
    str | None, typer.Option("--before", metavar="ID", help="Only those before this one, for the next page.")
]


def list_transactions(
    state: States = None,
    every: Every = False,
    limit: Limit = 50,
    before: Before = None,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """List two-phase commits that are not settled.

    Those with the latest deadline come first. The database must be that of the log.
    """
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    if state and every:
        raise InvalidSetting("--all means all states: leave out --state, or --all")
    states = list(TransactionState) if every else state or None
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        found = admin.transactions(states=states, limit=limit, before=before)
    if as_json:
        print_json(jsonable(found))
        return
    if not found:
        print_text("no two-phase commits" if states else "no two-phase commits that are not settled")
        return
    PAGES.print_rows(found, found[-1].id if len(found) == limit else None)


def _cell(one: ListedTransaction, column: str) -> str:
    match column:
        case "age_seconds":
            return duration(one.age_seconds)
        case "participants":
            return shown(", ".join(one.participants))[:LONGEST_CELL]
        case _:
            return short(one, column)


PAGES = PagePrinter(
    "two-phase commits",
    {"id": "id", "state": "state", "age_seconds": "age", "participants": "participants", "problem": "problem"},
    spare=("participants", "problem"),
    cell=_cell,
)


def show_transaction(
    id: Id,
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Show what was decided, who is missing, and what to do."""
    from postroom.admin import Admin
    from postroom.admin import as_json as jsonable

    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        found = jsonable(admin.transaction(id))
    if as_json:
        print_json(found)
        return
    print_text(f"{found['state']}: {shown(found['explanation'])}\n", style="bold")
    print_table(("field", "value"), [row for row in _facts(found) if row[1] not in (None, "")])
    if found["participants"]:
        print_text("")
        rows = [
            (name, branch or "does not prepare", "missing" if name in found["missing"] else "")
            for name, branch in found["participants"].items()
        ]
        print_table(("participant", "branch", ""), rows)
    if found["history"]:
        print_text("")
        print_table(("at (UTC)", "act", "by", "why"), [tuple(act.values()) for act in found["history"]])


def _facts(found: dict[str, Any]) -> list[tuple[str, object]]:
    recovery = found["recovery"] or {}
    error = f"{recovery.get('error_code') or ''} {recovery.get('error_message') or ''}".strip()
    return [
        ("id", found["id"]),
        ("decision", found["decision"]),
        ("deadline (UTC)", found["deadline"]),
        ("written (UTC)" if found["decision"] == "open" else "decided (UTC)", found["decided_at"]),
        ("settled (UTC)", found["settled_at"]),
        ("age", duration(found["age_seconds"])),
        ("problem", found["problem"]),
        ("recovery", f"tried {counted(recovery['attempts'], 'time')}" if recovery else None),
        ("next try (UTC)", recovery.get("due")),
        ("last error", error),
    ]


def recover(app: App, as_json: Json = False) -> None:
    """Finish what crashed programs left behind, as far as possible now.

    A relay with the same --app does so by itself. Several may do it at once.
    """
    found = asyncio.run(_recover(_loaded(app)))
    if as_json:
        print_json(found)
    else:
        committed, rolled_back, waiting = (len(found[name]) for name in ("committed", "rolled_back", "waiting"))
        print_text(f"committed {committed:,}, rolled back {rolled_back:,}, to be tried again {waiting:,}")
    for participant, why in found["unreachable"].items():
        warn(f"{shown(participant)} could not be asked: {shown(why)}")
    if found["problems"]:
        problems = [f"{tx}: {why}" for tx, why in found["problems"].items()]
        more = f"; and {len(problems) - MOST_NAMED} more" if len(problems) > MOST_NAMED else ""
        raise PostroomError(
            f"{counted(len(problems), 'two-phase commit')} cannot be finished: {'; '.join(problems[:MOST_NAMED])}{more}"
        )
    if found["unreachable"]:
        raise typer.Exit(1)


def _loaded(addresses: Sequence[str]) -> list[TwoPhaseCommit]:
    """The two-phase commits at each ``module:object``. Raises `InvalidSetting`."""
    from postroom.twophase import TwoPhaseCommit

    loaded: list[TwoPhaseCommit] = []
    for address in addresses:
        found = load_object(address, f"--app {address}", "a TwoPhaseCommit: write module:object")
        some = list(found) if isinstance(found, list | tuple) else [found]
        ours = [one for one in some if isinstance(one, TwoPhaseCommit)]
        if not ours:
            raise InvalidSetting(
                f"--app {address} is a {type(found).__name__}: give a TwoPhaseCommit, or a list of them"
            )
        loaded += ours
    return loaded


async def _recover(transactions: Sequence[TwoPhaseCommit]) -> dict[str, Any]:
    """Recover those that share a log together: each knows only its own participants."""
    from postroom.twophase.recovery import recovery_of
    from postroom.twophase.rounds import adrive

    found: dict[str, Any] = {"committed": [], "rolled_back": [], "waiting": [], "problems": {}, "unreachable": {}}
    try:
        by_log: dict[str, list[TwoPhaseCommit]] = {}
        for one in transactions:
            by_log.setdefault(await one.scope(), []).append(one)
        for some in by_log.values():
            recovered = await adrive(recovery_of(some, asynchronous=True).recover())
            for name in ("committed", "rolled_back", "waiting"):
                found[name] += getattr(recovered, name)
            for name in ("problems", "unreachable"):
                found[name] |= getattr(recovered, name)
    finally:
        for one in transactions:
            await one.aclose()
    return found


def decide(  # noqa: PLR0913, PLR0917 - a command has that many options
    id: Id,
    decision: Annotated[Literal["commit", "abort"], typer.Argument(help="What all participants are to do.")],
    yes: Yes = False,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Decide where only a person can know what the last resource did.

    Recovery then has all participants do it.
    """
    from postroom.admin import Admin

    if not yes:
        ask(decision, f"the two-phase commit {id}")
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        admin.decide_transaction(id, decision, actor=actor_of(by), reason=reason)
    if as_json:
        print_json({"decided": id, "decision": decision})
    else:
        print_text(f"decided: {decision}. Recovery finishes it")


def forget(
    ids: Ids,
    yes: Yes = False,
    by: By = None,
    reason: Reason = "",
    database: Database = None,
    schema: Schema = None,
    table_prefix: TablePrefix = None,
    as_json: Json = False,
) -> None:
    """Have recovery leave alone what you have finished by hand.

    What was decided stays on record for as long as settled ones do.
    """
    from postroom.admin import Admin

    if not yes:
        ask("forget", counted(len(ids), "two-phase commit"))
    forgotten: list[str] = []
    refused: dict[str, str] = {}
    with Admin(database, schema=schema, table_prefix=table_prefix) as admin:
        for one in ids:
            try:
                admin.forget_transaction(one, actor=actor_of(by), reason=reason)
                forgotten.append(one)
            except (TransactionActRefused, TransactionNotFound) as error:
                refused[one] = str(error)
    if as_json:
        print_json({"forgotten": forgotten, "not_done": refused})
    else:
        print_text(f"forgotten: {counted(len(forgotten), 'two-phase commit')}")
    if refused:
        raise PostroomError("; ".join(refused.values()))
