"""``postroom bench``: measure the relay on a database, beside the fastest loop that could take its place."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from postroom.cli.options import Database, Json
from postroom.cli.output import can_redraw, on_terminal, print_json, print_table, print_text
from postroom.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.bench.suite import Row


def bench(
    messages: Annotated[int, typer.Option(min=100, max=10_000_000, metavar="N", help="Messages of one run.")] = 50_000,
    rounds: Annotated[int, typer.Option(min=1, max=100, metavar="N", help="Rounds; their median counts.")] = 5,
    large: Annotated[
        bool, typer.Option("--large", help="Also drain a million messages, with and without an old snapshot held.")
    ] = False,
    database: Database = None,
    as_json: Json = False,
) -> None:
    """Benchmark the relay on your database. On PostgreSQL, also measure bare claim-and-ack loops to compare with.

    It creates tables of its own (schema postroom_bench, or names that begin with postroom_bench_) and removes them.
    Without a database it uses SQLite in a temporary directory.
    """
    from postroom.bench.scratch import scratch
    from postroom.bench.suite import Suite

    with _url(Settings.load(database=database).database) as url, scratch(url) as place:
        rows = Suite(place, messages, rounds, _tell).run(large=large)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        _show(rows)


@contextmanager
def _url(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    with TemporaryDirectory(prefix="postroom-bench-") as directory:
        yield f"sqlite:///{Path(directory) / 'bench.db'}"


def _tell(what: str) -> None:
    if can_redraw() and sys.stderr.isatty():
        typer.echo(f"\r\x1b[K{what}", nl=False, err=True)


def _show(rows: Sequence[Row]) -> None:
    _tell("")
    titles = ("", "messages/s", "ratio to floor", "p50 ms", "p95 ms", "p99 ms")
    print_table(
        titles,
        [
            (
                row.name,
                None if row.messages_per_second is None else f"{row.messages_per_second:,.0f}",
                None if row.ratio_to_floor is None else f"{row.ratio_to_floor:.2f}",
                row.p50_ms,
                row.p95_ms,
                row.p99_ms,
            )
            for row in rows
        ],
        right=titles[1:],
    )
    if on_terminal():
        print_text("The floor of rates is the full floor, that of latencies the bare loop's p50.")
