"""The ledger's connections for threads, each kept open, and what requests ask done on them.

A thread that asks while a connection is free does what there is to do, on that connection, for itself and for others.
Otherwise it waits until another thread has done it, or leaves it a connection.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.compose.databases import open_store
from postroom.errors import DatabaseUnreachable, DriverMissing
from postroom.store.connections.stores import Store
from postroom.store.connections.urls import resolve
from postroom.store.schema.checking import check
from postroom.store.schema.purposes import Purpose
from postroom.store.sql.db_errors import explained, is_lost_connection
from postroom.store.sql.steps import run
from postroom.web.idempotency.ledger_jobs import Batch, Job, Jobs
from postroom.web.idempotency.ledger_pool import CONNECTIONS, FRESH, LIMITS, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.settings import Settings
    from postroom.store.connections.stores import BlockingStore
    from postroom.store.ledger.keyed_requests import KeyedRequests
    from postroom.store.sql.steps import Steps
    from postroom.web.idempotency.keyed_flow import Do

T = TypeVar("T")

_LOOKS = 0.1
"""Seconds between looks at what takes too long."""
_RESTS = 2.0
"""Seconds without anything to see after which nobody looks any more."""


class ThreadLedgerPool:
    """Connections, until their server falls silent."""

    def __init__(self, settings: Settings, requests: KeyedRequests) -> None:
        self._requests = requests
        self._opening = ThreadPoolExecutor(CONNECTIONS, "postroom-ledger")
        self._store: Future[BlockingStore] = self._opening.submit(_open, settings)
        most = CONNECTIONS if _has_connections(str(settings.database)) else 1
        self._free = [_Connection(self._store, self._opening) for _ in range(most)]
        self._connections = tuple(self._free)
        self._jobs = Jobs(has_batches=requests.has_batches)
        self._changing = threading.Lock()
        self._under_way: dict[int, tuple[float, Batch]] = {}
        self._watching: threading.Thread | None = None
        self._is_silent = False
        self._is_closed = False

    @property
    def is_usable(self) -> bool:
        """Whether another step has a chance."""
        return not self._is_silent and not (self._store.done() and self._store.exception())

    def run(self, action: Do) -> Any:
        """As `LedgerPool.run`."""
        answer = _Answer()
        with self._changing:
            if self._is_silent or self._is_closed:
                raise silent(action.seconds)
            self._jobs.put(Job(action, answer))
            work = self._next_work()
        while work is not None or (work := answer.wait()) is not None:
            self._do(*work)
            work = None
        return answer.result()

    def close(self) -> None:
        """Close the connections; those that are still being opened or in use, as soon as they are not."""
        with self._changing:
            self._is_closed = True
            free, self._free = self._free, []
        for connection in free:
            connection.close()
        self._opening.shutdown(wait=False)
        self._store.add_done_callback(_close)

    def _next_work(self) -> Work | None:
        """What is to be done, and on which connection, if there is both. From here on, its time is limited."""
        batch = self._jobs.take() if self._free else None
        if batch is None:
            return None
        self._under_way[id(batch)] = monotonic() + batch.seconds, batch
        if self._watching is None:
            self._watching = threading.Thread(target=self._watch, name="postroom-ledger-limits", daemon=True)
            self._watching.start()
        return self._free.pop(), batch

    def _do(self, connection: _Connection, batch: Batch) -> None:
        alone: Sequence[Job] = ()
        try:
            if len(batch.jobs) == 1:
                batch.jobs[0].succeed(connection.run(batch.jobs[0].steps, batch.seconds))
            else:
                answers = connection.run(self._requests.together(batch.asked), batch.seconds)
                alone = batch.answer(answers)
        except Exception as error:  # noqa: BLE001 - drivers raise anything
            alone = self._fail(batch, error)
        except BaseException:
            batch.fail(DatabaseUnreachable("the thread that asked the database was stopped"))
            raise
        finally:
            self._end(connection, batch, alone)

    def _fail(self, batch: Batch, error: Exception) -> Sequence[Job]:
        """As `LedgerPool`: returns those that are to be tried alone."""
        is_lost = is_lost_connection(error)
        if is_lost:
            for connection in self._connections:
                connection.doubt()
        if len(batch.jobs) > 1 and not is_lost:
            return batch.jobs
        batch.fail(silent(batch.seconds) if self._is_silent else error)
        return ()

    def _end(self, connection: _Connection, batch: Batch, alone: Sequence[Job]) -> None:
        """Leave the connection to a thread that waits."""
        with self._changing:
            del self._under_way[id(batch)]
            self._jobs.end(batch)
            self._jobs.put_alone(alone)
            if self._is_silent:
                self._jobs.fail_all(silent(batch.seconds))
            self._free.append(connection)
            self._leave_work()
            closing, self._free = (self._free, []) if self._is_closed else ([], self._free)
        for one in closing:
            one.close()

    def _leave_work(self) -> None:
        """Leave what can be done to threads that wait for it."""
        while (work := self._next_work()) is not None:
            _leave(work)

    def _watch(self) -> None:
        """See whether anything takes too long, until there was nothing to see for a while."""
        seen = monotonic()
        while True:
            time.sleep(_LOOKS)
            now = monotonic()
            with self._changing:
                seen = now if self._under_way else seen
                late = [batch for deadline, batch in self._under_way.values() if deadline < now]
                if late:
                    self._give_up(late[0].seconds)
                self._leave_work()  # which a slow batch has kept waiting
                if late or now - seen > _RESTS:
                    self._watching = None
                    return

    def _give_up(self, seconds: float) -> None:
        """The server has fallen silent."""
        if not self._is_silent:
            self._is_silent = True
            for _, batch in self._under_way.values():
                batch.fail(silent(seconds))
            self._jobs.fail_all(silent(seconds))
            self._store.add_done_callback(_break_off)


class _Answer:
    """The answer to a job, for which its thread waits; or work that is left to that thread meanwhile."""

    __slots__ = ("_error", "_events", "_is_done", "_result")

    def __init__(self) -> None:
        self._events: SimpleQueue[Work | None] = SimpleQueue()
        self._is_done = False
        self._result: Any = None
        self._error: Exception | None = None

    def done(self) -> bool:
        """Whether it is there."""
        return self._is_done

    def set_result(self, result: Any, /) -> None:
        """It is this."""
        self._result, self._is_done = result, True
        self._events.put(None)

    def set_exception(self, error: Exception, /) -> None:
        """There is none."""
        self._error, self._is_done = error, True
        self._events.put(None)

    def leave(self, work: Work) -> None:
        """Have the thread that waits do this first."""
        self._events.put(work)

    def wait(self) -> Work | None:
        """Wait until it is there (None), or there is work to do."""
        return self._events.get()

    def result(self) -> Any:
        """What it is. Raises the error if there is none."""
        if self._error is not None:
            raise self._error
        return self._result


class _Connection:
    """As that of `LedgerPool`. Opened in a thread for which the caller can stop waiting."""

    def __init__(self, store: Future[BlockingStore], opening: ThreadPoolExecutor) -> None:
        self._store = store
        self._opening = opening
        self._opened = ExitStack()
        self._run: Callable[[Steps[Any]], Any] | None = None
        self._used = 0.0

    def doubt(self) -> None:
        """See whether it is still there before it is used again."""
        self._used = 0.0

    def run(self, steps: Steps[T], seconds: float) -> T:
        """Run the steps."""
        try:
            if self._run is None or monotonic() - self._used > FRESH:
                self._run = self._reopened(seconds)
            result: T = self._run(steps)
        except BaseException as error:
            opened, self._opened, self._run = self._opened, ExitStack(), None
            opened.__exit__(type(error), error, error.__traceback__)  # raises what the store makes of the error
            raise
        self._used = monotonic()
        return result

    def close(self) -> None:
        """Give it back to the store's pool."""
        opened, self._opened, self._run = self._opened, ExitStack(), None
        opened.close()

    def _reopened(self, seconds: float) -> Callable[[Steps[Any]], Any]:
        self.close()
        try:
            return self._opening.submit(self._open).result(seconds)
        except TimeoutError:
            raise silent(seconds) from None

    def _open(self) -> Callable[[Steps[Any]], Any]:
        store = self._store.result()
        if not isinstance(store, Store):
            return store.run
        execute = self._opened.enter_context(store.session())
        return lambda steps: run(explained(steps), execute)


def _has_connections(url: str) -> bool:
    """Whether several can be used at once: not with SQLite's one writer, nor with an async driver's one event loop."""
    try:
        return not resolve(url).drivername.startswith("sqlite")
    except DriverMissing:
        return False


def _leave(work: Work) -> None:
    """Leave it to the first of those that it is for."""
    _, batch = work
    answer = batch.jobs[0].answer
    if isinstance(answer, _Answer):
        answer.leave(work)


def _open(settings: Settings) -> BlockingStore:
    store = open_store(settings, limits=LIMITS)
    try:
        store.run(check(store.names, Purpose.LEDGER))
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


Work = tuple[_Connection, Batch]
"""A connection, and what to do on it."""
