"""Desks: where keyed requests are entered in the ledger, on connections of the middleware's own."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from postroom import compose
from postroom.idempotency import Ledger
from postroom.store import migrations
from postroom.store.bookkeeping import Bookkeeping
from postroom.store.ledger import Terms
from postroom.store.names import Names
from postroom.store.steps import arun, run
from postroom.store.stores import BridgedStore
from postroom.store.urls import dialect_of_url
from postroom.web.flow import Clerk, Do, Flow
from postroom.web.joining import KeyedRequest
from postroom.web.options import Options
from postroom.web.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.rules.replay import Run
    from postroom.store.stores import BlockingStore, Lines

T = TypeVar("T")

CONNECTIONS = 5
"""To the database at once, for any number of requests: no more than a pool keeps open."""


class Setup:
    """The options turned into what decides and what writes. Raises `InvalidSetting` or `UnsupportedDatabase`."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        options = Options.of(given)
        self.settings = options.settings()
        self.policy = Policy(options)
        self.lease: float = self.settings.idempotency_lease_sec
        schema, prefix, keep = self.settings.schema, self.settings.table_prefix, self.settings.idempotency_keep_sec
        names = Names.of(dialect_of_url(str(self.settings.database)), schema, prefix)
        books = Bookkeeping(names, Terms(self.lease, keep), replay_failures=self.settings.replay_failures)
        self.clerk = Clerk(self.policy, books)
        self._ledger = Ledger(schema=schema, table_prefix=prefix, lease_seconds=self.lease, keep_seconds=keep)

    def keyed(self, run: Run) -> KeyedRequest:
        """What the handler of this run is given."""
        return KeyedRequest(run, self.policy, self._ledger)


class AsyncDesk:
    """Opened by the first request that needs it; for each event loop it has connections of its own."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._stores: dict[asyncio.AbstractEventLoop, _Opening] = {}

    async def drive(self, flow: Flow[T]) -> T:
        """Take a request's next part of the way."""
        return await arun(flow, self._act)  # type: ignore[arg-type]  # steps of another kind, pushed in the same way

    async def close(self) -> None:
        """Close this loop's connections. A request that comes later opens others."""
        opening = self._stores.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening.store).close()

    async def _act(self, action: Any) -> Any:
        if not isinstance(action, Do):
            await asyncio.sleep(action.seconds)
            return None
        opening = self._opening(asyncio.get_running_loop())
        try:
            store = await asyncio.shield(opening.store)
        except Exception:
            opening.failed = True  # the next request tries again
            raise
        async with opening.places, store.line() as execute:
            return await execute(action.steps)

    def _opening(self, loop: asyncio.AbstractEventLoop) -> _Opening:
        opening = self._stores.get(loop)
        if opening is None or opening.failed:
            self._stores = {each: kept for each, kept in self._stores.items() if not each.is_closed()}
            opening = self._stores[loop] = _Opening(self._setup)
        return opening


class _Opening:
    """Connections of one event loop, which are there or about to be."""

    def __init__(self, setup: Setup) -> None:
        self.store: asyncio.Future[Lines] = asyncio.ensure_future(compose.open_relay_store(setup.settings))
        self.places = asyncio.Semaphore(CONNECTIONS)
        self.failed = False


class Desk:
    """The same for threads. Opened by the first request that needs it, after a server has forked its workers."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._opening = threading.Lock()
        self._turns: Any = nullcontext()
        self._store: BlockingStore | None = None
        self._renewals = Renewals(self, setup)

    def drive(self, flow: Flow[T]) -> T:
        """Take a request's next part of the way."""
        return run(flow, self._act)  # type: ignore[arg-type]  # steps of another kind, pushed in the same way

    def hold(self, keyed: KeyedRequest) -> None:
        """Renew the request's lease from now on."""
        self._renewals.add(keyed)

    def let_go(self, keyed: KeyedRequest) -> None:
        """Renew it no longer."""
        self._renewals.remove(keyed)

    def close(self) -> None:
        """Close the connections. A request that comes later opens others."""
        with self._opening:
            store, self._store = self._store, None
            atexit.unregister(self.close)
        if store is not None:
            store.close()

    def _act(self, action: Any) -> Any:
        if not isinstance(action, Do):
            time.sleep(action.seconds)
            return None
        store = self._opened()
        with self._turns:
            return store.run(action.steps)

    def _opened(self) -> BlockingStore:
        with self._opening:
            if self._store is None:
                self._store = self._checked(compose.open_store(self._setup.settings))
                if isinstance(self._store, BridgedStore):  # one event loop, for one thread at a time
                    self._turns = threading.Lock()
                atexit.register(self.close)
            return self._store

    def _checked(self, store: BlockingStore) -> BlockingStore:
        try:
            store.call(lambda connection: migrations.check(connection, store.names))
        except BaseException:
            store.close()
            raise
        return store


class Renewals:
    """One thread that renews the leases of all running requests, at half their length; it ends when there are none."""

    def __init__(self, desk: Desk, setup: Setup) -> None:
        self._desk = desk
        self._setup = setup
        self._running: dict[KeyedRequest, float] = {}
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, keyed: KeyedRequest) -> None:
        """Renew this request's lease from now on."""
        with self._changing:
            self._running[keyed] = time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="postroom-renewals", daemon=True)
                self._thread.start()

    def remove(self, keyed: KeyedRequest) -> None:
        """Renew it no longer."""
        with self._changing:
            self._running.pop(keyed, None)

    def _run(self) -> None:
        while self._is_needed():
            time.sleep(self._setup.lease / 8)
            for keyed in self._due(time.monotonic()):
                self._desk.drive(self._setup.clerk.renew(keyed.entry))

    def _is_needed(self) -> bool:
        with self._changing:
            if not self._running:
                self._thread = None
            return bool(self._running)

    def _due(self, now: float) -> list[KeyedRequest]:
        with self._changing:
            due = [keyed for keyed, since in self._running.items() if now - since >= self._setup.lease * 3 / 8]
            self._running.update(dict.fromkeys(due, now))
            return due
