"""Where the deliveries are that an operator means: shared by dead letters and cancellation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from postroom.rules.lifecycle import State
from postroom.rules.naming import is_saga_queue
from postroom.store.admin.message_filter import ALL, Filter, has_fingerprint
from postroom.store.admin.newest_first import NewestFirst, Place
from postroom.store.admin.text_search import ERROR_TEXT, LIKE_ERROR, containing, fingerprint_pattern
from postroom.store.sql.dialect import ALL_LANES, whole_numbers
from postroom.store.sql.operations import chunks
from postroom.store.sql.rows import uuid_of
from postroom.store.sql.states import comes_due, dead, found_by_key, in_state, in_states
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from postroom.rules.lifecycle import Stored

Progress = Callable[[int], None]
"""Receives how many messages a batch has treated, after each batch."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many messages a filter matches."""

    total: int
    older_than_inbox: int
    """Those recorded longer ago than inboxes keep their marks: to send one again may repeat its effect."""
    as_of: datetime
    """The database's time of the count: as a filter's `as_of`, it leaves out what came later."""


@dataclass
class Acted:
    """How many messages an act treated, the ids that can be read, and what it left alone."""

    count: int
    ids: list[UUID]
    sending: list[UUID]
    """Left alone because it is being sent."""
    sagas: list[UUID] = field(default_factory=list)
    """Left alone because it is an instance of a saga."""


class KeyRange(NamedTuple):
    """A part of the delivery table's primary key, and which positions in it."""

    state: Stored
    queue: str
    lane: int
    positions: str

    def condition(self, after: int = 0) -> str:
        """Which deliveries `d`; the queue is a parameter."""
        return (
            f"{in_state(self.state, 'd')} AND d.queue = :queue AND d.lane = {self.lane} AND {self.positions} "
            f"AND d.position > {after} "
        )


class Batch(NamedTuple):
    """The messages of one transaction, by position, each with its id where that can be read."""

    done: dict[int, UUID | None]
    sending: list[UUID]
    last: int | None
    """Behind this position there may be more."""


