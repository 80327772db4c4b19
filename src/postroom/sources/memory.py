"""Receive from a broker in memory."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from typing import TYPE_CHECKING

from postroom.brokers.cloudevents import KAFKA, Envelope, incoming
from postroom.sources import patterns
from postroom.sources.port import Received

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.brokers.memory import MemoryBroker

_ENVELOPE = Envelope(KAFKA)


class MemorySource:
    """Receives what relays of the same process publish to a `MemoryBroker`; sources with the same name share it."""

    name = "memory"

    def __init__(self, broker: MemoryBroker, consumer: str, topics: Sequence[str]) -> None:
        self._broker = broker
        self._topics = patterns.check_topics(topics)
        self._matches = patterns.matcher(self._topics)
        self._reading = broker.reading((consumer, frozenset(self._topics)))
        self._out: set[int] = set()

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` messages; what was given back comes first."""
        news = asyncio.Event()
        with self._set_on_news(news), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    news.clear()
                    if found := self._take(most):
                        return found
                    await news.wait()
        return []

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """These are done for good."""
        with self._broker.lock:
            self._out.difference_update(one.receipt for one in received)

    async def give_back(self, received: Sequence[Received]) -> None:
        """Deliver these next, here or at another source of the same name."""
        self._return([one.receipt for one in received])

    async def close(self) -> None:
        """Leave; what is neither acknowledged nor given back comes again."""
        self._return(list(self._out))

    @contextlib.contextmanager
    def _set_on_news(self, news: asyncio.Event) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def waker() -> None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed
                loop.call_soon_threadsafe(news.set)

        self._broker.subscribe(waker)
        try:
            yield
        finally:
            self._broker.unsubscribe(waker)

    def _take(self, most: int) -> list[Received]:
        found: list[int] = []
        reading, messages = self._reading, self._broker.messages
        with self._broker.lock:
            while reading.returned and len(found) < most:
                found.append(heapq.heappop(reading.returned))
            while reading.next < len(messages) and len(found) < most:
                if self._matches(messages[reading.next].topic):
                    found.append(reading.next)
                reading.next += 1
            self._out.update(found)
        return [self._received(index) for index in found]

    def _received(self, index: int) -> Received:
        message = self._broker.messages[index]
        headers, body = _ENVELOPE.seal(message)
        return Received(incoming(KAFKA, headers, body, id=str(message.id), topic=message.topic), index)

    def _return(self, indexes: Sequence[int]) -> None:
        with self._broker.lock:
            for index in self._out.intersection(indexes):
                heapq.heappush(self._reading.returned, index)
            self._out.difference_update(indexes)
        self._broker.wake()
