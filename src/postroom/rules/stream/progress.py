"""How far the stream is settled: batches end in any order, but only what comes before the first open one is done."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Progress:
    """Batches of messages in the order in which they were read, each with the place up to which it ends the reading."""

    def __init__(self, done: int) -> None:
        self.done = done
        """Everything before this place is settled, or on record."""
        self._ends: deque[tuple[int, int]] = deque()
        self._open: dict[int, int] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open."""
        return not self._ends

    def begin(self, batch: int, messages: int, end: int) -> None:
        """Note a batch: when it and all before it are settled, everything before `end` is done."""
        self._ends.append((batch, end))
        self._open[batch] = messages
        self._advance()

    def settle(self, messages: Mapping[int, int]) -> None:
        """Note how many messages of each batch were settled."""
        for batch, count in messages.items():
            if batch in self._open:
                self._open[batch] -= count
        self._advance()

    def pass_by(self, place: int) -> None:
        """Note that there is nothing up to this place; it counts if nothing is open."""
        if not self._ends:
            self.done = max(self.done, place)

    def _advance(self) -> None:
        while self._ends and self._open[self._ends[0][0]] <= 0:
            batch, end = self._ends.popleft()
            del self._open[batch]
            self.done = max(self.done, end)
