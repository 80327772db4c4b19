"""The listener on a real server: it wakes, comes back after every failure, and is quiet where it cannot listen."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import make_url

from postroom import Outbox
from postroom.delivery import listener
from postroom.delivery.listener import Listener
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from postroom.store.sql.names import Names, channel
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conftest import FreshDatabase
    from tests.services.pgbouncer import PgBouncer

CHANNEL = channel(Names.of("postgresql"), "default")
PATIENCE = 60.0
LISTENING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"

each_driver = pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])


@pytest.fixture(scope="module")
def database(module_database: FreshDatabase) -> str:
    url = module_database("postgresql")
    with closing(Store(url)) as store:
        store.call(lambda connection: upgrade(connection, store.names))
    return url


def ignore(_what: str) -> None:
    """Let it be said."""


class Woken:
    """Counts the calls of `wake`, and waits for more of them."""

    def __init__(self) -> None:
        self.times = 0
        self._more = asyncio.Event()

    def wake(self, _what: str = "") -> None:
        self.times += 1
        self._more.set()

    async def again(self) -> None:
        """Wait for the next call, or for one since the last wait."""
        await asyncio.wait_for(self._more.wait(), PATIENCE)
        self._more.clear()


@asynccontextmanager
async def listening(url: str, driver: str, keepalive: float = listener.KEEPALIVE) -> AsyncIterator[Woken]:
    """A listener that has connected."""
    woken = Woken()
    named = make_url(url).set(drivername=f"postgresql+{driver}").render_as_string(hide_password=False)
    task = asyncio.create_task(Listener(named, {CHANNEL: woken.wake}, keepalive=keepalive).run())
    try:
        await woken.again()
        yield woken
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@each_driver
async def test_it_wakes_once_connected_and_at_each_commit_with_messages(driver: str, database: str) -> None:
    outbox = Outbox(notify=True)
    async with listening(database, driver) as woken:
        for _ in range(3):
            async with await psycopg.AsyncConnection.connect(database) as producer:
                await outbox.aadd(producer, "orders", 1)
            await woken.again()


@each_driver
async def test_it_comes_back_after_the_server_ended_its_session(driver: str, database: str) -> None:
    async with (
        listening(database, driver) as woken,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as other,
    ):
        for _ in range(2):
            await other.execute(f"SELECT pg_terminate_backend(pid) FROM ({LISTENING})")
            await woken.again()
        await other.execute("SELECT pg_notify(%s, '')", [CHANNEL])
        await woken.again()


@each_driver
async def test_it_comes_back_after_an_outage_of_the_server(driver: str, postgresql_server: PostgreSQL) -> None:
    del postgresql_server  # where there is none, there is no second one either
    with closing(PostgreSQL()) as own:
        await asyncio.to_thread(own.start)
        async with listening(own.url("postgres"), driver) as woken:
            await asyncio.to_thread(own.stop, kill=True)
            await asyncio.to_thread(own.start)
            await woken.again()


@each_driver
async def test_the_connection_is_tried_while_nothing_is_said(driver: str, database: str) -> None:
    tried = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT 1' AND datname = current_database()"
    async with (
        listening(database, driver, keepalive=0.05) as woken,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as other,
    ):
        async with asyncio.timeout(PATIENCE):
            while await (await other.execute(tried)).fetchone() == (0,):  # noqa: ASYNC110 - the server's, not ours
                await asyncio.sleep(0.05)
        await other.execute("SELECT pg_notify(%s, '')", [CHANNEL])
        await woken.again()


@each_driver
async def test_behind_a_pooler_it_leaves_the_shared_session_alone(
    driver: str, database: str, pgbouncer: PgBouncer
) -> None:
    woken = Woken()
    url = make_url(pgbouncer.url(database.rpartition("/")[2])).set(drivername=f"postgresql+{driver}")
    await asyncio.wait_for(Listener(url.render_as_string(), {CHANNEL: woken.wake}).run(), PATIENCE)
    assert woken.times == 0
    async with await psycopg.AsyncConnection.connect(database) as other:
        assert await (await other.execute(LISTENING)).fetchall() == []


@pytest.mark.parametrize("url", ["sqlite:///shop.db", "mysql://shop@db/shop", "oracle://db", "no url"])
async def test_where_one_cannot_listen_it_returns_at_once(url: str) -> None:
    await asyncio.wait_for(Listener(url, {CHANNEL: ignore}).run(), PATIENCE)


@each_driver
async def test_a_server_that_is_not_there_is_tried_again(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 10:
            enough.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(listener, "_pause", pause)
    task = asyncio.create_task(Listener(f"postgresql+{driver}://127.0.0.1:1/none", {CHANNEL: ignore}).run())
    await asyncio.wait_for(enough.wait(), PATIENCE)
    task.cancel()
    assert pauses == sorted(pauses)
    assert pauses[-1] == listener.LONGEST_PAUSE
