"""Desks: where keyed requests are entered in the ledger, on connections of the middleware's own."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from postroom.idempotency import Ledger
from postroom.store.connections.urls import dialect_of_url
from postroom.store.ledger.bookkeeping import Bookkeeping
from postroom.store.ledger.entries import Terms
from postroom.store.sql.names import Names
from postroom.store.sql.steps import arun, run
from postroom.web.idempotency.keyed_flow import Clerk, Do, Flow
from postroom.web.idempotency.keyed_request import KeyedRequest
from postroom.web.idempotency.lease_renewal import Renewals
from postroom.web.idempotency.ledger_connections import AsyncOpening, ThreadOpening
from postroom.web.idempotency.options import Options
from postroom.web.idempotency.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from postroom.rules.replay import Run

T = TypeVar("T")


class Setup:
    """The options turned into what decides and what writes. Raises `InvalidSetting` or `UnsupportedDatabase`.

    The ``dialect`` is that of connections which are somebody else's, who also gives each step its transaction.
    """

    def __init__(self, given: Mapping[str, Any], dialect: str | None = None) -> None:
        options = Options.of(given)
        self.settings = options.settings(needs_database=dialect is None)
        self.policy = Policy(options)
        self.lease: float = self.settings.idempotency_lease_sec
        schema, prefix, keep = self.settings.schema, self.settings.table_prefix, self.settings.idempotency_keep_sec
        names = Names.of(dialect or dialect_of_url(str(self.settings.database)), schema, prefix)
        failures, borrowed = self.settings.replay_failures, dialect is not None
        books = Bookkeeping(names, Terms(self.lease, keep), replay_failures=failures, in_transaction=borrowed)
        self.clerk = Clerk(self.policy, books, options.hook)
        self._ledger = Ledger(schema=schema, table_prefix=prefix, lease_seconds=self.lease, keep_seconds=keep)

    def keyed(self, run: Run) -> KeyedRequest:
        """What the handler of this run is given."""
        return KeyedRequest(run, self.policy, self._ledger)


class AsyncDesk:
    """Opened by the first request that needs it; for each event loop it has connections of its own."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._openings: dict[asyncio.AbstractEventLoop, AsyncOpening] = {}

    async def drive(self, flow: Flow[T]) -> T:
        """Take a request's next part of the way."""
        return await arun(flow, self._act)  # type: ignore[arg-type]  # steps of another kind, pushed in the same way

    async def close(self) -> None:
        """Close this loop's connections. A request that comes later opens others."""
        opening = self._openings.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await opening.close()

    async def _act(self, action: Any) -> Any:
        if isinstance(action, Do):
            return await self._opening(asyncio.get_running_loop()).run(action.steps, action.seconds)
        await asyncio.sleep(action.seconds)
        return None

    def _opening(self, loop: asyncio.AbstractEventLoop) -> AsyncOpening:
        opening = self._openings.get(loop)
        if opening is None or not opening.is_usable:
            self._openings = {each: kept for each, kept in self._openings.items() if not each.is_closed()}
            opening = self._openings[loop] = AsyncOpening(self._setup.settings)
        return opening


class Desk:
    """The same for threads. Opened by the first request that needs it, after a server has forked its workers."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._choosing = threading.Lock()
        self._opening: ThreadOpening | None = None
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

    def renew(self, keyed: KeyedRequest) -> None:
        """Renew its lease now."""
        self.drive(self._setup.clerk.renew(keyed.entry))

    def close(self) -> None:
        """Close the connections. A request that comes later opens others."""
        with self._choosing:
            opening, self._opening = self._opening, None
            atexit.unregister(self.close)
        if opening is not None:
            opening.close()

    def _act(self, action: Any) -> Any:
        if isinstance(action, Do):
            return self._usable().run(action.steps, action.seconds)
        time.sleep(action.seconds)
        return None

    def _usable(self) -> ThreadOpening:
        with self._choosing:
            if self._opening is None:
                atexit.register(self.close)
            elif self._opening.is_usable:
                return self._opening
            else:
                self._opening.close()
            self._opening = ThreadOpening(self._setup.settings)
            return self._opening
