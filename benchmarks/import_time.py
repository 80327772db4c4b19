"""Start-up time: importing the outbox and one `add` with sqlite3, next to `import sqlalchemy` alone; and a relay's.

A relay's are the time from its process's start until it has delivered a message, which it claims first, and the
processor time of its process until it ends, of ``postroom relay --once`` with one message in the outbox.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from sqlalchemy import create_engine

from benchmarks.rounds import note
from postroom import Outbox
from postroom.store.connections.urls import resolve
from tests.services import registry
from tests.services.databases import fresh_database

ROUNDS = 21
RELAYS = 7
LIMIT = 1.3
"""The highest acceptable ratio."""
SOON = 0.25
"""Seconds in which a relay should have claimed its first message."""

FOREIGN = ("PYTHONDONTWRITEBYTECODE", "COVERAGE_", "POSTROOM_")
"""Variables that would change what is measured."""

SQLALCHEMY = "import sqlalchemy"
ADD = """
from postroom import Outbox
import sqlite3
connection = sqlite3.connect("app.db")
Outbox().add(connection, "orders.created", {"order_id": 7}, key=7)
connection.rollback()
connection.close()
"""


class Times(NamedTuple):
    """Medians over new interpreters, in seconds, from the first statement to the last."""

    add: float
    sqlalchemy: float

    @property
    def ratio(self) -> float:
        """The time for the outbox and an `add`, relative to `import sqlalchemy`."""
        return self.add / self.sqlalchemy


def measure(rounds: int = ROUNDS) -> Times:
    """Run both in turn, each time in a new interpreter. Both are byte-compiled beforehand."""
    with TemporaryDirectory(prefix="postroom-") as directory:
        environment = _environment(directory)
        _postroom(["init", "--database", "sqlite:///app.db"], directory, environment)
        for program in (ADD, SQLALCHEMY):
            _seconds(program, directory, environment)
        times = [[_seconds(program, directory, environment) for program in (ADD, SQLALCHEMY)] for _ in range(rounds)]
    return Times(*map(median, zip(*times, strict=True)))


class RelayTimes(NamedTuple):
    """Medians over new processes, in seconds."""

    first: float
    """From the start until the first message is on standard output."""
    processor: float
    """Processor time from the start to the end."""


def measure_relay(kind: str, rounds: int = RELAYS) -> RelayTimes:
    """Start relays on one kind of database, each with one message to deliver."""
    with TemporaryDirectory(prefix="postroom-") as directory, fresh_database(kind) as url:
        environment = _environment(directory)
        _postroom(["init", "--database", url], directory, environment)
        relay = ["relay", "--once", "--broker", "stdout:", "--database", url, "--log-level", "error"]
        engine = create_engine(resolve(url))
        times = []
        for _ in range(rounds + 1):
            with engine.begin() as connection:
                Outbox().add(connection, "orders.created", {"order_id": 7})
            times.append(_postroom(relay, directory, environment))
        engine.dispose()
        return RelayTimes(*map(median, zip(*times[1:], strict=True)))  # the first one compiles to bytecode


def _environment(directory: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return environment | {"PYTHONPYCACHEPREFIX": str(Path(directory) / "compiled")}


def _postroom(arguments: list[str], directory: str, environment: dict[str, str]) -> RelayTimes:
    """Run a command to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "postroom", *arguments]
    start = time.perf_counter()
    with subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.PIPE) as process:
        said = process.stdout.readline() if process.stdout else b""
        first = time.perf_counter() - start
    if process.returncode != 0 or not said:
        raise RuntimeError(f"postroom {arguments[0]} ended with {process.returncode}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return RelayTimes(first, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _seconds(program: str, directory: str, environment: dict[str, str]) -> float:
    timed = f"import time\nstart = time.perf_counter()\n{program}\nprint(time.perf_counter() - start)"
    ended = subprocess.run(
        [sys.executable, "-c", timed], cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return float(ended.stdout)


def main() -> None:
    """Print the times, and the ratio."""
    times = measure()
    print(f"\nStarting, median of {ROUNDS} fresh interpreters")
    print(f"  {'from postroom import Outbox, and one add':<44} {times.add * 1000:>10,.1f} ms")
    print(f"  {SQLALCHEMY:<44} {times.sqlalchemy * 1000:>10,.1f} ms   ratio {times.ratio:.2f}, at most {LIMIT}")
    for kind in ("sqlite", "postgresql", "mariadb"):
        relay = measure_relay(kind)
        print(f"  {f'postroom relay on {kind}, to the first message':<44} {relay.first * 1000:>10,.1f} ms", end="")
        print(f"   at most {SOON * 1000:.0f}; processor time {relay.processor * 1000:,.1f} ms")
        note({f"a relay's first message on {kind}, ms": relay.first * 1000})
        note({f"a relay's start and end on {kind}, ms": relay.processor * 1000})
    registry.close_all()


if __name__ == "__main__":
    main()
