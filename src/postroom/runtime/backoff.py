"""Backoff: pauses that double, up to a limit, while an operation keeps failing."""

from __future__ import annotations


class Backoff:
    """The pauses between the attempts of one operation; they start over when it succeeds."""

    def __init__(self, first: float = 0.1, longest: float = 5.0) -> None:
        self._first = first
        self._longest = longest
        self.pause = first
        """Seconds to wait if the next attempt fails."""

    def next(self) -> float:
        """Return the seconds to wait now, and double the next pause."""
        pause = self.pause
        self.pause = min(2 * pause, self._longest)
        return pause

    def reset(self) -> None:
        """Start over with the first pause, because the operation succeeded."""
        self.pause = self._first
