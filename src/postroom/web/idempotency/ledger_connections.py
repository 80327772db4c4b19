"""The middleware's own connections to the ledger's database, for event loops and for threads.

The first step opens them. Each step has a time limit; when one exceeds it, the server counts as silent: all
connections are given up, nobody waits for one of them any longer, and the next step opens new ones. A relay's
`ReconnectingConnection` waits until the database is back. Here any number of requests share a few connections, and
each of them has to fail soon.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.store.sql.steps import arun, run
from postroom.web.idempotency.keyed_flow import Do
from postroom.web.idempotency.ledger_pool import LedgerPool
from postroom.web.idempotency.ledger_threads import ThreadLedgerPool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

    from postroom.settings import Settings
    from postroom.store.ledger.keyed_requests import KeyedRequests
    from postroom.web.idempotency.keyed_flow import Flow, Pause

T = TypeVar("T")


class LedgerConnections:
    """Connections for async code. Each event loop has its own."""

    def __init__(self, settings: Settings, requests: KeyedRequests) -> None:
        self._settings = settings
        self._requests = requests
        self._pools: dict[asyncio.AbstractEventLoop, LedgerPool] = {}

    def drive(self, flow: Flow[T]) -> Coroutine[Any, Any, T]:
        """Run the flow to its end."""
        return arun(flow, self._act)

    async def close(self) -> None:
        """Close this loop's connections. A later request opens new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    def _act(self, action: Do | Pause) -> Awaitable[Any]:
        if isinstance(action, Do):
            return self._pool(asyncio.get_running_loop()).run(action)
        return asyncio.sleep(action.seconds)

    def _pool(self, loop: asyncio.AbstractEventLoop) -> LedgerPool:
        pool = self._pools.get(loop)
        if pool is None or not pool.is_usable:
            for closed in [each for each in list(self._pools) if each.is_closed()]:  # other threads add theirs
                self._pools.pop(closed, None)
            pool = self._pools[loop] = LedgerPool(self._settings, self._requests)
        return pool


class ThreadLedgerConnections:
    """Connections for threads. They are opened by the first request, after a server has forked its workers."""

    def __init__(self, settings: Settings, requests: KeyedRequests) -> None:
        self._settings = settings
        self._requests = requests
        self._choosing = threading.Lock()
        self._pool: ThreadLedgerPool | None = None

    def drive(self, flow: Flow[T]) -> T:
        """Run the flow to its end."""
        return run(flow, self._act)

    def close(self) -> None:
        """Close the connections. A later request opens new ones."""
        with self._choosing:
            pool, self._pool = self._pool, None
            atexit.unregister(self.close)
        if pool is not None:
            pool.close()

    def _act(self, action: Do | Pause) -> Any:
        if isinstance(action, Do):
            return self._usable().run(action)
        time.sleep(action.seconds)
        return None

    def _usable(self) -> ThreadLedgerPool:
        with self._choosing:
            if self._pool is None:
                atexit.register(self.close)
            elif self._pool.is_usable:
                return self._pool
            else:
                self._pool.close()
            self._pool = ThreadLedgerPool(self._settings, self._requests)
            return self._pool
