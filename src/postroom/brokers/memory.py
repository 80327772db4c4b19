"""A broker in memory, for tests and for trying things out."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.brokers.port import ACCEPTED, Capabilities, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from postroom.message import Message


@dataclass(slots=True, eq=False)
class Reading:
    """How far those who read together have come."""

    next: int = 0
    """The index of the first message that none of them has seen."""
    returned: list[int] = field(default_factory=list)
    """Indexes that were given back: a heap."""


class MemoryBroker:
    """Keeps what it is given, in order, and wakes those who wait for more. Threads may share it."""

    name = "memory"
    capabilities = Capabilities(ordered_prefix=True)

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lock = threading.Lock()
        """To be held while `messages` or a `Reading` is looked at or changed."""
        self._readings: dict[Hashable, Reading] = {}
        self._wakers: set[Callable[[], object]] = set()

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Keep the messages."""
        del timeout
        with self.lock:
            self.messages.extend(messages)
        self.wake()
        return [ACCEPTED] * len(messages)

    async def close(self) -> None:
        """Nothing to close: what it keeps can still be read."""

    def reading(self, group: Hashable) -> Reading:
        """What all of this group share."""
        with self.lock:
            return self._readings.setdefault(group, Reading())

    def wake(self) -> None:
        """Call all who wait."""
        with self.lock:
            wakers = list(self._wakers)
        for waker in wakers:
            waker()

    def call_on_news(self, waker: Callable[[], object]) -> None:
        """Have this called, in whichever thread, when there may be something to read; until `call_no_more`."""
        with self.lock:
            self._wakers.add(waker)

    def call_no_more(self, waker: Callable[[], object]) -> None:
        """The end of `call_on_news`."""
        with self.lock:
            self._wakers.discard(waker)
