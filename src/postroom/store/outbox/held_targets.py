"""Held targets: topics that take no messages at the moment, and freeing what waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.failures import Reason
from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import LANES, NO_LANE
from postroom.store.sql.operations import CHUNK, Operations, Place
from postroom.store.sql.states import in_state
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from postroom.store.sql.steps import Row

MOST_TARGETS = 1000
"""Topics that are listed, those with the most messages first."""
HELD_BACK = f"{in_state(Stored.RETRY, 'd')} AND d.error_code = '{Reason.TARGET_UNAVAILABLE}'"
"""The condition for deliveries `d` that wait for their topic."""


@dataclass(frozen=True, slots=True)
class HeldTarget:
    """A topic that took no messages at the last attempt."""

    queue: str
    topic: str
    waiting: int
    """Messages that wait for it, without those held back behind them on their keys."""
    since: datetime | None
    """Since when the first one has waited."""
    reason: str


class FreedBatch(NamedTuple):
    """How many messages were freed, and where to go on."""

    messages: int
    next: Place | None


BEGINNING = Place(NO_LANE, 0)


class HeldTargets(Operations):
    """Held targets of one queue. They are read from the deliveries themselves, so nothing can be out of step."""

    def held_targets(self, most: int | None = None) -> Steps[list[HeldTarget]]:
        """The topics that messages wait for, over all queues; with `most`, among as many that wait for a retry."""
        return (yield from self._held("", {}) if most is None else self._held_among(most))

    def targets_of_queue(self) -> Steps[list[HeldTarget]]:
        """The topics that messages of this queue wait for."""
        return (yield from self._held(" AND d.queue = :queue", {"queue": self.queue}))

    def _held(self, where: str, params: dict[str, str]) -> Steps[list[HeldTarget]]:
        since = self.dialect.readable("d.failed_at")
        found = yield Query(
            f"SELECT d.queue, m.topic, count(*), min({since}), max(d.error_message) FROM {self.delivery} d "
            f"JOIN {self.outbox} m ON m.position = d.position WHERE {HELD_BACK}{where} "
            f"GROUP BY d.queue, m.topic ORDER BY 3 DESC, 1, 2 LIMIT {MOST_TARGETS}",
            params,
        )
        return [self._target(row) for row in found.rows]

    def _held_among(self, most: int) -> Steps[list[HeldTarget]]:
        # In this order from the primary key, and each topic by a scalar subquery, which no planner turns round.
        some = (
            f"SELECT queue, position, failed_at, error_code, error_message FROM {self.delivery_by_key} "
            f"WHERE {in_state(Stored.RETRY)} ORDER BY state, queue, lane, position LIMIT {most}"
        )
        topics = (
            f"SELECT d.queue, (SELECT m.topic FROM {self.outbox} m WHERE m.position = d.position) AS topic, "
            f"d.failed_at, d.error_message FROM ({some}) d WHERE d.error_code = '{Reason.TARGET_UNAVAILABLE}'"
        )
        since = self.dialect.readable("failed_at")
        found = yield Query(
            f"SELECT queue, topic, count(*), min({since}), max(error_message) FROM ({topics}) t "
            f"WHERE topic IS NOT NULL GROUP BY queue, topic ORDER BY 3 DESC, 1, 2 LIMIT {MOST_TARGETS}"
        )
        return [self._target(row) for row in found.rows]

    def _target(self, row: Row) -> HeldTarget:
        queue, topic, waiting, since, reason = row
        return HeldTarget(queue, topic, waiting, self.dialect.read_moment(since), reason)

    def free(self, topics: Sequence[str], begin: Place = BEGINNING, most: int = CHUNK) -> Steps[FreedBatch]:
        """Make some of what waits for these topics due now, the oldest of each lane first.

        Call it again from `next` until that is None. All calls together read what waits once, for any number of topics.
        """
        freed = 0
        lane, after = begin
        while lane < LANES:
            places = yield from self._waiting(topics, lane, after, most - freed)
            if places:
                yield from self.transaction(self._make_due, places)
            freed += len(places)
            if freed == most:
                return FreedBatch(freed, places[-1])
            lane, after = lane + 1, 0
        return FreedBatch(freed, None)

    def free_one_of_each(self, topics: Sequence[str]) -> Steps[int]:
        """Make one message of each of these topics due now, as a probe; returns how many."""
        found = yield Query(
            f"SELECT m.topic, d.lane, min(d.position) FROM {self.delivery} d "
            f"JOIN {self.outbox} m ON m.position = d.position "
            f"WHERE {HELD_BACK} AND d.queue = :queue AND d.due > {self.now} AND {_is_one_of(topics)} "
            f"GROUP BY m.topic, d.lane",
            {"queue": self.queue, **_named(topics)},
        )
        first_of = {topic: Place(lane, position) for topic, lane, position in found.rows}
        if first_of:
            yield from self.transaction(self._make_due, list(first_of.values()))
        return len(first_of)

    def _waiting(self, topics: Sequence[str], lane: int, after: int, most: int) -> Steps[Sequence[Place]]:
        # By itself, MySQL takes the index of what is due, and sorts all that waits for each batch.
        found = yield Query(
            f"SELECT d.lane, d.position FROM {self.delivery} d{self.dialect.by_primary_key} "
            f"JOIN {self.outbox} m ON m.position = d.position "
            f"WHERE {HELD_BACK} AND d.queue = :queue AND d.lane = {int(lane)} AND d.position > :after "
            f"AND d.due > {self.now} AND {_is_one_of(topics)} ORDER BY d.position LIMIT {most}",
            {"queue": self.queue, "after": after, **_named(topics)},
        )
        return [Place(*row) for row in found.rows]

    def _make_due(self, places: Sequence[Place]) -> Steps[None]:
        yield Query(
            f"UPDATE {self.delivery_by_key} SET due = {self.now} WHERE {in_state(Stored.RETRY)} AND queue = :queue "
            f"AND {self.places(places)} AND error_code = '{Reason.TARGET_UNAVAILABLE}' AND due > {self.now}",
            {"queue": self.queue},
        )


def _is_one_of(topics: Sequence[str]) -> str:
    return f"m.topic IN ({', '.join(f':topic_{n}' for n in range(len(topics)))})"


def _named(topics: Sequence[str]) -> dict[str, str]:
    return {f"topic_{n}": topic for n, topic in enumerate(topics)}
