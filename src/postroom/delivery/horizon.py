"""The horizon: the position up to which a lane need not be read again, because nothing new can appear there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from postroom.store.outbox.leases import UNKNOWN_AGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.delivery.held_lanes import HeldLane
    from postroom.store.outbox.leases import Ages

MOST = 64
PATIENCE = 8
"""Once so many answers wait for a transaction, it is taken to stay open for long."""

Reached = list[tuple["HeldLane", int]]


class Safe(NamedTuple):
    """Behind which positions reads may start."""

    always: Reached
    meanwhile: Reached
    """As long as all are open that are set aside."""


NOTHING_SAFE = Safe([], [])


class Horizon:
    """Finds out which positions are safe to start behind.

    A message gets its position when it is added and becomes visible when it commits, so a lower position may appear
    after a higher one. Starting behind the highest could send a key's second message before its first. So what a read
    has reached is safe only once every transaction has ended that had begun when the database was next asked for its
    `Ages`: any transaction with a lower position was among them.

    A transaction that stays open for long would keep every read at the place where it began, walking over all that was
    sent since. So it is `set_aside`: what would be safe without it is safe as long as it is open. What is `always` safe
    is found out as if none were: with producers that all take long, one that is set aside ends every moment.
    """

    def __init__(self) -> None:
        self._always = _Waiting()
        self._meanwhile = _Waiting()
        self.set_aside: frozenset[int] = frozenset()
        """Transactions that were open when last asked, on which depends what is safe; fewer than before: one ended."""

    def safe(self, ages: Ages, lanes: Iterable[HeldLane]) -> Safe:
        """What is safe now. Also notes what the lanes have reached by now, which will be safe later."""
        if ages == UNKNOWN_AGES:
            return NOTHING_SAFE
        if not self.set_aside.issubset(ages.open):
            self.set_aside = frozenset()
        if len(self._meanwhile) >= PATIENCE:
            self.set_aside = self.set_aside.union(one for one in ages.open if one < self._meanwhile.first)
        reached = [(lane, lane.furthest) for lane in lanes]
        return Safe(
            self._always.pass_on(ages.youngest, ages.oldest, reached),
            self._meanwhile.pass_on(ages.youngest, ages.oldest_without(self.set_aside), reached),
        )


class _Waiting:
    """What was reached, until it is safe."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, Reached]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first(self) -> int:
        """All transactions below this number have to end before anything is safe."""
        return self._entries[0][0]

    def pass_on(self, youngest: int, oldest: int, reached: Reached) -> Reached:
        """What is safe, now that all transactions below `oldest` have ended. What was reached now waits, too."""
        safe = self._ended_before(oldest)
        if len(self._entries) == MOST:  # they wait for a transaction: the newest entry waits for it too
            self._entries.pop()
        self._entries.append((youngest, reached))
        return self._ended_before(oldest) or safe

    def _ended_before(self, oldest: int) -> Reached:
        safe: Reached = []
        while self._entries and self._entries[0][0] <= oldest:
            _, safe = self._entries.popleft()
        return safe
