"""The horizon: up to which position a lane need not be read again, because nothing can appear there any more."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from postroom.store.outbox.leases import UNKNOWN_AGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from postroom.delivery.held_lanes import HeldLane
    from postroom.store.outbox.leases import Ages

MOST = 64

Reached = list[tuple["HeldLane", int]]


class Horizon:
    """Positions are given when a message is added and seen when it commits: a lower one may appear after a higher.

    Who reads on behind the highest may so send a key's second message before its first. What was reached by a read is
    therefore safe only when every transaction has ended that began before the database was asked for its `Ages` after
    that read: whoever was given a lower position was among them.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Reached]] = deque()

    def safe(self, ages: Ages, lanes: Iterable[HeldLane]) -> Reached:
        """What is safe now; what the lanes have reached by now will be later. Ask anew before every read."""
        if ages == UNKNOWN_AGES:
            return []
        safe = self._ended_before(ages.oldest)
        if len(self._waiting) == MOST:  # a transaction stays open for long: the last one may as well wait for more
            self._waiting.pop()
        self._waiting.append((ages.youngest, [(lane, lane.furthest) for lane in lanes]))
        return self._ended_before(ages.oldest) or safe

    def _ended_before(self, oldest: int) -> Reached:
        safe: Reached = []
        while self._waiting and self._waiting[0][0] <= oldest:
            _, safe = self._waiting.popleft()
        return safe
