"""Which partitions of the outbox to add: ranges of positions, each about as many as a day brings."""

from typing import NamedTuple

LEAST, MOST = 100_000, 50_000_000
"""Positions in a partition."""
AHEAD = 2
"""Days, or partitions, that are there before they are needed."""


class Range(NamedTuple):
    """Positions from `start` up to, but not including, `end`."""

    start: int
    end: int


def to_add(position: int, end: int, per_day: int) -> list[Range]:
    """The partitions to add, where the next message gets this position, and those that exist cover all up to `end`.

    None while there is room for `AHEAD` days. If messages have come past the end, the next partition begins some way
    ahead of them: what comes before is in the default partition, and cannot be moved out of it without a lock.
    """
    size = min(MOST, max(LEAST, per_day))
    start = end if position < end else position + size // 10
    added: list[Range] = []
    while start - position < AHEAD * size:
        added.append(Range(start, start + size))
        start += size
    return added
