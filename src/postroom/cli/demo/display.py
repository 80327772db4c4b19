"""Show the demo: live on a terminal, as plain lines elsewhere, or not at all."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import typer

from postroom.cli.output import can_redraw, print_table

if TYPE_CHECKING:
    from rich.table import Table

BAR = 40
READING = 1.5
"""Seconds that a person gets to read each part."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How things stand at one moment."""

    total: int
    orders: int
    waiting: int
    delivered: int
    billed: int
    skipped: int
    dead: int
    relays: Sequence[str]
    broker_is_up: bool


class Display(Protocol):
    """Where the demo is shown."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def tell(self, text: str, style: str = "") -> None:
        """Say something."""
        ...

    def show(self, snapshot: Snapshot) -> None:
        """Show how things stand."""
        ...

    def pause(self) -> None:
        """Give time to read."""
        ...

    def conclude(self, rows: Sequence[tuple[str, int, str]], conclusion: str) -> None:
        """Show what came out."""
        ...


class Silent:
    """For `--json`: shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def tell(self, text: str, style: str = "") -> None:
        """Say nothing."""

    def show(self, snapshot: Snapshot) -> None:
        """Show nothing."""

    def pause(self) -> None:
        """Nobody reads."""

    def conclude(self, rows: Sequence[tuple[str, int, str]], conclusion: str) -> None:
        """Conclude nothing."""


class Lines(Silent):
    """For pipes and files."""

    def tell(self, text: str, style: str = "") -> None:
        """Print it at once, for readers of a pipe."""
        del style
        typer.echo(text)

    def conclude(self, rows: Sequence[tuple[str, int, str]], conclusion: str) -> None:
        """A table and a line."""
        print_table(("", "number", ""), rows, right=("number",))
        self.tell(f"\n{conclusion}")


class Screen(Lines):
    """For a terminal: the text scrolls by, and below it the figures change."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False, markup=False, emoji=False)
        self._live = Live(console=self._console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def tell(self, text: str, style: str = "") -> None:
        """Print it above the figures."""
        self._console.print(text, style=style)

    def show(self, snapshot: Snapshot) -> None:
        """Redraw the figures."""
        self._live.update(_drawn(snapshot))

    def pause(self) -> None:
        """Wait a moment."""
        time.sleep(READING)

    def conclude(self, rows: Sequence[tuple[str, int, str]], conclusion: str) -> None:
        """Show the table in place of the changing figures."""
        self._live.stop()
        print_table(("", "number", ""), rows, right=("number",))
        self.tell(f"\n{conclusion}", "bold")


def silent() -> Display:
    """A display that shows nothing."""
    return Silent()


def visible() -> Display:
    """The display that suits standard output."""
    return Screen() if can_redraw() else Lines()


def _drawn(snapshot: Snapshot) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    relays = ", ".join(snapshot.relays) or "none"
    table.add_row("", "")
    table.add_row("relays at work", Text(relays, "green" if snapshot.relays else "red"))
    table.add_row("broker", Text("up", "green") if snapshot.broker_is_up else Text("down", "bold red"))
    bars = (
        ("orders committed", snapshot.orders, "blue"),
        ("waiting in the outbox", snapshot.waiting, "yellow"),
        ("delivered to the broker", snapshot.delivered, "cyan"),
        ("billed", snapshot.billed, "green"),
    )
    for label, number, colour in bars:
        bar = ProgressBar(max(snapshot.total, 1), number, width=BAR, complete_style=colour, finished_style=colour)
        table.add_row(label, bar, f"{number:,}")
    table.add_row("came twice, skipped", f"{snapshot.skipped:,}")
    table.add_row("dead letters", Text(f"{snapshot.dead:,}", "bold red" if snapshot.dead else ""))
    return table
