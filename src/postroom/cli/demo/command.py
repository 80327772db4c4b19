"""The command ``postroom demo``."""

from __future__ import annotations

from typing import Annotated

import typer

from postroom.cli.options import Json
from postroom.cli.output import print_json


def demo(
    orders: Annotated[int, typer.Option("--messages", min=1, max=100_000, help="How many orders.")] = 120,
    as_json: Json = False,
) -> None:
    """Show Postroom at work while things break. Uses SQLite in a temporary directory, and no database of yours."""
    from postroom.cli.demo import display, scenario
    from postroom.cli.demo.workspace import workspace

    with workspace() as directory:
        figures = scenario.play(directory, orders, display.silent() if as_json else display.visible())
    if as_json:
        print_json(figures)
    if figures["lost"] or figures["billed_twice"] or figures["stock_missing"]:
        raise typer.Exit(1)
