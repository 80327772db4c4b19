"""Start-up time: importing the outbox and one `add` with sqlite3, next to `import sqlalchemy` alone; and a relay's.

A relay's is the processor time of ``postroom relay --once`` on an empty outbox, from start to end.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.rounds import note
from tests.services import registry
from tests.services.databases import fresh_database

ROUNDS = 21
RELAYS = 7
LIMIT = 1.3
"""The highest acceptable ratio."""

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


def measure_relay(kind: str, rounds: int = RELAYS) -> float:
    """The median of a relay's processor time, in seconds, on one kind of database."""
    with TemporaryDirectory(prefix="postroom-") as directory, fresh_database(kind) as url:
        environment = _environment(directory)
        _postroom(["init", "--database", url], directory, environment)
        relay = ["relay", "--once", "--broker", "stdout:", "--database", url, "--log-level", "error"]
        _postroom(relay, directory, environment)
        return median(_postroom(relay, directory, environment) for _ in range(rounds))


def _environment(directory: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    return environment | {"PYTHONPYCACHEPREFIX": str(Path(directory) / "compiled")}


def _postroom(arguments: list[str], directory: str, environment: dict[str, str]) -> float:
    """Run a command; returns its processor time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "postroom", *arguments]
    subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
        print(f"  {f'postroom relay --once on {kind}, processor time':<44} {relay * 1000:>10,.1f} ms")
        note({f"a relay's start and end on {kind}, ms": relay * 1000})
    registry.close_all()


if __name__ == "__main__":
    main()
