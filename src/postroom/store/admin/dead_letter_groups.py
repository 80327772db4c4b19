"""Dead letters grouped by what made them fail, from the newest ones of each queue and lane."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.rules.fingerprints import fingerprint, spread
from postroom.store.admin.dead_letters import DeadLetters
from postroom.store.admin.message_filter import ALL, Filter
from postroom.store.sql.dialect import ALL_LANES, whole_numbers
from postroom.store.sql.operations import chunks
from postroom.store.sql.rows import shown
from postroom.store.sql.states import dead
from postroom.store.sql.steps import Query, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.store.admin.newest_first import Place

MOST = 5_000
"""Dead letters that are grouped, unless more are asked for."""
MOST_GROUPS = 200
"""Groups that are told, those with the most letters first."""
BUCKETS = 24
PARTS = 40
"""Places in one statement."""


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters that failed for the same reason, as far as their errors tell."""

    queue: str
    topic: str | None
    """None where the messages are gone."""
    code: str
    fingerprint: str
    """The error's message with numbers, ids and quoted values replaced by an ellipsis."""
    count: int
    first_failed: datetime | None
    last_failed: datetime | None
    newest_id: str | None
    """The id of the newest message among them."""
    example: str
    """That one's error."""
    histogram: tuple[int, ...]
    """How many failed when, in equal steps: see `DeadLetterGroups`."""

    def filter(self, as_of: datetime | None = None) -> Filter:
        """What selects exactly these letters; with `as_of`, without those that failed since."""
        return Filter(
            queue=self.queue, topic=self.topic or "", code=self.code, fingerprint=self.fingerprint, as_of=as_of
        )


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """Groups of dead letters, those with the most letters first. Iterate over it for the groups."""

    groups: tuple[DeadLetterGroup, ...]
    looked_at: int
    """How many dead letters were grouped."""
    more: bool
    """There are others, of older messages, which were not looked at."""
    left_out: int
    """Groups with few letters that are not told."""
    as_of: datetime
    """The database's time: in a filter, it leaves out what failed later."""
    histogram_since: datetime | None
    """The beginning of the first step of the histograms; None if there are no letters."""
    histogram_seconds: float
    """The length of a step."""

    def __iter__(self) -> Iterator[DeadLetterGroup]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)


class _Key(NamedTuple):
    queue: str
    topic: str | None
    code: str
    fingerprint: str


@dataclass(slots=True)
class _Group:
    count: int = 0
    newest: int = 0
    first: datetime | None = None
    last: datetime | None = None
    hours: dict[int, int] = field(default_factory=dict)

    def add(self, count: int, newest: int, first: datetime | None, last: datetime | None, hour: int | None) -> None:
        self.count += count
        self.newest = max(self.newest, newest)
        self.first = min(filter(None, (self.first, first)), default=None)
        self.last = max(filter(None, (self.last, last)), default=None)
        if hour is not None:
            self.hours[hour] = self.hours.get(hour, 0) + count


