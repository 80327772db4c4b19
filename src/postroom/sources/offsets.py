"""Offsets: how far a partition may be committed when messages are finished in any order."""

from __future__ import annotations

from collections import deque


class Offsets:
    """The delivered offsets of one partition, and which of them are unfinished. No I/O."""

    def __init__(self) -> None:
        self._delivered: deque[int] = deque()
        self._out: set[int] = set()
        self.reached: int | None = None
        """Everything before this offset is done; None while nothing is."""

    def deliver(self, offset: int) -> None:
        """Add the next offset. Offsets rise, possibly with gaps."""
        self._delivered.append(offset)
        self._out.add(offset)

    def done(self, offset: int) -> None:
        """Mark an offset as done; unknown ones are ignored."""
        self._out.discard(offset)
        while self._delivered and self._delivered[0] not in self._out:
            self.reached = self._delivered.popleft() + 1

    def rewind(self, offset: int) -> None:
        """Forget this offset and all after it: they will be delivered again."""
        while self._delivered and self._delivered[-1] >= offset:
            self._out.discard(self._delivered.pop())

    @property
    def lowest(self) -> int | None:
        """The first unfinished offset."""
        return self._delivered[0] if self._delivered else None
