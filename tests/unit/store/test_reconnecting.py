"""Several connections and one outage: it is said once that the database is gone, and once that it is back."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from postroom.store.connections.reconnecting import CannotWrite, Database, Outage
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query, Result, run
from postroom.telemetry.events import Event, Reachability

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.connections.stores import ConnectionFactory, RunSteps
    from postroom.store.sql.steps import Steps


def nothing() -> Steps[None]:
    yield from ()


class Server:
    """A store whose connections break when it goes down, and stay so."""

    names = Names.of("postgresql", None, None)

    def __init__(self) -> None:
        self.up = True
        self.starts = 0
        self.told: list[bool] = []
        self.pace: asyncio.Event | None = None
        """What a statement waits for, where it takes long."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[RunSteps]:
        self._answer(self.starts)
        since = self.starts

        async def work(steps: Steps[None]) -> None:
            if self.pace:
                await self.pace.wait()
            self._answer(since)
            run(steps, lambda query: pytest.fail(query.text))

        yield cast("RunSteps", work)

    def _answer(self, since: int) -> None:
        if not self.up or since != self.starts:
            raise ConnectionResetError("the server is gone")

    def restart(self) -> None:
        self.up = True
        self.starts += 1

    def listen(self, event: Event) -> None:
        assert isinstance(event, Reachability)
        self.told.append(event.reachable)


async def fails(connection: ReconnectingConnection) -> bool:
    try:
        await connection.attempt(nothing())
    except Outage:
        return True
    return False


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def database(server: Server) -> Database:
    return Database(cast("ConnectionFactory", server), server.listen)


async def test_R_5_a_connection_that_was_idle_during_an_outage_does_not_report_it_again(
    server: Server, database: Database
) -> None:
    busy, idle = database.connect(), database.connect()
    assert [await fails(connection) for connection in (busy, idle)] == [False, False]
    server.up = False
    assert [await fails(busy) for _ in range(3)] == [True, True, True]
    server.restart()
    assert [await fails(connection) for connection in (busy, idle)] == [False, False]
    assert server.told == [False, True]


async def test_R_5_a_statement_that_learns_of_an_outage_late_does_not_report_it_again(
    server: Server, database: Database
) -> None:
    busy, slow = database.connect(), database.connect()
    assert [await fails(connection) for connection in (busy, slow)] == [False, False]
    server.pace = asyncio.Event()
    late = asyncio.create_task(fails(slow))
    await asyncio.sleep(0)
    pace, server.pace = server.pace, None
    server.up = False
    assert await fails(busy)
    server.restart()
    assert not await fails(busy)
    pace.set()
    assert await late
    assert not await fails(slow)
    assert server.told == [False, True]


async def test_R_5_an_attempt_from_within_an_outage_does_not_report_another_one(
    server: Server, database: Database
) -> None:
    quick, slow = database.connect(), database.connect()
    server.up = False
    assert [await fails(connection) for connection in (quick, slow)] == [True, True]
    server.restart()
    server.pace = asyncio.Event()
    late = asyncio.create_task(fails(slow))  # to a server that is just starting
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    pace, server.pace = server.pace, None
    assert not await fails(quick)
    server.starts += 1  # and that does not answer this one
    pace.set()
    assert await late
    assert server.told == [False, True]


class Full:
    """A store on a disk that may be full: it answers, and stores nothing then."""

    names = Names.of("sqlite", None, None)

    def __init__(self) -> None:
        self.is_full = False
        self.told: list[tuple[bool, str]] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[RunSteps]:
        async def work(steps: Steps[None]) -> None:
            run(steps, self._execute)

        yield cast("RunSteps", work)

    def _execute(self, query: Query) -> Result:
        if query.text.startswith("UPDATE"):
            return Result(())  # it found no row
        if query.text.startswith("INSERT") and self.is_full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return Result([(1,)])

    def listen(self, event: Event) -> None:
        assert isinstance(event, Reachability)
        self.told.append((event.reachable, event.reason))


async def test_R_5_a_full_disk_is_reported_once_until_something_is_stored_again() -> None:
    server = Full()
    database = Database(cast("ConnectionFactory", server), server.listen)
    connection, other = database.connect(), database.connect()

    async def attempt(verb: str) -> None:
        for one in (connection, other):
            await one.attempt(statement(verb))

    def statement(verb: str) -> Steps[None]:
        yield Query(f"{verb} something")

    await attempt("INSERT")
    server.is_full = True
    for _ in range(3):
        for verb in ("SELECT", "UPDATE"):
            await attempt(verb)
        for one in (connection, other):
            with pytest.raises(CannotWrite):
                await one.attempt(statement("INSERT"))
    assert server.told == [(False, "database or disk is full")]
    server.is_full = False
    await attempt("SELECT")
    assert len(server.told) == 1
    await attempt("INSERT")
    await attempt("SELECT")
    assert server.told[1:] == [(True, "")]


async def test_R_5_an_error_of_our_own_is_no_outage_and_is_logged_once(
    server: Server, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def undecodable() -> Steps[None]:
        msgspec.json.decode(b"{")
        yield from ()

    connection = database.connect()
    for _ in range(3):
        with pytest.raises(Outage):
            await connection.attempt(undecodable())
    assert not await fails(connection)
    assert server.told == []
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ["an operation on the database has failed with DecodeError"]


async def test_what_is_for_one_connection_is_not_done_on_another(server: Server, database: Database) -> None:
    """Whoever remembers something of a connection is told that it is gone, also where another connection found out."""
    connection, other = database.connect(), database.connect()
    number = connection.connections
    await connection.attempt(nothing(), number)
    await other.attempt(nothing())
    server.restart()
    assert await fails(other)
    with pytest.raises(Outage, match="is gone"):
        await connection.attempt(nothing(), number)
    assert connection.connections > number
    await connection.attempt(nothing(), connection.connections)


async def test_a_connection_that_failed_is_counted_at_once(server: Server, database: Database) -> None:
    connection = database.connect()
    number = connection.connections
    await connection.attempt(nothing(), number)
    server.restart()
    assert await fails(connection)
    assert connection.connections > number
