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
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.compose.databases import open_store
from postroom.store.connections.stores import BridgedStore
from postroom.store.schema.checking import check
from postroom.store.schema.purposes import Purpose
from postroom.store.sql.steps import arun, run
from postroom.web.idempotency.keyed_flow import Do
from postroom.web.idempotency.ledger_pool import CONNECTIONS, LIMITS, LedgerPool, silent

if TYPE_CHECKING:
    from postroom.settings import Settings
    from postroom.store.connections.stores import BlockingStore
    from postroom.store.ledger.keyed_requests import KeyedRequests
    from postroom.store.sql.steps import Steps
    from postroom.web.idempotency.keyed_flow import Flow, Pause

T = TypeVar("T")


class LedgerConnections:
    """Connections for async code. Each event loop has its own."""

    def __init__(self, settings: Settings, requests: KeyedRequests) -> None:
        self._settings = settings
        self._requests = requests
        self._pools: dict[asyncio.AbstractEventLoop, LedgerPool] = {}

    async def drive(self, flow: Flow[T]) -> T:
        """Run the flow to its end."""
        return await arun(flow, self._act)

    async def close(self) -> None:
        """Close this loop's connections. A later request opens new ones."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def _act(self, action: Do | Pause) -> Any:
        if isinstance(action, Do):
            return await self._pool(asyncio.get_running_loop()).run(action)
        await asyncio.sleep(action.seconds)
        return None

    def _pool(self, loop: asyncio.AbstractEventLoop) -> LedgerPool:
        pool = self._pools.get(loop)
        if pool is None or not pool.is_usable:
            self._pools = {each: kept for each, kept in self._pools.items() if not each.is_closed()}
            pool = self._pools[loop] = LedgerPool(self._settings, self._requests)
        return pool


class ThreadLedgerConnections:
    """Connections for threads. They are opened by the first request, after a server has forked its workers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._choosing = threading.Lock()
        self._pool: _ThreadPool | None = None

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
            return self._usable().run(action.steps, action.seconds)
        time.sleep(action.seconds)
        return None

    def _usable(self) -> _ThreadPool:
        with self._choosing:
            if self._pool is None:
                atexit.register(self.close)
            elif self._pool.is_usable:
                return self._pool
            else:
                self._pool.close()
            self._pool = _ThreadPool(self._settings)
            return self._pool


class _ThreadPool:
    """As `_Pool`. The steps run in threads of its own, for which callers can stop waiting."""

    def __init__(self, settings: Settings) -> None:
        self._threads = ThreadPoolExecutor(CONNECTIONS, "postroom-ledger")
        self._places = threading.Semaphore(CONNECTIONS)
        self._turns: Any = nullcontext()
        self._is_silent = False
        self._store: Future[BlockingStore] = self._threads.submit(self._open, settings)

    @property
    def is_usable(self) -> bool:
        """Whether another step has a chance."""
        return not self._is_silent and not (self._store.done() and self._store.exception())

    def run(self, steps: Steps[T], seconds: float) -> T:
        """As `_Pool.run`."""
        with self._places:
            if self._is_silent:
                raise silent(seconds)
            step = self._threads.submit(self._run, steps)
            if wait([step], seconds).done:
                return step.result()
            self._is_silent = True
            self._store.add_done_callback(_break_off)
            raise silent(seconds)

    def close(self) -> None:
        """Close the connections; those that are still being opened, as soon as they are."""
        self._threads.shutdown(wait=False)
        self._store.add_done_callback(_close)

    def _run(self, steps: Steps[T]) -> T:
        store = self._store.result()
        with self._turns:
            return store.run(steps)

    def _open(self, settings: Settings) -> BlockingStore:
        store = open_store(settings, limits=LIMITS)
        if isinstance(store, BridgedStore):  # one event loop, for one thread at a time
            self._turns = threading.Lock()
        try:
            store.call(lambda connection: check(connection, store.names, Purpose.LEDGER))
        except BaseException:
            store.close()
            raise
        return store


def _close(opened: Future[BlockingStore]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


def _break_off(opened: Future[BlockingStore]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().break_off()
        opened.result().close()
