"""Trials: calls with suspects in one line of batches. They may fail for a share of its time; the rest is for others."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from postroom.rules.backoff import SHARE_OF_SUSPECTS, in_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.delivery.suspects import Suspects
    from postroom.store.outbox.leases import Claimed

AT_ONCE = 0.5
"""Seconds that trials may fail for beyond their share, while what is behind them in the line waits."""


class Trials:
    """How long trials have failed for, less what was their share of the time since."""

    def __init__(self, suspects: Suspects, clock: Callable[[], float] = time.monotonic) -> None:
        self._suspects = suspects
        self._clock = clock
        self._seconds = 0.0
        self._as_of = clock()
        self._last = 0.0

    def are_over(self) -> bool:
        """Whether suspects have had their time for now."""
        if not self._seconds:  # as nearly always
            return False
        self._let_time_pass()
        return self._seconds > AT_ONCE

    @contextmanager
    def trial(self, first: Claimed) -> Iterator[None]:
        """A call with this message and those that are sent with it."""
        strikes = self._suspects.of(first).count
        if strikes:
            self._let_time_pass()
        yield
        if strikes and self._suspects.has_failed_again(first, strikes):
            self._last = self._clock() - self._as_of
            self._seconds += self._last

    def delays(self, count: int) -> list[float]:
        """In how many seconds each of `count` suspects is due, so that others have time between them."""
        return in_turns(count, self._last)

    def _let_time_pass(self) -> None:
        now = self._clock()
        self._seconds = max(0.0, self._seconds - SHARE_OF_SUSPECTS * (now - self._as_of))
        self._as_of = now