class GroupedDeadLetters(DeadLetters):
    """Reads dead letters in groups."""

    def groups(self, which: Filter = ALL, most: int = MOST) -> Steps[DeadLetterGroups]:
        """Those that a filter selects, among the newest `most`."""
        as_of = yield from self.clock()
        groups: dict[_Key, _Group] = {}
        fingerprints: dict[str, str] = {}
        on_delivery, on_message, params = self.split(which)
        places = yield from self.places_of(which, params)
        shares, more = yield from self._shares(places, most, params)
        read = [(place, share) for place, share in zip(places, shares, strict=True) if share]
        for some in chunks(read, PARTS):
            parts = [_newest(place, share) for place, share in some]
            for queue, topic, code, message, hour, count, first, last, newest in (
                yield from self._alike(parts, on_delivery, on_message, params)
            ):
                known_as = fingerprints.get(message)
                if known_as is None:
                    known_as = fingerprints[message] = fingerprint(message)
                if which.fingerprint in (None, known_as):
                    key = _Key(queue, topic, code, known_as)
                    groups.setdefault(key, _Group()).add(count, newest, first, last, hour)
        return (yield from self._told(groups, as_of, sum(shares), more=more))

    def _shares(self, places: Sequence[Place], most: int, params: dict[str, Any]) -> Steps[tuple[list[int], bool]]:
        """How many letters of each place are looked at, and whether some are not.

        Places with few letters leave the rest of their share to the others. Each round counts `most` letters at most.
        """
        shares = [0] * len(places)
        waiting = list(range(len(places)))
        while waiting:
            share = max(1, most // len(waiting))
            counts = yield from self._counted([places[n] for n in waiting], share + 1, params)
            whole = {n: count for n, count in zip(waiting, counts, strict=True) if count <= share}
            if not whole:
                for n in waiting:
                    shares[n] = share
                return shares, True
            for n, count in whole.items():
                shares[n] = count
            most -= sum(whole.values())
            waiting = [n for n in waiting if n not in whole]
        return shares, False

    def _counted(self, places: Sequence[Place], limit: int, params: dict[str, Any]) -> Steps[list[int]]:
        counts: list[int] = []
        for some in chunks(places, PARTS):
            each = (
                f"SELECT {n}, count(*) FROM (SELECT d.position FROM {_newest(place, limit)}) p{n}"
                for n, place in enumerate(some)
            )
            found = yield Query(" UNION ALL ".join(each), params)
            counts += [int(count) for _, count in sorted(found.rows)]
        return counts

    def _alike(
        self, rows: Sequence[str], on_delivery: str, on_message: str, params: dict[str, Any]
    ) -> Steps[list[tuple[Any, ...]]]:
        """How many failed alike, by error and hour; with one error of those that differ in numbers alone.

        Those have the same fingerprint, unless one of them has a hexadecimal number: then each is told.
        """
        columns = "d.position, d.queue, d.error_code, d.error_message, d.failed_at"
        parts = " UNION ALL ".join(f"SELECT * FROM (SELECT {columns} FROM {row}) p{n} " for n, row in enumerate(rows))
        wanted = f"WHERE 1 = 1 {on_delivery}{self.of_message(on_message)}"
        failed_at = self.dialect.readable("d.failed_at")
        letters = (
            f"SELECT d.queue, (SELECT m.topic FROM {self.outbox} m WHERE m.position = d.position) AS topic, "
            f"d.error_code, d.error_message, CASE WHEN replace(d.error_message, '0x', '') <> d.error_message "
            f"THEN d.error_message ELSE {self.dialect.digits_alike('d.error_message')} END AS alike, "
            f"{self.dialect.hour_of('d.failed_at')} AS hour, "
            f"{failed_at} AS failed_at, d.position FROM ({parts}) d {wanted}"
        )
        found = yield Query(
            "SELECT queue, topic, error_code, min(error_message), hour, count(*), min(failed_at), max(failed_at), "
            f"max(position) FROM ({letters}) g GROUP BY queue, topic, error_code, alike, hour",
            params,
        )
        read = self.dialect.read_moment
        return [
            (
                *(shown(queue), shown(topic), code, message, None if hour is None else int(hour), int(count)),
                *(read(first), read(last), int(newest)),
            )
            for queue, topic, code, message, hour, count, first, last, newest in found.rows
        ]

    def _told(
        self, groups: dict[_Key, _Group], as_of: datetime, looked_at: int, *, more: bool
    ) -> Steps[DeadLetterGroups]:
        largest = sorted(groups.items(), key=lambda one: (-one[1].count, -one[1].newest))[:MOST_GROUPS]
        examples = yield from self._examples([group.newest for _, group in largest])
        hours = [hour for _, group in largest for hour in group.hours]
        first, last = (min(hours), max(hours)) if hours else (0, 0)
        width = max(1, -(-(last - first + 1) // BUCKETS))
        told = [
            DeadLetterGroup(
                *key,
                *(group.count, group.first, group.last),
                *examples.get(group.newest, (None, "")),
                spread(group.hours, first, last, BUCKETS),
            )
            for key, group in largest
        ]
        since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=first) if hours else None
        return DeadLetterGroups(
            tuple(told), looked_at, more, len(groups) - len(told), as_of, since, float(width * 3600)
        )

    def _examples(self, positions: Sequence[int]) -> Steps[dict[int, tuple[str | None, str]]]:
        """The id and the error of these."""
        if not positions:
            return {}
        queues = {f"queue_{n}": queue for n, queue in enumerate((yield from self.queues_with(self.states[0])))}
        found = yield Query(
            f"SELECT d.position, m.id, d.error_message {self.source} WHERE {dead('d')} "
            f"AND d.queue IN ({', '.join(f':{label}' for label in queues) or 'NULL'}) AND d.lane IN ({ALL_LANES}) "
            f"AND d.position IN ({whole_numbers(positions)})",
            queues,
        )
        return {position: (shown(identifier), message) for position, identifier, message in found.rows}


def _newest(place: Place, limit: int) -> str:
    return f"{place.rows}AND d.position > 0 ORDER BY d.position DESC LIMIT {limit}"
