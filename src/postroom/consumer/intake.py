"""The intake: receives messages from a source, assigns them to workers, and acknowledges what is done."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from postroom.consumer.outcomes import Fate
from postroom.consumer.parked import hash_of
from postroom.errors import BrokerUnavailable
from postroom.rules.receiving import is_time_to_receive
from postroom.runtime.backoff import Backoff
from postroom.runtime.waiting import wait_for
from postroom.sources.port import Received
from postroom.store.connections.reconnecting import Outage
from postroom.telemetry.events import Reachability

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.consumer.parked import ParkedMessages
    from postroom.consumer.worker import Done, SequentialWorker
    from postroom.incoming import Incoming
    from postroom.rules.receiving import Portions
    from postroom.sources.port import Source
    from postroom.telemetry.events import Hook

ACKNOWLEDGED_EVERY = 0.02
"""Seconds between two acknowledgements: each takes a round trip, and costs more than a message does."""
WAIT = 0.5
"""Seconds that a source may wait for messages: a consumer that is asked to stop receives no longer than that."""


class Intake:
    """Assigns messages of one key to the same worker, and others to the worker with the least to do."""

    def __init__(
        self,
        source: Source | None,
        new_worker: Callable[[Done], SequentialWorker],
        *,
        concurrency: int,
        portions: Portions,
        parked: ParkedMessages,
        stopping: asyncio.Event,
        hook: Hook,
    ) -> None:
        """`portions` do not count the messages that `handle` brings."""
        self._source = source
        self._portions = portions
        self._parked = parked
        self._stopping = stopping
        self._hook = hook
        self.workers = [new_worker(self._done) for _ in range(concurrency)]
        self._answers: dict[Received, asyncio.Future[Fate]] = {}
        """Who waits for a message that `handle` brought. The source does not know it."""
        self._to_acknowledge: list[Received] = []
        self._to_give_back: list[Received] = []
        self._has_finished = asyncio.Event()
        """Something is to be acknowledged or given back."""
        self._has_room = asyncio.Event()
        self._closing = asyncio.Event()
        self.in_flight = 0
        """How many messages are received and not done."""
        self.down: str | None = None
        """Why the broker cannot be reached; None while it can."""

    async def receive(self) -> None:
        """Receive until the consumer stops."""
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                await self.receive_some(WAIT)
                backoff.reset()
            except BrokerUnavailable:
                await wait_for(self._stopping, backoff.next())

    async def receive_some(self, seconds: float) -> int:
        """Receive what the source has, as far as there is room; returns how many. Raises `BrokerUnavailable`."""
        if self._source is None:
            await wait_for(self._stopping, seconds)
            return 0
        while not self._is_time_to_receive():
            await self._wait_for_room()
        received = await self._received_from(self._source, seconds)
        if received and await self._learn_parked([one.message for one in received]):
            self._assign(received)
        elif received:
            self._to_give_back.extend(received)
            self._has_finished.set()
        return len(received)

    def is_behind(self, deadline: float) -> bool:
        """Whether the source has not been given all that is there. Raises `BrokerUnavailable` after the deadline."""
        source = self._source
        if not getattr(source, "is_behind", False):
            return False
        if source is not None and time.monotonic() > deadline:
            raise BrokerUnavailable(f"{source.name}: the consumer was not let in, or is not given what is there")
        return True

    async def handle(self, message: Incoming) -> Fate:
        """Handle one message that the source did not bring; returns when it is done, or the consumer stops."""
        if self._stopping.is_set() or not await self._learn_parked([message]):
            return Fate.UNDONE
        received = Received(message)
        answer: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()
        self._answers[received] = answer
        self._assign([received])
        return await answer

    async def acknowledge(self) -> None:
        """Acknowledge what is done, and give back what is undone, until `close`."""
        while not self._closing.is_set() or self._has_finished.is_set():
            await self._has_finished.wait()
            self._has_finished.clear()
            await self._acknowledge()
            await wait_for(self._closing, ACKNOWLEDGED_EVERY)

    async def wait_until_idle(self) -> None:
        """Return when nothing is in flight."""
        while self.in_flight:
            await self._wait_for_room()

    def close(self) -> None:
        """End `acknowledge` when all is acknowledged."""
        self._closing.set()
        self._has_finished.set()

    async def _received_from(self, source: Source, seconds: float) -> Sequence[Received]:
        batch, capacity, _ = self._portions
        try:
            received = await source.receive(min(batch, capacity - self.in_flight), seconds)
        except BrokerUnavailable as error:
            self._report(source, str(error))
            raise
        except Exception as error:
            down = f"{source.name}: {type(error).__name__}: {error}"
            self._report(source, down)
            raise BrokerUnavailable(down) from error
        self._report(source, None)
        return received

    def _report(self, source: Source, down: str | None) -> None:
        has_changed = (self.down is None) != (down is None)
        self.down = down
        if has_changed:
            self._hook(Reachability(source.name, down is None, down or ""))

    async def _learn_parked(self, messages: Sequence[Incoming]) -> bool:
        """Learn which keys have parked messages. False if the consumer stops before the database has answered."""
        backoff = Backoff()
        while True:
            try:
                await self._parked.learn(messages)
            except Outage:
                if await wait_for(self._stopping, backoff.next()):
                    return False
            else:
                return True

    def _is_time_to_receive(self) -> bool:
        is_anyone_idle = any(not worker.load for worker in self.workers)
        return is_time_to_receive(self.in_flight, self._portions.capacity, is_anyone_idle=is_anyone_idle)

    def _assign(self, received: Sequence[Received]) -> None:
        self.in_flight += len(received)
        unkeyed: list[Received] = []
        for one in received:
            key = one.message.key
            if key is None:
                unkeyed.append(one)
            else:
                self.workers[hash_of(key) % len(self.workers)].assign([one])
        share = self._portions.share(len(unkeyed), len(self.workers))
        for start in range(0, len(unkeyed), share):
            min(self.workers, key=_load).assign(unkeyed[start : start + share])

    def _done(self, received: Sequence[Received], fate: Fate) -> None:
        self.in_flight -= len(received)
        (self._to_acknowledge if fate.is_done else self._to_give_back).extend(self._unanswered(received, fate))
        self._has_room.set()
        self._has_finished.set()

    def _unanswered(self, received: Sequence[Received], fate: Fate) -> Sequence[Received]:
        """Answer for the messages that `handle` brought; returns the others, which the source did."""
        if not self._answers:
            return received
        others: list[Received] = []
        for one in received:
            answer = self._answers.pop(one, None)
            if answer is None:
                others.append(one)
            elif not answer.done():
                answer.set_result(fate)
        return others

    async def _acknowledge(self) -> None:
        done, self._to_acknowledge = self._to_acknowledge, []
        undone, self._to_give_back = self._to_give_back, []
        if self._source is None:
            return
        try:
            if undone:
                await self._source.give_back(undone)
            if done:
                await self._source.acknowledge(done)
        except BrokerUnavailable:
            pass  # they come again, and are known; `receive` reports that the broker is away
        except Exception as error:  # noqa: BLE001 - these come again too, and the consumer goes on
            logging.getLogger("postroom").warning("%s: settling raised %s", self._source.name, type(error).__name__)

    async def _wait_for_room(self) -> None:
        self._has_room.clear()
        await self._has_room.wait()


def _load(worker: SequentialWorker) -> int:
    return worker.load
