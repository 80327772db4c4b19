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
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.compose.databases import open_checked_store, open_store
from postroom.errors import DatabaseUnreachable
from postroom.runtime.time_limits import within
from postroom.store.connections.limits import Limits
from postroom.store.connections.stores import BridgedStore
from postroom.store.connections.urls import dialect_of_url
from postroom.store.schema.checking import check
from postroom.store.schema.purposes import Purpose
from postroom.store.sql.steps import arun, run
from postroom.web.idempotency.keyed_flow import Do

if TYPE_CHECKING:
    from postroom.settings import Settings
    from postroom.store.connections.stores import BlockingStore, ConnectionFactory
    from postroom.store.sql.steps import Steps
    from postroom.web.idempotency.keyed_flow import Flow, Pause

T = TypeVar("T")

CONNECTIONS = 5
"""At once, for any number of requests: as many as a pool keeps open."""
LIMITS = Limits(lock=1.0, answer=3.0)
CLOSING_SECONDS = 3.0
"""How long connections may take to close in order, before they are dropped."""
_closing: set[asyncio.Future[None]] = set()


def _silent(seconds: float) -> DatabaseUnreachable:
    return DatabaseUnreachable(
        f"the database does not answer: it took a request, and said nothing for {seconds:.1f} seconds"
    )


class LedgerConnections:
    """Connections for async code. Each event loop has its own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}

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
            return await self._pool(asyncio.get_running_loop()).run(action.steps, action.seconds)
        await asyncio.sleep(action.seconds)
        return None

    def _pool(self, loop: asyncio.AbstractEventLoop) -> _Pool:
        pool = self._pools.get(loop)
        if pool is None or not pool.is_usable:
            self._pools = {each: kept for each, kept in self._pools.items() if not each.is_closed()}
            pool = self._pools[loop] = _Pool(self._settings)
        return pool


class _Pool:
    """The connections of one event loop, until their server falls silent."""

    def __init__(self, settings: Settings) -> None:
        self._store: asyncio.Future[ConnectionFactory] = asyncio.ensure_future(
            open_checked_store(settings, Purpose.LEDGER, limits=LIMITS)
        )
        self._places = asyncio.Semaphore(1 if dialect_of_url(str(settings.database)) == "sqlite" else CONNECTIONS)
        self._is_silent = False

    @property
    def is_usable(self) -> bool:
        """Whether another step has a chance."""
        return not self._is_silent and not (self._store.done() and self._store.exception())

    async def run(self, steps: Steps[T], seconds: float) -> T:
        """Run the steps. Raises `DatabaseUnreachable` if they exceed the time limit, and what a driver raises.

        The limit covers connecting and the steps, but not the wait for a place: those who hold one have a limit too.
        """
        async with self._places:
            if self._is_silent:
                raise _silent(seconds)
            try:
                return await within(seconds, self._run(steps), grace=0)
            except TimeoutError:
                self._give_up()
                raise _silent(seconds) from None

    async def close(self) -> None:
        """Close the connections, as far as the server lets us."""
        if not self._store.done():
            self._store.cancel()
        elif not self._store.cancelled() and self._store.exception() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_SECONDS):
                    await self._store.result().close()

    async def _run(self, steps: Steps[T]) -> T:
        try:
            store = await asyncio.shield(self._store)
        except asyncio.CancelledError:
            if self._store.cancelled():  # by another step, which waited for too long
                raise TimeoutError from None
            raise
        async with store.connection() as execute:
            return await execute(steps)

    def _give_up(self) -> None:
        if not self._is_silent:
            self._is_silent = True
            closing = asyncio.ensure_future(self.close())
            _closing.add(closing)
            closing.add_done_callback(_forget)


def _forget(closing: asyncio.Future[None]) -> None:
    _closing.discard(closing)
    if not closing.cancelled():
        closing.exception()  # nobody is left to hear of it


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
                raise _silent(seconds)
            step = self._threads.submit(self._run, steps)
            if wait([step], seconds).done:
                return step.result()
            self._is_silent = True
            self._store.add_done_callback(_break_off)
            raise _silent(seconds)

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
