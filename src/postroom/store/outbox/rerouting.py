"""Rerouting: move deliveries into the queues that their topics belong to, unless somebody has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE
from postroom.rules.routing import is_routed
from postroom.store.sql.dialect import whole_numbers
from postroom.store.sql.operations import CHUNK, Operations, Place, chunks
from postroom.store.sql.states import in_state
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroom.store.sql.names import Names

QueueOf = Callable[[str], str]
"""Which queue a topic's messages belong to. The topic of a missing message is the empty text."""

Cursors = dict[tuple[Stored, int], int]
"""Up to which position the deliveries of a state and a lane were checked."""

# What holds its key back moves first: until it has, nothing behind it may be sent.
_STATES = (Stored.DEAD, Stored.RETRY, Stored.READY, Stored.SCHEDULED)


class Walked(NamedTuple):
    """What one pass over some deliveries did."""

    moved: dict[str, int]
    """How many moved to which queue."""
    seen: Cursors
    """How far it went, where there was anything to check."""


class Rerouting(Operations):
    """Moves deliveries out of one queue. They keep their state, attempts and claims, but no lease.

    It takes no lease: it locks a row, or a lane, for its transaction. What is leased or locked waits for the next pass.
    """

    def __init__(self, names: Names, queue: str, notify: Callable[[str], str] | None = None) -> None:
        """`notify` returns the channel of a queue's listening relays, if they are to be notified."""
        super().__init__(names, queue)
        self._channel_of = notify

    def anything(self) -> Steps[bool]:
        """Whether anything is in the queue, in any state, leased or not."""
        return bool((yield from self._states()))

    def reroute(self, queue_of: QueueOf, after: Cursors | None = None) -> Steps[Walked]:
        """Check some deliveries of each state, lane by lane in the order of positions, and move those of other queues.

        Runs its own transactions. Call it again as long as it moves any. To check a whole queue of which most stays,
        pass what it has `seen`, at first nothing, until it sees nothing more.
        """
        moved: dict[str, int] = {}
        seen: Cursors = {}
        for state in (yield from self._states()):
            for some in (self._reroute_rows, self._reroute_lanes):
                walked = yield from self.transaction(some, state, queue_of, after)
                seen |= walked.seen
                for queue, count in walked.moved.items():
                    moved[queue] = moved.get(queue, 0) + count
        return Walked(moved, seen)

    def _states(self) -> Steps[list[Stored]]:
        found = []
        for state in _STATES:
            some = yield Query(
                f"SELECT 1 FROM {self.delivery} WHERE {in_state(state)} AND queue = :queue LIMIT 1",
                {"queue": self.queue},
            )
            if some.rows:
                found.append(state)
        return found

    def _reroute_rows(self, state: Stored, queue_of: QueueOf, after: Cursors | None) -> Steps[Walked]:
        # Where most rows stay, none is locked to be checked: PostgreSQL writes its locks into the rows.
        lock = self.dialect.skip_locked if after is None else ""
        found = yield Query(
            f"SELECT lane, position FROM {self.delivery} WHERE {in_state(state)} AND queue = :queue "
            f"AND lane = {NO_LANE} AND position > :after AND leased_until <= {self.now} "
            f"ORDER BY position LIMIT {CHUNK}{lock}",
            {"queue": self.queue, "after": (after or {}).get((state, NO_LANE), 0)},
        )
        return (yield from self._move(state, queue_of, [Place(*row) for row in found.rows]))

    def _reroute_lanes(self, state: Stored, queue_of: QueueOf, after: Cursors | None) -> Steps[Walked]:
        begun = after or {}
        free = yield from self._free_lanes()
        if not free:
            return Walked({}, {})
        each = " UNION ALL ".join(
            f"SELECT * FROM (SELECT lane, position FROM {self.delivery} WHERE {in_state(state)} AND queue = :queue "
            f"AND lane = {lane} AND position > {begun.get((state, lane), 0)} "
            f"ORDER BY position LIMIT {CHUNK}) lane_{lane}"
            for lane in free
        )
        found = yield Query(each, {"queue": self.queue})
        return (yield from self._move(state, queue_of, [Place(*row) for row in found.rows]))

    def _free_lanes(self) -> Steps[list[int]]:
        """Lock the lanes that nobody holds. Only a later statement may read what is in them."""
        yield from self.make_lanes()
        found = yield Query(
            f"SELECT lane FROM {self.lane} WHERE queue = :queue AND leased_until <= {self.now} "
            f"ORDER BY lane{self.dialect.skip_locked}",
            {"queue": self.queue},
        )
        return [lane for [lane] in found.rows]

    def _move(self, state: Stored, queue_of: QueueOf, places: Sequence[Place]) -> Steps[Walked]:
        topics: dict[int, str] = {}
        for some in chunks(places):
            topics.update((yield from self._topics(some)))
        queues: dict[str, list[Place]] = {}
        seen: Cursors = {}
        for place in places:
            seen[state, place.lane] = max(place.position, seen.get((state, place.lane), 0))
            queue = queue_of(topics.get(place.position, ""))
            if queue != self.queue:
                queues.setdefault(queue, []).append(place)
        for queue, strangers in queues.items():
            lanes = {place.lane for place in strangers} - {NO_LANE}
            if lanes and not is_routed(queue):  # what is routed into is always read from the beginning
                yield from self.reread_lanes(queue, lanes)
            for some in chunks(strangers):
                yield self._moving(state, queue, some)
        yield from self._tell(queues)
        return Walked({queue: len(strangers) for queue, strangers in queues.items()}, seen)

    def _moving(self, state: Stored, queue: str, places: Iterable[Place]) -> Query:
        return Query(
            f"UPDATE {self.delivery_by_key} SET queue = :to, "
            f"token = 0, owner = '', leased_until = {self.dialect.never} "
            f"WHERE {in_state(state)} AND queue = :queue AND {self.places(places)} AND leased_until <= {self.now}",
            {"queue": self.queue, "to": queue},
        )

    def _topics(self, places: Sequence[Place]) -> Steps[Mapping[int, str]]:
        positions = whole_numbers([place.position for place in places])
        found = yield Query(f"SELECT position, topic FROM {self.outbox} WHERE position IN ({positions})")
        return {position: topic if isinstance(topic, str) else "" for position, topic in found.rows}

    def _tell(self, queues: Iterable[str]) -> Steps[None]:
        if self._channel_of is not None:
            for queue in queues:
                yield Query("SELECT pg_notify(:channel::text, '')", {"channel": self._channel_of(queue)})
