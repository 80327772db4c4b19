"""``postroom events``: the events of a program as AsyncAPI, and whether they break what was promised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroom.cli.output import counted, print_json, print_text
from postroom.errors import InvalidSetting

if TYPE_CHECKING:
    from collections.abc import Mapping

App = Annotated[
    list[str],
    typer.Option("--app", metavar="MODULE", help="A module with event classes, as in shop.events. May be repeated."),
]


def export(
    app: App,
    title: Annotated[str, typer.Option(metavar="TEXT", help="The document's title.")] = "events",
    version: Annotated[str, typer.Option(metavar="TEXT", help="The document's version.")] = "1.0.0",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file instead of printing.")
    ] = None,
) -> None:
    """Print the events of a program as AsyncAPI 3, with a JSON Schema of each payload."""
    document = _document(app, title, version)
    if output is None:
        print_json(document)
        return
    try:
        output.write_text(f"{json.dumps(document, indent=2)}\n", encoding="utf-8")
    except OSError as error:
        raise InvalidSetting(f"{output} cannot be written: {error.strerror}") from None
    count = len(document["components"]["messages"])
    print_text(f"{counted(count, 'event')} {'is' if count == 1 else 'are'} in {output}")


def check(
    app: App,
    against: Annotated[
        Path, typer.Option(metavar="FILE", help="What `postroom events export` wrote, of the branch that runs.")
    ],
) -> None:
    """Fail if the events of a program break programs or messages of the exported ones. For continuous integration."""
    from postroom.rules.event_changes import breaking_changes

    try:
        before = json.loads(against.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSetting(f"{against} cannot be read: {error.strerror}") from None
    except ValueError:
        raise InvalidSetting(f"{against} is not JSON: give what `postroom events export` wrote") from None
    try:
        changes = breaking_changes(before, _document(app, "", ""))
    except ValueError as error:
        raise InvalidSetting(f"{against} cannot be compared: {error}") from None
    for change in changes:
        print_text(change)
    if changes:
        raise typer.Exit(1)
    print_text("no event breaks what was exported")


def _document(modules: list[str], title: str, version: str) -> Mapping[str, Any]:
    from postroom.asyncapi import asyncapi
    from postroom.events import declared_classes
    from postroom.runtime.functions import load_module

    for module in modules:
        load_module(module, f"--app {module}")
    kinds = declared_classes()
    if not kinds:
        raise InvalidSetting(f"{', '.join(modules)} declares no event: decorate classes with @event(topic)")
    return asyncapi(kinds, title=title, version=version)
