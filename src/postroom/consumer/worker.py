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
        self._at_hand: list[Received] = []
        """Those taken from the waiting, in order, that are not finished."""

    @property
    def load(self) -> int:
        """How many messages are assigned and not done."""
        return len(self._waiting) + len(self._at_hand)

    def assign(self, received: Sequence[Received]) -> None:
        """Put messages behind the others."""
        self._waiting.extend(received)
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
                self._at_hand = self._take()
                await self._finish()
            self._assigned.clear()

    def _take(self) -> list[Received]:
        """The next message, and those behind it that go to the same handler."""
        waiting = self._waiting
        taken = [waiting.popleft()]
        handler = self._attempts.handler_for(taken[0].message)
        if handler is not None:
            while waiting and len(taken) < self._batch and self._goes_with(handler, waiting[0].message):
                taken.append(waiting.popleft())
        return taken

    def _goes_with(self, handler: Handler, message: Incoming) -> bool:
        return message.problem is None and self._attempts.handler_for(message) is handler

    async def _finish(self) -> None:
        """Attempt until all at hand are handled, parked or, because the consumer stops, undone."""
        backoff = Backoff()
        at_once = len(self._at_hand)
        while self._at_hand:
            before = len(self._at_hand)
            try:
                await self._attempt(self._unblocked(self._at_hand[:at_once]))
            except Outage:  # the service's own database is away: nothing can be handled, and nothing parked
                await wait_for(self._stopping, backoff.next())
            else:
                if len(self._at_hand) == before:
                    at_once = 1  # one of them failed: attempt each by itself
            if self._at_hand and self._stopping.is_set():
                self._finished(self._at_hand, [Fate.UNDONE] * len(self._at_hand))

    def _unblocked(self, received: Sequence[Received]) -> Sequence[Received]:
        """The first, and those after it until one stands behind a parked message of its key."""
        first, *others = received
        return [first, *takewhile(lambda one: not self._parked.blocks(one.message), others)]

    async def _attempt(self, received: Sequence[Received]) -> None:
        """Handle these, or some of them, or skip or park the first.

        None is finished, if a handler failed that was called with several. Raises `Outage`: then nothing was done with
        the first that is not finished.
        """
        first = received[0]
        if first.message.problem is not None:
            await self._park(first, Failed(Reason.UNDECODABLE, first.message.problem, None))
            return
        handler = self._attempts.handler_for(first.message)
        if handler is None:
            self._attempts.report([first.message], Fate.SKIPPED)
            self._finished([first], [Fate.SKIPPED])
        elif self._parked.blocks(first.message):
            await self._park(first, None)
        elif handler.takes_batch:
            await self._handle(handler, received)
        else:
            await self._handle_each(handler, received)

    async def _handle(self, handler: Handler, received: Sequence[Received]) -> None:
        """Handle all together."""
        attempted = await self._attempts.make(handler, [one.message for one in received])
        if isinstance(attempted, Committed):
            self._committed(attempted.is_first)
        elif len(received) == 1:
            await self._park_after(attempted, handler)

    async def _handle_each(self, handler: Handler, received: Sequence[Received]) -> None:
        """Handle one after another, until one fails."""
        messages = [one.message for one in received]
        attempted = await self._attempts.make_each(handler, messages, self._may_go_on, self._committed)
        if isinstance(attempted, AttemptFailed) or (attempted is not None and len(received) == 1):
            await self._park_after(attempted, handler)

    def _may_go_on(self) -> bool:
        return not self._stopping.is_set()

    def _committed(self, is_first: Sequence[bool]) -> None:
        """The transactions of the first at hand are."""
        fates = [Fate.HANDLED if one else Fate.DUPLICATE for one in is_first]
        self._finished(self._at_hand[: len(fates)], fates)

    def _finished(self, received: Sequence[Received], fates: Sequence[Fate]) -> None:
        """The first at hand are."""
        self._at_hand = self._at_hand[len(received) :]
        for fate in dict.fromkeys(fates):
            self._done([one for one, its in zip(received, fates, strict=True) if its is fate], fate)

    async def _park_after(self, attempted: AttemptFailed | NotCalled, handler: Handler) -> None:
        """Park the first at hand."""
        match attempted:
            case NotCalled():
                await self._park(self._at_hand[0], None)
            case AttemptFailed(code, text, seconds):
                failed = Failed(code, text, self._attempts.retry_delay(code, handler))
                await self._park(self._at_hand[0], failed, seconds)
            case never:
                assert_never(never)

    async def _park(self, received: Received, failed: Failed | None, seconds: float = 0.0) -> None:
        parked, failed = await self._parked.park(received.message, failed)
        fate = Fate.DEAD if failed is not None and failed.delay is None else Fate.PARKED
        self._attempts.report([received.message], fate, seconds, failed.code if failed else "", [parked])
        self._finished([received], [fate])
