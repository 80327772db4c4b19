"""The log's clock, without asking for it in each transaction."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from postroom.store.sql.steps import Steps
    from postroom.store.twophase.log import TwoPhaseLog

KEPT = 30.0
"""Seconds until the log is asked again: clocks drift, and those of other servers differ."""


class _Asked(NamedTuple):
    at: float
    """By this process's monotonic clock."""
    clock_ms: int


class LogClock:
    """What the log's clock shows, by this process's own since the log was last asked.

    It only has to be about right. A transaction's deadline, which is made of it, is compared with the log's real clock:
    by the statement that decides to commit, and by recovery before it decides to abort. If the log is ahead of what is
    believed here, such as after a failover, or because this machine slept, it refuses the decision; if it is behind,
    recovery waits for longer. Neither makes the two disagree. After a refusal, `forget` has the log asked again.
    """

    def __init__(self) -> None:
        self._asked: _Asked | None = None

    def ask(self, log: TwoPhaseLog) -> Steps[int]:
        """Ask the log; returns milliseconds."""
        before = time.monotonic()  # so that a slow answer makes deadlines late, not early
        clock_ms = yield from log.clock()
        self._asked = _Asked(before, clock_ms)
        return clock_ms

    def believed(self) -> int | None:
        """Milliseconds; None if the log must be asked."""
        asked = self._asked
        passed = 0.0 if asked is None else time.monotonic() - asked.at
        return None if asked is None or passed > KEPT else asked.clock_ms + int(passed * 1000)

    def forget(self) -> None:
        """Have the log asked next time."""
        self._asked = None
