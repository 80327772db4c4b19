"""Start-up time: importing the outbox and one `add` with sqlite3, next to `import sqlalchemy` alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROUNDS = 21
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
        environment = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(directory) / "compiled")
        subprocess.run(
            [sys.executable, "-m", "postroom", "init", "--database", "sqlite:///app.db"],
            cwd=directory,
            env=environment,
            check=True,
            capture_output=True,
        )
        for program in (ADD, SQLALCHEMY):
            _seconds(program, directory, environment)
        times = [[_seconds(program, directory, environment) for program in (ADD, SQLALCHEMY)] for _ in range(rounds)]
    return Times(*map(median, zip(*times, strict=True)))


def _seconds(program: str, directory: str, environment: dict[str, str]) -> float:
    timed = f"import time\nstart = time.perf_counter()\n{program}\nprint(time.perf_counter() - start)"
    ended = subprocess.run(
        [sys.executable, "-c", timed], cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return float(ended.stdout)


def main() -> None:
    """Print both times and the ratio."""
    times = measure()
    print(f"\nStarting, median of {ROUNDS} fresh interpreters")
    print(f"  {'from postroom import Outbox, and one add':<44} {times.add * 1000:>10,.1f} ms")
    print(f"  {SQLALCHEMY:<44} {times.sqlalchemy * 1000:>10,.1f} ms   ratio {times.ratio:.2f}, at most {LIMIT}")


if __name__ == "__main__":
    main()
