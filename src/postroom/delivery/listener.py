"""Listens on PostgreSQL for commits, so that the engine need not wait for its next poll.

It only saves time: whatever does not work here, the engine finds its messages by polling.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from postroom.errors import PostroomError
from postroom.runtime.backoff import Backoff
from postroom.store.connections.opening import options_of
from postroom.store.connections.pooled import ONE_ROW, same_session
from postroom.store.connections.urls import dialect_of_url, with_driver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

KEEPALIVE: Final = 15.0
"""Seconds between two queries that check whether the connection is still alive."""
TIME_LIMIT: Final = 10.0
"""Seconds for the server to answer."""
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0


Wake = Callable[[str], None]


class Listener:
    """Calls a channel's function with each payload; and with none after each connect, for what was missed."""

    def __init__(self, url: str, channels: Mapping[str, Wake], *, keepalive: float = KEEPALIVE) -> None:
        self._url = url
        self._channels = channels
        self._keepalive = keepalive

    async def run(self) -> None:
        """Listen until cancelled. Reconnects after every failure, and raises none.

        Returns at once if it cannot listen: another database, no async driver, a pooler in between.
        """
        listen = self._way()
        if listen is None:
            return
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        while True:
            connected = _Connected()
            try:
                await listen(connected)
            except _PoolerBetween:
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the engine polls meanwhile
                del error
            if connected.once:
                backoff.reset()
            await _pause(backoff.next())

    def _way(self) -> Callable[[_Connected], Awaitable[None]] | None:
        try:
            if dialect_of_url(self._url) != "postgresql":
                return None
            url = with_driver(self._url, asynchronous=True)
        except PostroomError:
            return None
        asyncpg = url.drivername.endswith("+asyncpg")
        options = dict(options_of(url).named)
        return lambda connected: (self._with_asyncpg if asyncpg else self._with_psycopg)(options, connected)

    async def _with_asyncpg(self, options: dict[str, Any], connected: _Connected) -> None:
        import asyncpg

        connection = await asyncpg.connect(**options | {"timeout": TIME_LIMIT, "command_timeout": TIME_LIMIT})
        try:
            if await connection.execute(same_session(connection.get_server_pid())) != ONE_ROW:
                raise _PoolerBetween
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _: ended.set())
            for channel in self._channels:
                await connection.add_listener(
                    channel, lambda _connection, _pid, said_on, what: self._wake(said_on, what)
                )
            self._listening(connected)
            while not ended.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), self._keepalive)
                await connection.execute("SELECT 1")
        finally:
            connection.terminate()

    async def _with_psycopg(self, options: dict[str, Any], connected: _Connected) -> None:
        import psycopg
        from psycopg import sql

        async with asyncio.timeout(TIME_LIMIT):
            connection = await psycopg.AsyncConnection.connect(**options, autocommit=True)
        try:
            async with asyncio.timeout(TIME_LIMIT):
                found = await connection.execute(same_session(connection.info.backend_pid).encode())
                if await found.fetchone() is None:
                    raise _PoolerBetween
                for channel in self._channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self._listening(connected)
            while True:
                async for notice in connection.notifies(timeout=self._keepalive):
                    self._wake(notice.channel, notice.payload)
                async with asyncio.timeout(TIME_LIMIT):
                    await connection.execute("SELECT 1")
        finally:
            connection.pgconn.finish()  # at once: an orderly end could wait for a server that is gone

    def _listening(self, connected: _Connected) -> None:
        connected.once = True
        for channel in self._channels:
            self._wake(channel, "")

    def _wake(self, channel: str, what: str) -> None:
        self._channels[channel](what)


_pause = asyncio.sleep


class _Connected:
    """Whether an attempt got as far as listening."""

    once = False


class _PoolerBetween(Exception):
    """A pooler would give the session that listens to another client."""
