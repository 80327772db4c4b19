"""Flow: how many messages went through, by the minute. What a process counts, and how it is put into buckets."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

WIDTHS = (1, 5, 15, 60, 360, 1440)
"""Widths of buckets in minutes."""
MOST_BUCKETS = 120
"""A span without a given width is divided into at most this many."""


class FlowKind(StrEnum):
    """What became of messages."""

    SENT = "sent"
    DUPLICATE = "duplicate"
    """Not sent or handled again: the broker, the deduplication or the inbox knew it."""
    EXPIRED = "expired"
    RETRIED = "retried"
    """A send failed, and is tried again later."""
    DEAD = "dead"
    HANDLED = "handled"
    """Received, and handled."""
    PARKED = "parked"
    """Received; its handler failed, and is tried again later."""


class Place(NamedTuple):
    """What a counter counts."""

    minute: int
    queue: str
    kind: str


class FlowCounts:
    """What a process has counted and not written yet.

    A counter is written as its whole value for the minute, not as what was added, so that a write whose answer is lost
    can be repeated. What is counted belongs to the minute in which it is first taken up for writing.
    """

    def __init__(self) -> None:
        self._new: Counter[tuple[str, str]] = Counter()
        self._totals: dict[Place, int] = {}
        self._unwritten: set[Place] = set()

    def count(self, queue: str, kind: FlowKind, messages: int) -> None:
        """Count messages."""
        if messages:
            self._new[queue, kind.value] += messages

    @property
    def has_unwritten(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._new or self._unwritten)

    def to_write(self, minute: int) -> dict[Place, int]:
        """What is to be written in this minute: the counters that have changed, in order."""
        for (queue, kind), messages in self._new.items():
            place = Place(minute, queue, kind)
            self._totals[place] = self._totals.get(place, 0) + messages
            self._unwritten.add(place)
        self._new.clear()
        return {place: self._totals[place] for place in sorted(self._unwritten)}

    def written(self, counters: Mapping[Place, int], minute: int) -> None:
        """These have been written. Those of other minutes than this one are forgotten: they will not change again."""
        self._unwritten -= {place for place, value in counters.items() if self._totals.get(place) == value}
        for place in [one for one in self._totals if one.minute != minute and one not in self._unwritten]:
            del self._totals[place]


def width_for(minutes: int) -> int:
    """The narrowest width that divides a span of minutes into few enough buckets."""
    return next((width for width in WIDTHS if minutes <= width * MOST_BUCKETS), WIDTHS[-1])


def first_minute(minute: int, width: int) -> int:
    """The beginning of the bucket of a minute: buckets begin at whole multiples of their width."""
    return minute - minute % width


def in_buckets(
    counts: Iterable[tuple[int, str, int]], first: int, last: int, width: int
) -> dict[int, dict[FlowKind, int]]:
    """Counts by the minute, added up in buckets from the one of `first` to the one of `last`; none is left out.

    What is of a kind that is not known, which a newer version wrote, is left out.
    """
    start = first_minute(first, width)
    buckets = {minute: dict.fromkeys(FlowKind, 0) for minute in range(start, last + 1, width)}
    known: Collection[str] = {kind.value for kind in FlowKind}
    for minute, kind, messages in counts:
        bucket = buckets.get(first_minute(minute, width))
        if bucket is not None and kind in known:
            bucket[FlowKind(kind)] += messages
    return buckets
