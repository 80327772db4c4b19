"""A database that hangs: it answers nothing, refuses nothing, and does not even let go."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.delivery import heartbeat
from postroom.delivery.destination import PublishToBroker
from postroom.delivery.heartbeat import Heartbeat
from postroom.delivery.queue import EngineOptions, Queue
from postroom.delivery.queue_worker import QueueWorker
from postroom.runtime import time_limits as limits
from postroom.runtime.time_limits import within
from postroom.store.connections import reconnecting
from postroom.store.connections.reconnecting import Database, Outage
from postroom.store.connections.shared import ConnectionSet
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers
from postroom.store.sql.names import Names
from postroom.store.sql.steps import Query
from postroom.telemetry.events import Beat, Event, Reachability

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroom.store.connections.stores import ConnectionFactory, RunSteps
    from postroom.store.sql.steps import Steps

SOON = 0.05
PATIENCE = 60
HANGS = "SELECT 'what waits for a lock'"


class Server:
    """A store on which everything waits while it hangs, even for its end; and one statement always does."""

    def __init__(self, dialect: str = "postgresql") -> None:
        self.names = Names.of(dialect, None, None)
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.opened = 0
        self.closed: list[type[BaseException] | None] = []
        self.told: list[bool] = []
        self.asked = asyncio.Event()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[RunSteps]:
        await self.goes_on.wait()
        self.opened += 1

        async def work(steps: Steps[None]) -> None:
            query = next(steps)
            self.asked.set()
            try:
                await (asyncio.Event() if query.text == HANGS else self.goes_on).wait()
            except asyncio.CancelledError:
                await self.goes_on.wait()
                raise

        error: BaseException | None = None
        try:
            yield cast("RunSteps", work)
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                await self.goes_on.wait()
            finally:
                self.closed.append(type(error) if error else None)

    async def end(self) -> None:
        """All that was left behind comes to its end."""
        self.goes_on.set()
        async with asyncio.timeout(PATIENCE):
            while self.opened > len(self.closed):  # noqa: ASYNC110 - it sets no event
                await asyncio.sleep(0)

    def listen(self, event: Event) -> None:
        if isinstance(event, Reachability):
            self.told.append(event.reachable)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE", SOON)
    monkeypatch.setattr(reconnecting, "CLOSING", SOON)
    monkeypatch.setattr(reconnecting, "A_MOMENT", SOON)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def database(server: Server) -> Database:
    return Database(cast("ConnectionFactory", server), server.listen)


def quick() -> Steps[None]:
    yield Query("SELECT 1")


def slow() -> Steps[None]:
    yield Query(HANGS)


async def test_R_5_a_database_that_hangs_is_an_outage_and_is_not_waited_for(server: Server, database: Database) -> None:
    connection = database.connect(SOON)
    await connection.attempt(quick())
    server.goes_on.clear()
    for _ in range(2):  # with the connection that was open, and with one that does not open
        with pytest.raises(Outage, match=f"no answer within {SOON:g} s"):
            await asyncio.wait_for(connection.attempt(quick()), PATIENCE)
    assert (server.told, server.closed) == ([False], [])
    server.goes_on.set()
    await connection.attempt(quick())
    assert server.told == [False, True]
    await connection.close()
    await server.end()
    assert set(server.closed) == {asyncio.CancelledError, Outage}


async def test_R_5_a_statement_that_takes_too_long_is_no_outage_where_the_database_answers(
    server: Server, database: Database
) -> None:
    connection = database.connect(SOON)
    with pytest.raises(Outage):
        await asyncio.wait_for(connection.attempt(slow()), PATIENCE)
    assert server.told == []
    assert server.closed == [asyncio.CancelledError]
    await connection.attempt(quick())
    assert server.opened == 2


async def test_R_4_a_part_that_is_cancelled_does_not_wait_for_a_database_that_hangs(
    server: Server, database: Database
) -> None:
    connection = database.connect()
    await connection.attempt(quick())
    server.goes_on.clear()
    server.asked.clear()
    work = asyncio.create_task(connection.attempt(quick()))
    await server.asked.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(work, PATIENCE)
    await server.end()
    assert (server.told, server.closed) == ([], [asyncio.CancelledError])


async def test_R_4_a_connection_is_closed_without_waiting_for_a_database_that_hangs(
    server: Server, database: Database
) -> None:
    connection = database.connect()
    await connection.attempt(quick())
    server.goes_on.clear()
    await asyncio.wait_for(connection.close(), PATIENCE)
    await server.end()


async def test_R_5_sqlite_gives_up_by_itself_and_has_no_limit_of_ours() -> None:
    """What runs in a thread goes on whether or not somebody waits for it."""
    server = Server("sqlite")
    connection = Database(cast("ConnectionFactory", server), server.listen).connect(0.0)
    await connection.attempt(quick())
    assert server.told == []


async def test_V_4_a_heartbeat_that_waits_for_its_connection_tells_so(
    server: Server, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many share one: while the database hangs, the last would have its turn too late to count as alive."""
    monkeypatch.setattr(heartbeat, "LONGEST_BEAT", SOON)
    told: asyncio.Queue[Beat] = asyncio.Queue()

    def listen(event: Event) -> None:
        if isinstance(event, Beat):
            told.put_nowait(event)

    connection = database.connect()
    worker = QueueWorker(
        queue=Queue(name="default", destination=PublishToBroker(MemoryBroker()), hook=listen),
        options=EngineOptions(worker="w", lane_lease=SOON),
        store=QueueStore(server.names),
        workers=Workers(server.names, "default"),
        connections=ConnectionSet(connection, connection, (connection, connection), (connection, connection)),
        stopping=asyncio.Event(),
        moved_to=lambda _: None,
    )
    other = asyncio.create_task(connection.attempt(slow()))
    beating = asyncio.create_task(Heartbeat([worker.lease_keeper], SOON / 4).run())
    for _ in range(2):
        assert not (await asyncio.wait_for(told.get(), PATIENCE)).reached
    for task in (other, beating):
        task.cancel()
    await asyncio.wait({other, beating})


async def test_work_that_ends_in_time_gives_its_result_or_its_error() -> None:
    async def work(number: int) -> float:
        await asyncio.sleep(0)
        return 1 / number

    assert await within(None, work(2)) == 0.5
    with pytest.raises(ZeroDivisionError):
        await within(PATIENCE, work(0))
