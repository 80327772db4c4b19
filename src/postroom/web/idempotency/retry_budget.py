"""A retry budget: how long something may be tried, and the pauses between attempts."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORTEST = 1.2
"""Seconds: longer than the database waits for a lock, so that the database reports it."""
FIRST = 0.6
"""The share of the budget that one attempt may take, so that there is a second: the first may get a dead connection."""


class RetryBudget:
    """About ``seconds`` for all attempts, with these pauses between them."""

    def __init__(self, seconds: float, pauses: Iterable[float]) -> None:
        self._longest = seconds * FIRST
        self._deadline = monotonic() + seconds
        self._pauses = list(pauses)

    @property
    def attempt_seconds(self) -> float:
        """How long the next attempt may take."""
        return max(SHORTEST, min(self._left, self._longest))

    def is_spent(self) -> bool:
        """Whether there is no time for another attempt."""
        return not self._pauses or self._pauses[0] >= self._left

    def pause(self) -> float:
        """Seconds to wait before the next attempt."""
        return self._pauses.pop(0)

    @property
    def _left(self) -> float:
        return self._deadline - monotonic()
