"""A batch of messages that is being published: collects one outcome for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from postroom.brokers.port import Outcome, Refused, Unreached
from postroom.brokers.refusals import timed_out, unsendable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from postroom.message import Message

T = TypeVar("T")


class Batch:
    """Collects one outcome for each message; `complete` waits until all are there, or no more can come."""

    def __init__(self, size: int) -> None:
        self._outcomes: list[Outcome | None] = [None] * size
        self._presumed: dict[int, Outcome] = {}
        self._open = size
        self.size = size
        self._ended = asyncio.Event()
        self.answered = False
        """Whether the broker has answered for any message."""
        self.lost: str | None = None
        """Why no more answers can come."""

    def settle(self, index: int, outcome: Outcome) -> None:
        """Record an outcome; the first one of a message counts."""
        if self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self._open -= 1
            if not self._open:
                self._ended.set()

    def answer(self, index: int, outcome: Outcome) -> None:
        """Record an outcome that the broker gave."""
        self.answered = True
        if self._outcomes[index] is None:  # inlines `settle`: this runs once for every message
            self._outcomes[index] = outcome
            self._open -= 1
            if not self._open:
                self._ended.set()

    def presume(self, index: int, outcome: Outcome) -> None:
        """Assume this outcome unless the broker gives another one in time."""
        self.answered = True
        self._presumed[index] = outcome

    def lose(self, reason: str) -> None:
        """The connection is gone: messages without an answer did not reach the broker."""
        self.lost = reason
        self._ended.set()

    async def complete(self) -> None:
        """Return when every message has its outcome, or no more can come."""
        if self._open:
            await self._ended.wait()

    @property
    def silent(self) -> bool:
        """Whether outcomes are missing and the broker has not answered at all."""
        return self._open > 0 and not self.answered

    def outcomes(self, timeout: float) -> Sequence[Outcome]:
        """One outcome for each message. Those without an answer were not reached, or have timed out."""
        if not self._open:
            return [outcome for outcome in self._outcomes if outcome is not None]
        rest = timed_out(timeout) if self.lost is None else Unreached(self.lost)
        presumed = self._presumed if self.lost is None else {}
        return [
            presumed.get(index, rest) if outcome is None else outcome for index, outcome in enumerate(self._outcomes)
        ]


def encode_each(
    messages: Sequence[Message], batch: Batch, encode: Callable[[int, Message], T | Refused]
) -> Iterator[T]:
    """Encode the messages for a protocol, one after another. One that cannot be encoded is refused, and left out."""
    for index, message in enumerate(messages):
        try:
            one = encode(index, message)
        except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault
            one = unsendable(error)
        if isinstance(one, Refused):
            batch.settle(index, one)
        else:
            yield one
