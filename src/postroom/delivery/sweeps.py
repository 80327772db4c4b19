"""Sweeps: when to look for work from the beginning instead of behind the last position."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 20
"""A sweep may take one part in this many of the time: it scans what a long transaction keeps from being vacuumed."""


class Sweeps:
    """Needed because a message gets its position when it is added and appears when it commits, maybe behind others."""

    def __init__(self, shortest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._shortest = shortest
        self._clock = clock
        self._next = 0.0

    def due(self) -> bool:
        """Whether it is time."""
        return self._clock() >= self._next

    def done(self, seconds: float) -> None:
        """A sweep took this many seconds."""
        self._next = self._clock() + max(self._shortest, SHARE * seconds)

    def now(self) -> None:
        """Sweep at the next opportunity: something may have been missed."""
        self._next = 0.0
