"""The queue router: moves new messages into the queues of their topics, so that no broker can keep another waiting."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored
from postroom.rules.routing import is_routed
from postroom.runtime.backoff import Backoff
from postroom.runtime.waiting import wait_for
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.rerouting import Rerouting
from postroom.store.sql.names import channel
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.skip_scan import SkipScan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from postroom.delivery.queue import EngineOptions
    from postroom.rules.routing import Routing
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.rerouting import Cursors
    from postroom.store.outbox.workers import Workers
    from postroom.store.sql.names import Names

QUICKEST_POLL = 0.005
ABANDONED_EVERY = 5.0
"""Seconds between two looks for queues that nobody serves any more."""


@dataclass(slots=True, eq=False, kw_only=True)
class QueueRouter:
    """Empties the default queue into those of the patterns; without patterns, brings back what was routed once.

    It needs only the database. Its locks are as short as a statement or two, so routers of several relays work side by
    side. What one of them leaves, because it is locked or leased, is found again.
    """

    options: EngineOptions
    names: Names
    workers: Workers
    """Those of the default queue."""
    connection: Connection
    routing: Routing | None
    queues: Collection[str]
    moved_to: Callable[[str], None]
    notify: bool = False
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _stopping: bool = field(default=False, init=False)
    _beat_at: float = field(default=0.0, init=False)
    _abandoned_at: float = field(default=0.0, init=False)

    async def run(self) -> None:
        """Route until the engine stops."""
        longest = ABANDONED_EVERY if self.routing is None else self.options.poll_interval
        backoff = Backoff(2 * QUICKEST_POLL, longest)
        while not self._stopping:
            self._woken.clear()
            moved = False
            with suppress(Outage):
                moved = await self._route_some()
            if moved or await wait_for(self._woken, backoff.next()):
                backoff.reset()

    async def begin(self) -> None:
        """Before lanes are taken and anything is sent, undo what other patterns did. Raises `Outage`."""
        await self._beat()
        await self._bring_back()
        if self.routing is not None:
            for queue in filter(is_routed, self.queues):  # those of sagas have topics as well, and stay
                await self._route_anew(queue, self.routing)

    async def route_all(self) -> None:
        """Route what is there now. Raises `Outage`."""
        while not self._stopping and await self._route_some():
            pass

    async def anything_to_route(self) -> bool:
        """Whether anything waits to be routed. Asks until the database answers."""
        rerouting = self._rerouting(DEFAULT_QUEUE)
        return self.routing is not None and await self.connection.run(rerouting.anything)

    async def leave(self) -> None:
        """Sign this worker off as one that routes. Raises `Outage`."""
        if self.routing is not None:
            await self.connection.attempt(self.workers.leave(self.options.worker))

    def wake(self, kind: str = "") -> None:
        """Something was committed."""
        del kind
        self._woken.set()

    def stop(self) -> None:
        """Route no more."""
        self._stopping = True
        self._woken.set()

    async def _route_some(self) -> bool:
        """Route some; returns whether there may be more."""
        if time.monotonic() >= self._beat_at:
            await self._beat()
        if time.monotonic() >= self._abandoned_at:
            await self._bring_back()
        if self.routing is None:
            return False
        walked = await self.connection.attempt(self._rerouting(DEFAULT_QUEUE).reroute(self.routing.queue_of))
        for queue in walked.moved:
            self.moved_to(queue)
        return bool(walked.moved)

    async def _route_anew(self, queue: str, routing: Routing) -> None:
        """Look at all of a queue that messages were routed into, by patterns that may have been others."""
        rerouting = self._rerouting(queue)
        seen: Cursors = {}
        while not self._stopping:
            walked = await self.connection.attempt(rerouting.reroute(routing.queue_of, seen))
            if not walked.seen:
                return
            seen |= walked.seen

    async def _beat(self) -> None:
        """Say that somebody takes messages from the default queue."""
        self._beat_at = time.monotonic() + self.options.heartbeat
        if self.routing is not None:
            await self.connection.attempt(self.workers.beat(self.options.worker, 0, 0))

    async def _bring_back(self) -> None:
        """Bring what lies in queues of patterns that no relay knows any more back to where it was added."""
        self._abandoned_at = time.monotonic() + ABANDONED_EVERY
        scan = SkipScan(self.names)
        queues: set[str] = set()
        for state in Stored:
            queues |= set(filter(is_routed, await self.connection.attempt(scan.queues_with(state))))
        abandoned = queues.difference(self.queues)
        if abandoned:
            abandoned -= await self.connection.attempt(self.workers.served())
        for queue in sorted(abandoned):
            moved = True
            while moved and not self._stopping:
                walked = await self.connection.attempt(self._rerouting(queue).reroute(lambda _topic: DEFAULT_QUEUE))
                for to in walked.moved:
                    self.moved_to(to)
                moved = bool(walked.moved)

    def _rerouting(self, queue: str) -> Rerouting:
        return Rerouting(self.names, queue, (lambda to: channel(self.names, to)) if self.notify else None)
