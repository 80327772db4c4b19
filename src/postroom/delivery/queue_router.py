"""The sorter: takes what was added into the queues of its topics, so that no broker can keep another one waiting."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored
from postroom.rules.routing import is_sorted
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.sorting import Sorting
from postroom.store.outbox.workers import Workers
from postroom.store.sql.names import channel
from postroom.store.sql.operations import DEFAULT_QUEUE
from postroom.store.sql.walking import Walking

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from postroom.delivery.options import Options
    from postroom.delivery.queue_state import Office
    from postroom.rules.routing import Routing
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.outbox.sorting import Cursors
    from postroom.store.sql.names import Names

QUICKEST_POLL = 0.005
ABANDONED_EVERY = 5.0
"""Seconds between two looks for queues that nobody serves any more."""


class Sorter:
    """Empties the default queue into those of the patterns; without patterns, brings back what was sorted once.

    It needs the database alone. Its locks are as short as a statement or two, so that sorters of several relays work
    side by side, and what one of them leaves, because it is locked or leased, is found again.
    """

    def __init__(
        self,
        options: Options,
        names: Names,
        line: ReconnectingConnection,
        routing: Routing | None,
        offices: Mapping[str, Office],
        *,
        notify: bool = False,
    ) -> None:
        self._options = options
        self._names = names
        self._line = line
        self._routing = routing
        self._offices = offices
        self._notify = notify
        self._workers = Workers(names, DEFAULT_QUEUE)
        self._bell = asyncio.Event()
        self._stopping = False
        self._beat_at = 0.0
        self._abandoned_at = 0.0

    async def run(self) -> None:
        """Sort until the relay stops."""
        pause = QUICKEST_POLL
        while not self._stopping:
            self._bell.clear()
            moved = False
            with suppress(Outage):
                moved = await self._look()
            if moved:
                pause = QUICKEST_POLL
                continue
            pause = min(pause * 2, self._longest_pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._bell.wait()
                    pause = QUICKEST_POLL

    async def begin(self) -> None:
        """Before lanes are taken, and anything is sent: undo what other patterns did before. Raises `Outage`."""
        await self._beat()
        await self._bring_back()
        if self._routing is not None:
            for queue in self._offices:
                await self._sort_anew(queue, self._routing)

    async def sort_all(self) -> None:
        """Sort what is there now. Raises `Outage`."""
        while not self._stopping and await self._look():
            pass

    async def anything_to_sort(self) -> bool:
        """Whether anything waits to be sorted. Asked until the database answers."""
        sorting = self._sorting(DEFAULT_QUEUE)
        return self._routing is not None and await self._line.run(sorting.anything)

    async def leave(self) -> None:
        """Take this relay's name off the list of those who sort. Raises `Outage`."""
        if self._routing is not None:
            await self._line.attempt(self._workers.leave(self._options.worker))

    def wake(self, what: str = "") -> None:
        """Something was committed."""
        del what
        self._bell.set()

    def stop(self) -> None:
        """Sort no more."""
        self._stopping = True
        self._bell.set()

    @property
    def _longest_pause(self) -> float:
        return ABANDONED_EVERY if self._routing is None else self._options.poll_interval

    async def _look(self) -> bool:
        """Sort some; returns whether there may be more."""
        if time.monotonic() >= self._beat_at:
            await self._beat()
        if time.monotonic() >= self._abandoned_at:
            await self._bring_back()
        if self._routing is None:
            return False
        walked = await self._line.attempt(self._sorting(DEFAULT_QUEUE).sort(self._routing.queue_of))
        self._tell(walked.moved)
        return bool(walked.moved)

    async def _sort_anew(self, queue: str, routing: Routing) -> None:
        """Look at all of a queue that messages were sorted into by patterns which may have been others."""
        sorting = self._sorting(queue)
        seen: Cursors = {}
        while not self._stopping:
            walked = await self._line.attempt(sorting.sort(routing.queue_of, seen))
            if not walked.seen:
                return
            seen |= walked.seen

    async def _beat(self) -> None:
        """Say that there is somebody who takes messages from the default queue."""
        self._beat_at = time.monotonic() + self._options.beat
        if self._routing is not None:
            await self._line.attempt(self._workers.beat(self._options.worker, 0, 0))

    async def _bring_back(self) -> None:
        """Bring what lies in queues of patterns that no relay knows any more back to where it was added."""
        self._abandoned_at = time.monotonic() + ABANDONED_EVERY
        walking = Walking(self._names)
        queues: set[str] = set()
        for state in Stored:
            queues |= set(filter(is_sorted, await self._line.attempt(walking.queues_with(state))))
        abandoned = queues - self._offices.keys()
        if abandoned:
            abandoned -= await self._line.attempt(self._workers.served())
        for queue in sorted(abandoned):
            moved = True
            while moved and not self._stopping:
                walked = await self._line.attempt(self._sorting(queue).sort(lambda _topic: DEFAULT_QUEUE))
                self._tell(walked.moved)
                moved = bool(walked.moved)

    def _sorting(self, queue: str) -> Sorting:
        return Sorting(self._names, queue, (lambda to: channel(self._names, to)) if self._notify else None)

    def _tell(self, queues: Iterable[str]) -> None:
        for queue in queues:
            if queue in self._offices:
                self._offices[queue].moved_in()