class SelectedDeliveries(NewestFirst):
    """The deliveries in some states that a filter selects, and acts on them in batches of one transaction each."""

    states: ClassVar[Sequence[Stored]]
    """In the order in which their deliveries are treated."""
    since: ClassVar[str]
    """The column that tells how old a delivery `d` of a message `m` is."""

    @property
    def source(self) -> str:
        """A LEFT JOIN, which no planner turns round: it would start at all messages, sent ones included."""
        return f"FROM {self.delivery} d LEFT JOIN {self.outbox} m ON m.position = d.position"

    def count(self, which: Filter = ALL, old: float = 0) -> Steps[Count]:
        """How many there are, and how many of their messages were recorded more than `old` seconds ago."""
        as_of = yield from self.clock()
        on_delivery, on_message, params = self.split(which)
        source, is_old = yield from self._old_ones(as_of, old, joined=bool(on_message))
        params["old"] = -float(old)
        places: list[tuple[str, dict[str, Any]]] = [(f"{in_states(self.states, 'd')} ", {})]
        if which.ids is not None:
            ranges = yield from self.ranges(which)
            places = [(part.condition(), {"queue": part.queue}) for part in ranges]
        total, old_ones = 0, 0
        # What fits the pattern of a fingerprint need not have it: then each error is looked at.
        error, by_error = ("''", "") if which.fingerprint is None else ("d.error_message", " GROUP BY d.error_message")
        for place, queue in places:
            found = yield Query(
                f"SELECT count(*), coalesce(sum({is_old}), 0), {error} {source} "
                f"WHERE {place}{on_delivery}{on_message}{by_error}",
                {**params, **queue},
            )
            for count, old_count, message in found.rows:
                if has_fingerprint(which, message):
                    total += int(count)
                    old_ones += int(old_count)
        return Count(total, old_ones, as_of)

    def _old_ones(self, as_of: datetime, old: float, *, joined: bool) -> Steps[tuple[str, str]]:
        """Where to count from, and the expression that is 1 for a message that was recorded too long ago.

        Positions tell of all but some around that time: only those messages are looked at, unless all are anyway.
        """
        is_old = f"CASE WHEN m.created_at <= {self.dialect.later(':old')} THEN 1 ELSE 0 END"
        if joined:
            return self.source, is_old
        then = as_of - timedelta(seconds=old)
        before, after = (yield from self.position_before(then)), (yield from self.position_after(then))
        looked_up = f"(SELECT {is_old} FROM {self.outbox} m WHERE m.position = d.position)"
        return (
            f"FROM {self.delivery} d",
            f"CASE WHEN d.position <= {before} THEN 1 WHEN d.position >= {after} THEN 0 ELSE {looked_up} END",
        )

    def act(
        self, which: Filter, batch: Callable[[KeyRange, int], Steps[Batch]], progress: Progress | None
    ) -> Steps[Acted]:
        """Treat every delivery that is selected. `batch(range, after)` treats some behind a position."""
        count = 0
        ids: dict[int, UUID] = {}
        sending: list[UUID] = []
        for part in (yield from self.ranges(which)):
            after: int | None = 0
            while after is not None:
                done = yield from self.transaction(batch, part, after)
                count += len(done.done)
                ids |= {position: one for position, one in done.done.items() if one is not None}
                sending += done.sending
                if progress:
                    progress(len(done.done))
                after = done.last
        return Acted(count, [ids[position] for position in sorted(ids)], sending)

    def sagas(self, which: Filter) -> Steps[list[UUID]]:
        """The messages of instances of sagas among them: to remove one would break it. Signals are like others."""
        conditions, params = self.conditions(which)
        ids: list[UUID] = []
        for part in (yield from self.ranges(which)):
            if is_saga_queue(part.queue):
                found = yield Query(
                    f"SELECT m.id, d.error_message {self.source} JOIN {self.tables['saga']} s "
                    f"ON s.position = d.position WHERE {part.condition()}{conditions}ORDER BY d.position",
                    {**params, "queue": part.queue},
                )
                ids += [one for text, error in found.rows if has_fingerprint(which, error) and (one := uuid_of(text))]
        return list(dict.fromkeys(ids))  # one that moves meanwhile is found twice

    def but_sagas(self, queue: str) -> str:
        """The condition that leaves the instances of sagas out, with AND before it; for other queues nothing."""
        instance = f"SELECT 1 FROM {self.tables['saga']} s WHERE s.position = d.position"
        return f"AND NOT EXISTS ({instance}) " if is_saga_queue(queue) else ""

    def ranges(self, which: Filter) -> Steps[list[KeyRange]]:
        """The parts of the primary key in which selected deliveries may be."""
        positions = None if which.ids is None else (yield from self.positions(which.ids))
        ranges: list[KeyRange] = []
        for state in self.states:
            for queue in (yield from self.queues_with(state)):
                if which.queue in (None, queue):
                    ranges += yield from self._ranges_of(state, queue, positions)
        return ranges

    def _ranges_of(self, state: Stored, queue: str, positions: Sequence[int] | None) -> Steps[list[KeyRange]]:
        if positions is None:
            lanes = yield from self.lanes_with(state, queue)
            return [KeyRange(state, queue, lane, "d.position > 0") for lane in lanes]
        ranges: list[KeyRange] = []
        for chunk in chunks(positions):
            found = yield Query(
                f"SELECT lane, position FROM {self.delivery} WHERE {in_state(state)} AND queue = :queue "
                f"AND lane IN ({ALL_LANES}) AND position IN ({whole_numbers(chunk)})",
                {"queue": queue},
            )
            by_lane: dict[int, list[int]] = {}
            for lane, position in found.rows:
                by_lane.setdefault(lane, []).append(position)
            ranges += [
                KeyRange(state, queue, lane, f"d.position IN ({whole_numbers(sorted(some))})")
                for lane, some in sorted(by_lane.items())
            ]
        return ranges

    def positions(self, ids: Collection[UUID | str]) -> Steps[list[int]]:
        """Where the messages with these ids are, in order."""
        positions: list[int] = []
        for chunk in chunks(sorted(map(str, ids))):
            found = yield Query(
                f"SELECT position FROM {self.outbox} WHERE id IN ({_placeholders(chunk)})", named_ids(chunk)
            )
            positions += [position for [position] in found.rows]
        return sorted(positions)

    def places_of(self, which: Filter, params: dict[str, Any], wanted: str = "1 = 1") -> Steps[list[Place]]:
        """Where selected deliveries are looked for, newest first. Adds the queues to the parameters."""
        places: list[Place] = []
        queues: dict[str, str] = {}
        for part in (yield from self.ranges(which)):
            label = queues.setdefault(part.queue, f"queue_{len(queues)}")
            rows = (
                f"{self.delivery} d{self.dialect.by_primary_key} WHERE {found_by_key(part.state, 'd')} "
                f"AND d.queue = :{label} AND d.lane = {part.lane} AND {part.positions} "
            )
            places.append(Place(rows, "d.position", wanted))
        params |= {label: queue for queue, label in queues.items()}
        return places

    def conditions(self, which: Filter) -> tuple[str, dict[str, Any]]:
        """The filter as SQL on `d` and `m`, each condition with AND before it; ids are in the ranges."""
        on_delivery, on_message, params = self.split(which)
        return on_delivery + on_message, params

    def of_message(self, on_message: str) -> str:
        """Conditions on the message of delivery `d`: a scalar subquery, which no planner turns round."""
        if not on_message:
            return ""
        return f"AND (SELECT 1 FROM {self.outbox} m WHERE m.position = d.position {on_message}) = 1 "

    def split(self, which: Filter) -> tuple[str, str, dict[str, Any]]:
        """The filter as SQL on `d`, and on `m`, each condition with AND before it; ids are in the ranges."""
        older_than = None if which.older_than is None else -which.older_than.total_seconds()
        moment = self.dialect.moment
        conditions = {
            # With coalesce it stays a LEFT JOIN.
            "topic": ("coalesce(m.topic, '') = :topic", which.topic),
            "key": ("coalesce(m.ordering_key, '') = :key", which.key),
            "code": ("d.error_code = :code", which.code),
            "in_queue": ("d.queue = :in_queue", which.queue),
            "older_than": (f"{self.since} <= {self.dialect.later(':older_than')}", older_than),
            "as_of": (f"{self.since} <= :as_of", moment(which.as_of)),
            "type": ("coalesce(m.type, '') = :type", which.type),
            "since": (f"{self.since} >= :since", moment(which.since)),
            "until": (f"{self.since} < :until", moment(which.until)),
            "error": (ERROR_TEXT, None if which.error is None else containing(which.error)),
            "payload": (
                self.dialect.contains("m.payload", ":payload"),
                None if which.payload is None else which.payload.encode(),
            ),
            "fingerprint": (LIKE_ERROR.format("fingerprint"), fingerprint_pattern(which.fingerprint)),
        }
        given = {name: condition for name, condition in conditions.items() if condition[1] is not None}
        texts = [f"AND {text} " for text, _ in given.values()]
        on_message = [text for text in texts if "m." in text]
        on_delivery = [text for text in texts if text not in on_message]
        if which.status is not None:
            due = self.now if which.as_of is None else ":as_of"
            on_delivery.append(f"AND {_in_status(State(which.status), due)} ")
        return "".join(on_delivery), "".join(on_message), {name: value for name, (_, value) in given.items()}


def _in_status(status: State, now: str) -> str:
    """The condition that a delivery `d` is in this state. What is being sent counts as pending: acts look closer."""
    if status is State.DEAD:
        return dead("d")
    waits = f"({comes_due('d')} AND d.due > {now})"
    return waits if status is State.WAITING else f"NOT {waits}"


def named_ids(ids: Sequence[UUID | str]) -> dict[str, str]:
    """Ids as parameters."""
    return {f"id_{n}": str(one) for n, one in enumerate(ids)}


def _placeholders(ids: Sequence[UUID | str]) -> str:
    return ", ".join(f":{name}" for name in named_ids(ids))
