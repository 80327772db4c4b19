"""Attempts at one thing within a time limit."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


SHORTEST = 1.2
"""Seconds: longer than a lock is waited for, so that it is the database that tells of it."""
FIRST = 0.6
"""What of the time an attempt may take, so that there is another one: the first may get a connection long dead."""


class Patience:
    """For how many seconds, about, something is tried, and after which pauses again."""

    def __init__(self, seconds: float, pauses: Iterable[float]) -> None:
        self._longest = seconds * FIRST
        self._ends = monotonic() + seconds
        self._pauses = list(pauses)

    @property
    def attempt(self) -> float:
        """Seconds that an attempt may take."""
        return max(SHORTEST, min(self._left, self._longest))

    def is_over(self) -> bool:
        """Whether there is no time for another attempt."""
        return not self._pauses or self._pauses[0] >= self._left

    @property
    def _left(self) -> float:
        return self._ends - monotonic()

    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        return self._pauses.pop(0)
