"""An SQLAlchemy engine with an async driver, for connections of our own.

Like `sqlalchemy.ext.asyncio`, which would also load the ORM: a relay starts sooner without it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import create_engine
from sqlalchemy.util import greenlet_spawn

from postroom.errors import DriverMissing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sqlalchemy import URL, Connection

T = TypeVar("T")

_ASYNC_NAMES = {"psycopg": "psycopg_async"}
"""SQLAlchemy's names for drivers that are both sync and async."""
CLOSING = 3.0
"""Seconds that a cancelled task waits for its connection to close: a server that hangs would keep it for ever."""


class AsyncEngine:
    """Opens and pools connections. Every statement outside of a transaction commits by itself."""

    def __init__(self, url: URL) -> None:
        if find_spec("greenlet") is None:  # which sync users may not have
            raise DriverMissing("async connections need greenlet: pip install 'postroom[asyncio]'")
        self.url = url
        family, _, driver = url.drivername.partition("+")
        # No limit: a relay with many connections would wait for its own. SQLite may have no pool.
        unlimited = {} if family == "sqlite" else {"max_overflow": -1}
        self.sync = create_engine(
            url.set(drivername=f"{family}+{_ASYNC_NAMES.get(driver, driver)}"),
            isolation_level="AUTOCOMMIT",
            pool_pre_ping=True,
            **unlimited,
        )

    @asynccontextmanager
    async def connect(self, **options: Any) -> AsyncIterator[Connection]:
        """A connection with these execution options; whatever waits for the server runs in `waiting_for`."""
        engine = self.sync.execution_options(**options) if options else self.sync
        connection = await waiting_for(engine.connect)
        try:
            yield connection
        finally:
            await _to_the_end(connection.close)

    async def dispose(self) -> None:
        """Close the connections that are not in use."""
        await waiting_for(self.sync.dispose)


async def waiting_for(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that waits for the server, without blocking the event loop."""
    return await greenlet_spawn(function, *arguments)


async def _to_the_end(function: Callable[[], None]) -> None:
    """Call a function that waits for the server. If this task is cancelled meanwhile, the function goes on."""
    task = asyncio.create_task(waiting_for(function))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=CLOSING)
        raise
