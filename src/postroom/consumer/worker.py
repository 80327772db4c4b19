"""A worker: handles the messages assigned to it one after another, in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, assert_never

from postroom.consumer.handler_attempts import AttemptFailed, Committed, NotCalled
from postroom.consumer.outcomes import Fate
from postroom.rules.failures import Reason
from postroom.runtime.backoff import Backoff
from postroom.runtime.waiting import wait_for
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.parking import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.consumer.handler_attempts import HandlerAttempts
    from postroom.consumer.handlers import Handler
    from postroom.consumer.parked import ParkedMessages
    from postroom.incoming import Incoming
    from postroom.sources.port import Received

    Done = Callable[[Sequence[Received], Fate], None]


class SequentialWorker:
    """Handles or parks messages in order. One that comes behind a parked message of its key is parked too."""

    def __init__(
        self,
        *,
        batch: int,
        attempts: HandlerAttempts,
        parked: ParkedMessages,
        stopping: asyncio.Event,
        done: Done,
    ) -> None:
        """`done` receives every message with what became of it."""
        self._batch = batch
        self._attempts = attempts
        self._parked = parked
        self._stopping = stopping
        self._done = done
        self._waiting: deque[Received] = deque()
        self._assigned = asyncio.Event()
        self._busy = 0

    @property
    def load(self) -> int:
        """How many messages are assigned and not done."""
        return len(self._waiting) + self._busy

    def assign(self, received: Received) -> None:
        """Put a message behind the others."""
        self._waiting.append(received)
        self._assigned.set()

    async def run(self) -> None:
        """Work until cancelled. When the consumer stops, what has not been begun goes back undone."""
        while True:
            await self._assigned.wait()
            while self._waiting:
                if self._stopping.is_set():
                    undone = list(self._waiting)
                    self._waiting.clear()
                    self._done(undone, Fate.UNDONE)
                    break
                await self._finish(self._take())
            self._assigned.clear()

    def _take(self) -> list[Received]:
        """The next message, and those behind it that its handler takes together with it."""
        waiting = self._waiting
        taken = [waiting.popleft()]
        handler = self._attempts.handler_for(taken[0].message)
        if handler is not None and handler.takes_batch:
            while waiting and len(taken) < self._batch and self._goes_with(handler, waiting[0].message):
                taken.append(waiting.popleft())
        self._busy = len(taken)
        return taken

    def _goes_with(self, handler: Handler, message: Incoming) -> bool:
        return message.problem is None and self._attempts.handler_for(message) is handler

    async def _finish(self, received: Sequence[Received]) -> None:
        """Attempt until all are handled, parked or, because the consumer stops, undone."""
        backoff = Backoff()
        left, at_once = list(received), len(received)
        while left:
            try:
                finished = await self._attempt(self._unblocked(left[:at_once]))
            except Outage:  # the service's own database is away: nothing can be handled, and nothing parked
                if await wait_for(self._stopping, backoff.next()):
                    self._done(left, Fate.UNDONE)
                    break
            else:
                left = left[finished:]
                at_once = at_once if finished else 1  # one of them failed: attempt each by itself
        self._busy = 0

    def _unblocked(self, received: Sequence[Received]) -> Sequence[Received]:
        """The first, and those after it until one stands behind a parked message of its key."""
        first, *others = received
        return [first, *takewhile(lambda one: not self._parked.blocks(one.message), others)]

    async def _attempt(self, received: Sequence[Received]) -> int:
        """Handle all of these, or handle, skip or park the first; returns how many are finished.

        None is, if a handler failed that was called with several. Raises `Outage`: then nothing was done.
        """
        first = received[0]
        if first.message.problem is not None:
            return await self._park(first, Failed(Reason.UNDECODABLE, first.message.problem, None))
        handler = self._attempts.handler_for(first.message)
        if handler is None:
            self._attempts.report([first.message], Fate.SKIPPED)
            self._done([first], Fate.SKIPPED)
            return 1
        if self._parked.blocks(first.message):
            return await self._park(first, None)
        return await self._handle(handler, received)

    async def _handle(self, handler: Handler, received: Sequence[Received]) -> int:
        match await self._attempts.make(handler, [one.message for one in received]):
            case Committed(is_first):
                self._done_with(received, is_first)
                return len(received)
            case _ if len(received) > 1:
                return 0
            case NotCalled():
                return await self._park(received[0], None)
            case AttemptFailed(code, text, seconds):
                failed = Failed(code, text, self._attempts.retry_delay(code, handler))
                return await self._park(received[0], failed, seconds)
            case never:
                assert_never(never)

    def _done_with(self, received: Sequence[Received], is_first: Sequence[bool]) -> None:
        for is_new, fate in ((True, Fate.HANDLED), (False, Fate.DUPLICATE)):
            of_this = [one for one, first in zip(received, is_first, strict=True) if first is is_new]
            if of_this:
                self._done(of_this, fate)

    async def _park(self, received: Received, failed: Failed | None, seconds: float = 0.0) -> int:
        parked, failed = await self._parked.park(received.message, failed)
        fate = Fate.DEAD if failed is not None and failed.delay is None else Fate.PARKED
        self._attempts.report([received.message], fate, seconds, failed.code if failed else "", [parked])
        self._done([received], fate)
        return 1
