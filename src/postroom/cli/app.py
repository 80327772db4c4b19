"""The commands. What they need is loaded when they run, so that `postroom --help` is quick, and a relay starts soon."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

COMMANDS = {
    "init": "init:init",
    "schema": "schema:schema",
    "relay": "relay:relay",
    "consume": "consume:consume",
    "status": "status:status",
    "doctor": "doctor:doctor",
    "dashboard": "dashboard:dashboard",
    "messages list": "messages:list_messages",
    "messages show": "messages:show_message",
    "messages replay": "replay:replay",
    "messages cancel": "messages:cancel",
    "messages release": "messages:release",
    "dead list": "dead:list_dead",
    "dead groups": "dead:groups",
    "dead show": "dead:show",
    "dead requeue": "dead:requeue",
    "dead discard": "dead:discard",
    "sagas list": "sagas:list_sagas",
    "sagas show": "sagas:show_saga",
    "sagas resume": "sagas:resume",
    "sagas skip": "sagas:skip",
    "sagas abort": "sagas:abort",
    "sagas fork": "sagas:fork",
    "transactions list": "transactions:list_transactions",
    "transactions show": "transactions:show_transaction",
    "transactions recover": "transactions:recover",
    "transactions decide": "transactions:decide",
    "transactions forget": "transactions:forget",
    "cdc status": "cdc:status",
    "cdc setup": "cdc:setup",
    "cdc off": "cdc:off",
    "cdc sweep": "cdc:sweep",
    "cdc debezium": "cdc:debezium",
    "events export": "events:export",
    "events check": "events:check",
    "import": "importing:import_messages",
    "cleanup": "cleanup:cleanup",
    "demo": "demo:demo",
    "bench": "bench:bench",
}
"""Each command's module in `postroom.cli`, and its function there."""

GROUPS = {
    "messages": "Inspect and cancel messages, and free expired leases.",
    "dead": "List, requeue and discard dead letters.",
    "sagas": "List, show, resume, skip, abort and fork sagas.",
    "transactions": "List, show, recover, decide and forget two-phase commits.",
    "events": "Export event classes, and check what changes break.",
    "cdc": "Watch and switch how the write-ahead log is read.",
}
"""The commands that have commands of their own, and their help."""


def app(word: str | None = None) -> typer.Typer:
    """The commands that begin with this word. All of them, if there are none, or no word is given."""
    some = [name for name in COMMANDS if name.partition(" ")[0] == word]
    whole = _whole()
    groups: dict[str, typer.Typer] = {}
    for name in some or COMMANDS:
        first, _, second = name.partition(" ")
        if not second:
            whole.command(name)(_function(name))
            continue
        if first not in groups:
            groups[first] = _group(GROUPS[first])
            whole.add_typer(groups[first], name=first)
        groups[first].command(second)(_function(name))
    return whole


def _function(name: str) -> Callable[..., None]:
    module, _, function = COMMANDS[name].partition(":")
    found: Callable[..., None] = getattr(import_module(f"postroom.cli.{module}"), function)
    return found


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        typer.echo(f"postroom {version('postroom')}")
    except PackageNotFoundError:
        typer.echo("postroom (not installed)")
    raise typer.Exit


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def _whole() -> typer.Typer:
    whole = typer.Typer(
        name="postroom",
        help="Postroom: what a service commits, the world receives; and each effect happens once.",
        epilog="All commands except demo and events read the database's URL from --database, POSTROOM_DATABASE, "
        "postroom.toml or pyproject.toml.",
        add_completion=False,
        rich_markup_mode=None,  # plain text is quicker, and is right without a terminal too
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    whole.callback(invoke_without_command=True)(_postroom)
    return whole


def _postroom(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Postroom: what a service commits, the world receives; and each effect happens once."""
    _help_without_command(context)


def _group(help_text: str) -> typer.Typer:
    group = typer.Typer(help=help_text, rich_markup_mode=None)
    group.callback(invoke_without_command=True)(_help_without_command)
    return group
