"""The commands as an app of Typer's."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.commands import COMMANDS, GROUPS, function_of
from postroom.cli.option import for_typer


def app(word: str | None = None) -> typer.Typer:
    """The commands that begin with this word. All of them, if there are none, or no word is given."""
    some = [name for name in COMMANDS if name.partition(" ")[0] == word]
    whole = _whole()
    groups: dict[str, typer.Typer] = {}
    for name in some or COMMANDS:
        first, _, second = name.partition(" ")
        if not second:
            whole.command(name)(for_typer(function_of(name)))
            continue
        if first not in groups:
            groups[first] = _group(GROUPS[first])
            whole.add_typer(groups[first], name=first)
        groups[first].command(second)(for_typer(function_of(name)))
    return whole


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
