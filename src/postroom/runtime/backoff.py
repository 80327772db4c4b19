"""Backoff: pauses that double from a first one to a longest one, while something that is tried again keeps failing."""

from __future__ import annotations


class Backoff:
    """The pauses of one thing that is tried again and again. They start over when it has worked."""

    def __init__(self, first: float = 0.1, longest: float = 5.0) -> None:
        self._first = first
        self._longest = longest
        self.pause = first
        """Seconds to wait if it fails now."""

    def next(self) -> float:
        """The seconds to wait now; the next pause is twice as long."""
        pause = self.pause
        self.pause = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """It worked: the next pause is the first one again."""
        self.pause = self._first
