"""Participants given as URLs: engines that are made here, and closed here."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError

from postroom.errors import DatabaseUnreachable, DriverMissing
from postroom.store.connections.pooled import keep_nothing_behind_a_pooler
from postroom.store.connections.urls import dialect_of_url, resolve, shown
from postroom.store.sql.db_errors import reason
from postroom.twophase.lines import Opener
from postroom.twophase.openers.sqlalchemy import AsyncEngines, Engines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL

    from postroom.twophase.lines import Line

CONNECTING = 10
"""Seconds for a server to accept a connection, unless the URL says otherwise."""
BUSY_SECONDS = 30
"""How long SQLite waits for another writer."""
KEPT = 5
"""Connections that stay open between transactions. There may be more at a time."""


class Url(Opener):
    """Lines to the database of a URL, for sync and async code. Each event loop has connections of its own."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__()
        self._url = url
        self._name = name
        self._dialect = dialect_of_url(url)
        self._making = threading.Lock()
        self._lines: Engines | None = None
        self._async_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEngines] = WeakKeyDictionary()

    def open(self) -> Line:
        with self._making:
            lines = self._lines
            if lines is None:
                lines = self._lines = self._made()
        with self._reachable():
            return lines.open()

    async def aopen(self) -> Line:
        loop = asyncio.get_running_loop()
        with self._making:
            lines = self._async_lines.get(loop)
            if lines is None:
                lines = self._async_lines[loop] = self._made_async()
        with self._reachable():
            return await lines.aopen()

    def _made(self) -> Engines:
        url = resolve(self._url)
        engine = create_engine(url, **self._options(url))
        self._watch(engine)
        return Engines(engine, self._name)

    def _made_async(self) -> AsyncEngines:
        try:
            from sqlalchemy.ext.asyncio import create_async_engine  # needs greenlet, which sync users may not have
        except ImportError:
            raise DriverMissing("async participants need greenlet: pip install 'postroom[asyncio]'") from None
        url = resolve(self._url, asynchronous=True)
        engine = create_async_engine(url, **self._options(url))
        self._watch(engine.sync_engine)
        return AsyncEngines(engine, self._name)

    def close(self) -> None:
        with self._making:
            lines, self._lines = self._lines, None
        if lines is not None:
            lines.engine.dispose()

    async def aclose(self) -> None:
        self.close()
        with self._making:
            lines = self._async_lines.pop(asyncio.get_running_loop(), None)
        if lines is not None:
            await lines.engine.dispose()

    def _watch(self, engine: Any) -> None:
        if self._dialect == "postgresql":
            keep_nothing_behind_a_pooler(engine)

    def _options(self, url: URL) -> dict[str, Any]:
        options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"}  # now, rather than for each transaction
        if self._dialect == "sqlite":
            return {**options, "connect_args": {"timeout": BUSY_SECONDS}}
        options |= {"pool_size": KEPT, "max_overflow": -1, "pool_pre_ping": True}
        if url.get_driver_name() != "asyncpg" and "connect_timeout" not in url.query:
            options["connect_args"] = {"connect_timeout": CONNECTING}
        return options

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, OSError) as error:
            raise DatabaseUnreachable(f"the database {shown(self._url)} cannot be reached: {reason(error)}") from error
