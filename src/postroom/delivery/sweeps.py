"""When to look for work from the beginning instead of behind the last position."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 20
"""A sweep may take one part in so many of the time: it walks over what a long transaction keeps from being vacuumed."""


class Sweeps:
    """Positions are given when a message is added and seen when it commits, so a lower one may appear later."""

    def __init__(self, shortest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._shortest = shortest
        self._clock = clock
        self._next = 0.0

    def due(self) -> bool:
        """Whether it is time."""
        return self._clock() >= self._next

    def done(self, seconds: float) -> None:
        """A sweep took so many seconds."""
        self._next = self._clock() + max(self._shortest, SHARE * seconds)

    def now(self) -> None:
        """Sweep as soon as possible: something may have been missed."""
        self._next = 0.0
