"""An import that is killed or stopped in the middle, and one that follows a producer: each row becomes one message."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

from postroom import Admin
from postroom.store.connections.urls import resolve
from tests.acceptance import other_outboxes
from tests.crash.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase

PATIENCE = 60
ROWS = 600
KEYS = 7


class Table:
    """The table of txoutbox, beside our outbox."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = create_engine(resolve(url), pool_pre_ping=True)
        other_outboxes.txoutbox(url, [("orders", {"n": n}, f"k{n % KEYS}") for n in range(ROWS)])

    def close(self) -> None:
        self._engine.dispose()

    def count(self, status: str) -> int:
        with self._engine.connect() as connection:
            found = connection.execute(text("SELECT count(*) FROM outbox WHERE status = :status"), {"status": status})
            return int(found.scalar_one())

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """The database ends all connections, and takes no new ones meanwhile."""
        url = resolve(self.url)
        elsewhere = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
        with elsewhere.connect() as connection:
            connection.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS false'))
            there = {"name": url.database}
            connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), there
            )
            yield
            connection.execute(text(f'ALTER DATABASE "{url.database}" ALLOW_CONNECTIONS true'))
        elsewhere.dispose()

    def write(self, first: int, count: int) -> None:
        """What an old producer does."""
        with self._engine.begin() as connection:
            for n in range(first, first + count):
                at = "unixepoch()" if self.url.startswith("sqlite") else "now()"
                connection.execute(
                    text(f"INSERT INTO outbox (topic, key, payload, created_at) VALUES ('orders', :key, :body, {at})"),
                    {"key": f"k{n % KEYS}", "body": json.dumps({"n": n}).encode()},
                )

    def messages(self) -> dict[str, list[int]]:
        """The numbers in our outbox, by key, in the order in which they leave."""
        found: dict[str, list[int]] = {}
        with Admin(self.url) as admin:
            names = admin._store.names.mapping()
        with self._engine.connect() as connection:
            rows = connection.execute(
                text(
                    f"SELECT m.ordering_key, m.payload FROM {names['outbox']} m JOIN {names['delivery']} d "
                    "ON d.position = m.position ORDER BY m.position"
                )
            )
            for key, body in rows:
                found.setdefault(key, []).append(json.loads(bytes(body))["n"])
        return found


@pytest.fixture
def importing(ready_database: FreshDatabase, tmp_path: Path) -> Iterator[Callable[[str], Table]]:
    tables: list[Table] = []

    def make(kind: str) -> Table:
        tables.append(Table(ready_database(kind)))
        return tables[-1]

    yield make
    for table in tables:
        table.close()


def started(table: Table, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "postroom", "import", "txoutbox", "--json", *options, "--database", table.url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, Any, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, json.loads(out) if out else None, err


def in_order(count: int) -> dict[str, list[int]]:
    return {f"k{key}": list(range(key, count, KEYS)) for key in range(KEYS)}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_killed_in_the_middle_and_run_again_each_row_is_there_once(
    kind: str, importing: Callable[[str], Table]
) -> None:
    table = importing(kind)
    process = started(table, "--batch", "5")
    wait_until(lambda: table.count("done") >= 100, "a part is imported")
    process.kill()
    process.communicate()
    done = table.count("done")
    assert 0 < done < ROWS
    assert sum(map(len, table.messages().values())) == done
    if kind == "postgresql":  # what a signal does is the same on all
        process = started(table, "--batch", "5")
        wait_until(lambda: table.count("done") > done, "another part is imported")
        process.send_signal(signal.SIGTERM)
        code, told, err = ended(process)
        assert (code, told["stopped"], told["unsent"] > 0) == (1, True, True)
        assert "stopped before the end: run it again for the rest" in err
    code, told, err = ended(started(table))
    assert (code, told["unsent"], told["duplicates"], err) == (0, 0, 0, "")
    assert table.messages() == in_order(ROWS)


def test_following_takes_what_old_producers_still_write(importing: Callable[[str], Table]) -> None:
    table = importing("postgresql")

    def produce() -> None:
        for n in range(20):
            table.write(ROWS + 10 * n, 10)

    written = threading.Thread(target=produce)
    written.start()
    process = started(table, "--follow", "--batch", "50")
    late = threading.Timer(PATIENCE, process.kill)  # its lines are waited for
    late.start()
    written.join()
    wait_until(lambda: not table.count("pending"), "all is imported", lambda: table.count("pending"))
    assert process.stderr is not None
    assert "a relay sends what is imported; rows that a relay has leased" in process.stderr.readline()
    with table.unreachable():
        assert "trying again until it is there" in process.stderr.readline()
    table.write(ROWS + 200, 1)
    wait_until(lambda: not table.count("pending"), "that is imported too")
    process.send_signal(signal.SIGTERM)
    code, told, err = ended(process)
    late.cancel()
    assert (code, told["added"], told["unsent"], told["stopped"], err) == (0, ROWS + 201, 0, False, "")
    assert table.messages() == in_order(ROWS + 201)
