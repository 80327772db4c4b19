"""Find how old messages are by their positions."""

from __future__ import annotations

from postroom.store.sql.operations import Operations
from postroom.store.sql.steps import Query, Steps

FEW = 10_000
"""So many positions are gone through rather than searched."""
_NEAR = 100
"""Messages whose age is compared at each step of the search: one may hold a moment that is nonsense."""


class Ages(Operations):
    """Ages follow positions closely, but not strictly, and no index has them: they are searched for."""

    def last_settled(self, seconds: float) -> Steps[int]:
        """About the last position of a settled message that was added longer ago than this, or a little more."""
        first, last = 0, (yield from self._newest())
        while last - first > FEW:
            middle = (first + last) // 2
            near = yield Query(
                f"SELECT 1 FROM (SELECT created_at FROM {self.outbox} WHERE position >= :middle ORDER BY position "
                f"LIMIT {_NEAR}) near WHERE created_at <= {self.dialect.later(':ago')} LIMIT 1",
                {"ago": -float(seconds), "middle": middle},
            )
            first, last = (middle, last) if near.rows else (first, middle)
        return last

    def settled_since(self, seconds: float) -> Steps[int]:
        """About how many messages were added since, as far as they are settled."""
        newest = yield from self._newest()
        before = yield from self.last_settled(seconds)
        return max(0, newest - before)

    def _newest(self) -> Steps[int]:
        found = yield Query(f"SELECT max(position) FROM {self.receipt}")
        return int(found.rows[0][0] or 0)
