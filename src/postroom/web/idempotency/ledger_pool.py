"""The ledger's connections on one event loop, each kept open, and what requests ask done on them.

A worker is a task that has one of the connections for as long as there is something to do.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.compose.databases import open_checked_store
from postroom.errors import DatabaseUnreachable
from postroom.store.connections.limits import Limits
from postroom.store.connections.urls import dialect_of_url
from postroom.store.schema.purposes import Purpose
from postroom.store.sql.db_errors import is_lost_connection
from postroom.web.idempotency.ledger_jobs import SLOW, Batch, Job, Jobs

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from postroom.settings import Settings
    from postroom.store.connections.stores import ConnectionFactory, RunSteps
    from postroom.store.ledger.keyed_requests import KeyedRequests
    from postroom.store.sql.steps import Steps
    from postroom.web.idempotency.keyed_flow import Do

T = TypeVar("T")

CONNECTIONS = 5
"""At once, for any number of requests: as many as a pool keeps open."""
LIMITS = Limits(lock=1.0, answer=3.0)
CLOSING_SECONDS = 3.0
"""How long connections may take to close in order, before they are dropped."""
FRESH = 1.0
"""Seconds without work after which a connection has to show that it still is one."""
_running: set[asyncio.Future[None]] = set()
"""The event loop holds only weak references to what it runs."""


def silent(seconds: float) -> DatabaseUnreachable:
    """What is raised while a server does not answer."""
    return DatabaseUnreachable(
        f"the database does not answer: it took a request, and said nothing for {seconds:.1f} seconds"
    )


class LedgerPool:
    """The connections of one event loop, until their server falls silent."""

    def __init__(self, settings: Settings, requests: KeyedRequests) -> None:
        self._store: asyncio.Future[ConnectionFactory] = asyncio.ensure_future(
            open_checked_store(settings, Purpose.LEDGER, limits=LIMITS)
        )
        self._requests = requests
        self._jobs = Jobs(has_batches=requests.has_batches)
        most = 1 if dialect_of_url(str(settings.database)) == "sqlite" else CONNECTIONS
        self._free = [_Connection(self._store) for _ in range(most)]
        self._connections = tuple(self._free)
        self._is_silent = False
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        """Whether another step has a chance."""
        return not self._is_silent and not (self._store.done() and self._store.exception())

    def run(self, action: Do) -> asyncio.Future[Any]:
        """Do it. The answer raises `DatabaseUnreachable` if it exceeds its time limit, and what a driver raises.

        The limit covers connecting and the statements, but not the wait for a connection: those who have one have a
        limit too.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put(Job(action, answer))
        self._start_worker()
        return answer

    async def close(self) -> None:
        """Close the connections, as far as the server lets us."""
        self._is_closed = True
        if not self._store.done():
            self._store.cancel()
        elif not self._store.cancelled() and self._store.exception() is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSING_SECONDS):
                    for connection in self._free:
                        await connection.close(silent(LIMITS.answer) if self._is_silent else None)
                    await self._store.result().close()

    def _start_worker(self) -> None:
        if self._free and self._jobs.is_any_ready():
            _run(self._work(self._free.pop()))

    async def _work(self, connection: _Connection) -> None:
        while batch := self._jobs.take():
            self._start_worker()  # for what else there is to do
            await self._do(batch, connection)
            self._jobs.end(batch)
        self._free.append(connection)
        if self._is_closed:
            await connection.close()

    async def _do(self, batch: Batch, connection: _Connection) -> None:
        loop, worker = asyncio.get_running_loop(), asyncio.current_task()
        limits = [loop.call_later(batch.seconds, self._give_up, batch, worker)]
        if batch.kind is not None:
            limits.append(loop.call_later(SLOW, self._start_worker))
        try:
            if len(batch.jobs) == 1:
                batch.jobs[0].succeed(await connection.run(batch.jobs[0].steps))
            else:
                answers = await connection.run(self._requests.together(batch.asked))
                self._jobs.put_alone(batch.answer(answers))
        except Exception as error:  # noqa: BLE001 - drivers raise anything
            self._fail(batch, error)
        finally:
            for limit in limits:
                limit.cancel()

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Of several jobs, try each alone, unless the connection was at fault: then nobody knows what was done."""
        is_lost = is_lost_connection(error)
        if is_lost:
            for connection in self._connections:
                connection.doubt()
        if len(batch.jobs) > 1 and not is_lost:
            self._jobs.put_alone(batch.jobs)
        else:
            batch.fail(error)

    def _give_up(self, batch: Batch, worker: asyncio.Task[Any] | None) -> None:
        """The server has fallen silent."""
        error = silent(batch.seconds)
        batch.fail(error)
        if worker is not None:
            worker.cancel()
        if not self._is_silent:
            self._is_silent = True
            self._jobs.fail_all(error)
            _run(self.close())


class _Connection:
    """One connection, kept between steps. After an error it is dropped, and the next step opens another."""

    def __init__(self, store: asyncio.Future[ConnectionFactory]) -> None:
        self._store = store
        self._opened = AsyncExitStack()
        self._run: RunSteps | None = None
        self._used = 0.0

    def doubt(self) -> None:
        """Another connection was lost: see whether this one is still there before it is used again."""
        self._used = 0.0

    async def run(self, steps: Steps[T]) -> T:
        """Run the steps."""
        try:
            if self._run is None or monotonic() - self._used > FRESH:
                await self.close()  # from the store's pool, it comes back tested
                self._run = await self._open()
            result = await self._run(steps)
        except BaseException as error:
            await self._drop(error)
            raise
        self._used = monotonic()
        return result

    async def close(self, error: Exception | None = None) -> None:
        """Give it back to the store's pool; if there was an error, close it for good."""
        if error is None:
            opened, self._opened, self._run = self._opened, AsyncExitStack(), None
            await opened.aclose()
        else:
            with suppress(Exception):  # the same error, or the connection is gone anyway
                await self._drop(error)

    async def _drop(self, error: BaseException) -> None:
        """Close it for good. Raises the error again, as what the store makes of it, if it was open."""
        opened, self._opened, self._run = self._opened, AsyncExitStack(), None
        await opened.__aexit__(type(error), error, error.__traceback__)

    async def _open(self) -> RunSteps:
        try:
            store = await asyncio.shield(self._store)
        except asyncio.CancelledError:
            if self._store.cancelled():  # by another worker, which waited for too long
                raise silent(LIMITS.answer) from None
            raise
        return await self._opened.enter_async_context(store.connection())


def _run(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    _running.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Future[None]) -> None:
    _running.discard(task)
    if not task.cancelled():
        task.exception()  # nobody is left to hear of it
