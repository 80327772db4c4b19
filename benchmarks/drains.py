"""What the relay's drain of a backlog costs on each database: rate, processor time a message, statements.

``python -m benchmarks drains [--messages N] [--rounds N] [--beside SOURCE] [sqlite] [mariadb]``. Each run is a process
of its own, and all take turns in every round. `--beside` measures the code of another checkout as well, given the path
of its ``src``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.services.mariadb import MariaDB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KINDS = ("sqlite", "mariadb")
KEYS = {"no key": None, "10,000 keys": 10_000}
HERE = Path(__file__).parents[1]


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks drains")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--keys", choices=[*KEYS], action="append")
    parser.add_argument("databases", nargs="*", default=KINDS, choices=KINDS)
    given = parser.parse_args(arguments)
    sources = {"this": HERE / "src", **({} if given.beside is None else {"beside": given.beside})}
    for database in given.databases:
        with ExitStack() as stack:
            url, server = _open(database, stack)
            found: dict[str, list[dict[str, float]]] = {}
            for _ in range(given.rounds):
                for title in given.keys or KEYS:
                    for name, source in sources.items():
                        settings = {"url": url, "server": server, "messages": given.messages, "keys": KEYS[title]}
                        found.setdefault(f"{title}, {name}", []).append(_drained(settings, source))
        print(f"\n{database}, {given.messages:,} messages, medians of {given.rounds}")
        for line in _lines(found):
            print(line)


def _open(database: str, stack: ExitStack) -> tuple[str, int | None]:
    """The URL of a database that stores durably, and the process id of its server."""
    if database == "sqlite":
        directory = stack.enter_context(TemporaryDirectory(prefix="postroom-"))
        return f"sqlite:///{Path(directory) / 'bench.db'}", None
    server = MariaDB(durable=True)
    server.start()
    stack.callback(server.close)
    server.create_database("bench")
    return server.url("bench"), server.pid


def _drained(settings: dict[str, object], source: Path) -> dict[str, float]:
    program = subprocess.run(
        [sys.executable, "-m", "benchmarks.drain_program", json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{HERE}"},
        stdout=subprocess.PIPE,
        check=True,
    )
    measured: dict[str, float] = json.loads(program.stdout)
    return measured


def _lines(found: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    for name, runs in found.items():
        each = (f"{median(run[what] for run in runs):>10,.1f} {what}" for what in runs[0])
        yield f"  {name:<24}{'  '.join(each)}"
