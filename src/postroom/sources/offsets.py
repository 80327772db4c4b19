"""Offsets: how far a partition is done, where messages are done in any order and none may be left out."""

from __future__ import annotations

from collections import deque


class Offsets:
    """What was delivered of one partition, in order, and what of it is still out. No I/O."""

    def __init__(self) -> None:
        self._delivered: deque[int] = deque()
        self._out: set[int] = set()
        self.reached: int | None = None
        """All before this offset is done; None while nothing is."""

    def deliver(self, offset: int) -> None:
        """The next one, which is higher than those before; there may be gaps between."""
        self._delivered.append(offset)
        self._out.add(offset)

    def done(self, offset: int) -> None:
        """One is done; what is not out is of no interest."""
        self._out.discard(offset)
        while self._delivered and self._delivered[0] not in self._out:
            self.reached = self._delivered.popleft() + 1

    def rewind(self, offset: int) -> None:
        """One, and all behind it, will be delivered again."""
        while self._delivered and self._delivered[-1] >= offset:
            self._out.discard(self._delivered.pop())

    @property
    def lowest(self) -> int | None:
        """The first that is out."""
        return self._delivered[0] if self._delivered else None
