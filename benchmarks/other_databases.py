"""What the relay's drain of a backlog costs on SQLite and MariaDB: rate, processor time a message, statements.

``python -m benchmarks other_databases [--messages N] [--rounds N] [sqlite] [mariadb]``. Each run is a process of its
own, and all take turns in every round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.rounds import note
from tests.services.mariadb import MariaDB

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = ("sqlite", "mariadb")
KEYS = {"no key": None, "10,000 keys": 10_000}


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks other_databases")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keys", choices=[*KEYS], action="append")
    parser.add_argument("databases", nargs="*", choices=[*KINDS, []], metavar="DATABASE")
    given = parser.parse_args(arguments)
    for database in given.databases or KINDS:
        with ExitStack() as stack:
            url, server = _open(database, stack)
            found: dict[str, list[dict[str, float]]] = {}
            for _ in range(given.rounds):
                for title in given.keys or KEYS:
                    settings = {"url": url, "server": server, "messages": given.messages, "keys": KEYS[title]}
                    found.setdefault(title, []).append(_drained(settings))
        print(f"\n{database}, {given.messages:,} messages, medians of {given.rounds}")
        for name, runs in found.items():
            medians = {what: median(run[what] for run in runs) for what in runs[0]}
            print(f"  {name:<24}" + "  ".join(f"{value:>10,.1f} {what}" for what, value in medians.items()))
            note({f"{database}, {name}, {what}": value for what, value in medians.items()})


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


def _drained(settings: dict[str, object]) -> dict[str, float]:
    program = subprocess.run(
        [sys.executable, "-m", "benchmarks.drain_program", json.dumps(settings)], stdout=subprocess.PIPE, check=True
    )
    measured: dict[str, float] = json.loads(program.stdout)
    return measured
