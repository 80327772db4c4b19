"""Print results: JSON for programs, tables for people; colours and lines only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

STATUS_STYLES = {
    **dict.fromkeys(("dead", "parked", "stranded", "stuck"), "bold red"),
    **dict.fromkeys(("waiting", "retrying", "compensating", "aborting"), "yellow"),
    **dict.fromkeys(("sending", "running", "undecided", "committing"), "cyan"),
    **dict.fromkeys(("sent", "completed", "committed"), "green"),
    **dict.fromkeys(("expired", "compensated", "aborted", "forgotten"), "dim"),
}
SECOND, MINUTE, HOUR, DAY = 1.0, 60.0, 3600.0, 86_400.0


def on_terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def can_redraw() -> bool:
    """Whether standard output is a terminal that can redraw; a ``dumb`` one cannot."""
    from postroom.telemetry.log_lines import DUMB

    return on_terminal() and os.environ.get("TERM", "").lower() not in DUMB


def can_answer() -> bool:
    """Whether a person can answer a question."""
    return on_terminal() and sys.stdin is not None and sys.stdin.isatty()


def echo(text: str = "", *, end: str = "\n", err: bool = False) -> None:
    """Print to standard output or error, if there is one, and flush: a failure is raised here."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:
        print(text, end=end, file=stream, flush=True)


def warn(text: str) -> None:
    """Print a warning to standard error, where programs that read the output do not see it."""
    echo(f"postroom: warning: {text}", err=True)


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, on a terminal only. Gives `tell(count)`, which advances it."""
    if not can_redraw() or sys.stderr is None or not sys.stderr.isatty():
        yield _tell_nobody
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


def _tell_nobody(_count: int) -> None:
    """No bar is shown."""


def print_json(value: object) -> None:
    """Print one JSON document, in ASCII, so that it survives every pipe."""
    echo(json.dumps(value, indent=2, default=_jsonable))


def print_text(text: str, style: str = "") -> None:
    """Print text; on a terminal styled, and wrapped between words."""
    if on_terminal():
        _console().print(text, style=style)
    else:
        echo(text)


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = (), spare: Sequence[str] = ()
) -> None:
    """Print a table. Columns whose titles are in `right` are right-aligned.

    On a narrow terminal, columns in `spare` are left out, the first ones first, until the table fits.
    """
    columns = [[title, *(shown(row[n]) for row in rows)] for n, title in enumerate(titles)]
    if on_terminal():
        _print_rich(columns, right, spare)
    else:
        _print_plain(columns, right)


def counted(count: int, noun: str) -> str:
    """So many of them: ``1 message``, ``2,000 messages``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """For people: ``18 ms``, ``2.5 s``, ``3 min``, ``4 h``, ``2 d``."""
    if seconds is None:
        return ""
    if seconds < SECOND:
        return f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.0f} {name}"
    raise AssertionError("unreachable")


def shown(value: object) -> str:
    """A value for people. Control characters are escaped, so that a terminal does not obey them."""
    match value:
        case None:
            return ""
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
        case _:
            return "".join(one if one.isprintable() else repr(one)[1:-1] for one in str(value))


def _console() -> Console:
    """The terminal, without markup: text is printed as it is."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _print_plain(columns: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    widths = [max(map(len, column)) for column in columns]
    aligned = [
        [cell.rjust(width) if column[0] in right else cell.ljust(width) for cell in column]
        for column, width in zip(columns, widths, strict=True)
    ]
    for row in zip(*aligned, strict=True):
        echo("  ".join(row).rstrip())


def _print_rich(columns: Sequence[Sequence[str]], right: Sequence[str], spare: Sequence[str]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    terminal = _console()
    for title in spare:
        if sum(max(map(len, column)) + 2 for column in columns) - 2 > terminal.width:
            columns = [column for column in columns if column[0] != title]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for title, *_ in columns:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*(Text(cell, style=STATUS_STYLES.get(cell, "")) for cell in row))
    terminal.print(table)


def _jsonable(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")
