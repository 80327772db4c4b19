"""Skip scan: find the queues and lanes that have deliveries in a state by jumping through the primary key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from postroom.rules.ordering import NO_LANE
from postroom.store.sql.operations import Operations
from postroom.store.sql.states import found_by_key
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from datetime import datetime

    from postroom.rules.lifecycle import Stored


class SkipScan(Operations):
    """For operations over all queues that go through deliveries in batches, without reading every row."""

    def clock(self) -> Steps[datetime]:
        """The database's time."""
        found = yield Query(f"SELECT {self.now}")
        now = self.dialect.read_moment(found.rows[0][0])
        assert now is not None  # noqa: S101 - every database has a clock
        return now

    def queues_with(self, state: Stored) -> Steps[list[str]]:
        """The queues that have deliveries in this stored state."""
        return (yield from self._values("queue", found_by_key(state), {}, ""))

    def lanes_with(self, state: Stored, queue: str) -> Steps[list[int]]:
        """The lanes of a queue that have deliveries in this stored state, including the lane without a key."""
        chosen = f"{found_by_key(state)} AND queue = :queue"
        return (yield from self._values("lane", chosen, {"queue": queue}, NO_LANE - 1))

    def _values(self, column: str, chosen: str, params: dict[str, str], after: object) -> Steps[list[Any]]:
        values: list[Any] = []
        while True:
            found = yield Query(
                f"SELECT {column} FROM {self.delivery} WHERE {chosen} AND {column} > :after ORDER BY {column} LIMIT 1",
                {**params, "after": values[-1] if values else after},
            )
            if not found.rows:
                return values
            values.append(found.rows[0][0])
