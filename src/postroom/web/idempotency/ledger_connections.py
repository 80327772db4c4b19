"""A desk's connections, which are there or about to be, and are given up when their server falls silent.

Each step has a time limit. When it is over, nobody waits for that server on these connections any longer: not who runs
the step, nor who waits for a free connection. The next step opens others.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from postroom import compose
from postroom.errors import DatabaseUnreachable
from postroom.store.connections.limits import Limits
from postroom.store.connections.stores import BridgedStore
from postroom.store.connections.urls import dialect_of_url
from postroom.store.schema.checking import check

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from postroom.settings import Settings
    from postroom.store.connections.stores import BlockingStore, ConnectionFactory
    from postroom.store.sql.steps import Steps

T = TypeVar("T")

CONNECTIONS = 5
"""To the database at once, for any number of requests: no more than a pool keeps open."""
LIMITS = Limits(lock=1.0, answer=3.0)
CLOSING_SECONDS = 3.0
"""For connections to be closed in order, before they are left as they are."""
_SILENT = "the database does not answer: it took a request, and said nothing for {:.1f} seconds"


class AsyncOpening:
    """The connections of one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._store: asyncio.Future[ConnectionFactory] = asyncio.ensure_future(
            compose.open_relay_store(settings, "ledger", LIMITS)
        )
        self._places = asyncio.Semaphore(1 if dialect_of_url(str(settings.database)) == "sqlite" else CONNECTIONS)
        self._silent = False
        self._left: set[asyncio.Future[Any]] = set()

    @property
    def is_usable(self) -> bool:
        """Whether a further step has a chance."""
        return not self._silent and not (self._store.done() and self._store.exception())

    async def run(self, steps: Steps[T], seconds: float) -> T:
        """Run the steps. Raises `DatabaseUnreachable` where that takes longer than it may, and what a driver raises.

        The time is that of the steps and of connecting, not of waiting for others, who have a limit too.
        """
        async with self._places:
            if self._silent:
                raise DatabaseUnreachable(_SILENT.format(seconds))
            return await self._limited(self._run(steps), seconds)

    async def close(self) -> None:
        """Close the connections, as far as the server lets us."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._close()

    async def _run(self, steps: Steps[T]) -> T:
        store = await asyncio.shield(self._store)
        async with store.line() as execute:
            return await execute(steps)

    async def _limited(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            self._leave(task)
            raise
        if done and not task.cancelled():  # as it is where others have given up to connect
            return task.result()
        self._leave(task)
        if not self._silent:
            self._silent = True
            self._leave(asyncio.ensure_future(self.close()), cancel=False)
        raise DatabaseUnreachable(_SILENT.format(seconds))

    def _leave(self, task: asyncio.Future[Any], *, cancel: bool = True) -> None:
        """Wait no longer for it, while it drops its connection."""
        self._left.add(task)
        task.add_done_callback(self._forget)
        if cancel:
            task.cancel()

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # nobody is left to hear of it

    async def _close(self) -> None:
        if not self._store.done():
            self._store.cancel()
            return
        if not self._store.cancelled() and self._store.exception() is None:
            await self._store.result().close()


class ThreadOpening:
    """The connections of a process's threads. Its steps run in threads of its own, for which one can stop waiting."""

    def __init__(self, settings: Settings) -> None:
        self._threads = ThreadPoolExecutor(CONNECTIONS, "postroom-desk")
        self._places = threading.Semaphore(CONNECTIONS)
        self._turns: Any = nullcontext()
        self._silent = False
        self._store: Future[BlockingStore] = self._threads.submit(self._open, settings)

    @property
    def is_usable(self) -> bool:
        """Whether a further step has a chance."""
        return not self._silent and not (self._store.done() and self._store.exception())

    def run(self, steps: Steps[T], seconds: float) -> T:
        """Run the steps. Raises `DatabaseUnreachable` where that takes longer than it may, and what a driver raises.

        The time is that of the steps and of connecting, not of waiting for others, who have a limit too.
        """
        with self._places:
            if self._silent:
                raise DatabaseUnreachable(_SILENT.format(seconds))
            step = self._threads.submit(self._run, steps)
            if wait([step], seconds).done:
                return step.result()
            self._silent = True
            self._store.add_done_callback(_break_off)
            raise DatabaseUnreachable(_SILENT.format(seconds))

    def close(self) -> None:
        """Close the connections; those that are still being opened, as soon as they are."""
        self._threads.shutdown(wait=False)
        self._store.add_done_callback(_close)

    def _run(self, steps: Steps[T]) -> T:
        store = self._store.result()
        with self._turns:
            return store.run(steps)

    def _open(self, settings: Settings) -> BlockingStore:
        store = compose.open_store(settings, limits=LIMITS)
        if isinstance(store, BridgedStore):  # one event loop, for one thread at a time
            self._turns = threading.Lock()
        try:
            store.call(lambda connection: check(connection, store.names, "ledger"))
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
