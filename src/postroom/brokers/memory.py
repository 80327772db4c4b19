"""A broker in memory, for tests and experiments."""

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
    """How far a group of readers has come."""

    next: int = 0
    """The index of the first message that no member has seen."""
    returned: list[int] = field(default_factory=list)
    """Indexes of messages that were given back: a heap."""


class MemoryBroker:
    """Keeps messages in order, and wakes waiting readers. Threads may share it."""

    name = "memory"
    capabilities = Capabilities(ordered_prefix=True)

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.lock = threading.Lock()
        """Hold it to read or change `messages` or a `Reading`."""
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
        """Do nothing: the messages can still be read."""

    def reading(self, group: Hashable) -> Reading:
        """The position that all readers of this group share."""
        with self.lock:
            return self._readings.setdefault(group, Reading())

    def wake(self) -> None:
        """Call all subscribers."""
        with self.lock:
            wakers = list(self._wakers)
        for waker in wakers:
            waker()

    def subscribe(self, waker: Callable[[], object]) -> None:
        """Call `waker`, in any thread, when there may be something to read."""
        with self.lock:
            self._wakers.add(waker)

    def unsubscribe(self, waker: Callable[[], object]) -> None:
        """Stop calling it."""
        with self.lock:
            self._wakers.discard(waker)
