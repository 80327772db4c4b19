"""Drains a backlog with the relay once, and prints what that cost: a program for `benchmarks.other_databases`."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psutil
import pymysql
from sqlalchemy import make_url

from postroom.bench.drains import drain
from postroom.bench.scratch import Scratch, scratch
from postroom.store.connections.sync_kinds import Sqlite3

if TYPE_CHECKING:
    from postroom.store.sql.steps import Query, Result

WARM_UP = 3000


class Counter:
    """Counts what SQLite is asked: there, no server does."""

    def __init__(self) -> None:
        self.statements = 0

    def install(self) -> None:
        """Count from now on."""
        execute = Sqlite3.execute

        def counted(kind: Sqlite3, query: Query) -> Result:
            self.statements += 1
            return execute(kind, query)

        setattr(Sqlite3, "execute", counted)  # noqa: B010 - mypy knows no other way to replace a method


class Meter:
    """What was spent so far: processor time of this process and of the server, and statements."""

    def __init__(self, place: Scratch, server: int | None) -> None:
        self._place = place
        self._server = None if server is None else psutil.Process(server)
        self._counter = Counter()
        self._counter.install()

    def read(self) -> tuple[float, float, int]:
        """Seconds here, seconds of the server, and statements."""
        of_server = 0.0 if self._server is None else sum(self._server.cpu_times()[:2])
        return time.process_time(), of_server, self._statements()

    def _statements(self) -> int:
        if self._place.dialect != "mysql":
            return self._counter.statements
        url = make_url(self._place.url)
        with closing(
            pymysql.connect(
                host=url.host, port=url.port or 0, user=url.username, database=url.database, ssl_disabled=True
            )
        ) as connection:
            cursor = connection.cursor()
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
            return int(dict(cursor.fetchall())["Questions"])


def main() -> None:
    """Run with the settings given as JSON in the only argument."""
    given: dict[str, Any] = json.loads(sys.argv[1])
    messages, keys = given["messages"], given["keys"]
    with scratch(given["url"]) as place, asyncio.Runner() as runner:
        place.fill(WARM_UP, keys)
        runner.run(drain(place, WARM_UP))
        place.fill(messages, keys)
        meter = Meter(place, given["server"])
        gc.collect()
        gc.freeze()  # as `postroom relay` does
        before = meter.read()
        rate = runner.run(drain(place, messages))
        after = meter.read()
        left, receipts = place.counts()
        if (left, receipts) != (0, messages):
            raise AssertionError(f"{left:,} messages are left, {receipts:,} have a receipt")
    here, server, statements = (now - then for now, then in zip(after, before, strict=True))
    sys.stdout.write(
        json.dumps(
            {
                "messages/s": rate,
                "Python µs": here / messages * 1e6,
                "server µs": server / messages * 1e6,
                "statements/1000": statements / messages * 1000,
            }
        )
    )


if __name__ == "__main__":
    main()
