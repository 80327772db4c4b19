"""What went through, over time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from postroom.errors import InvalidSetting
from postroom.rules.flow import FlowKind, first_minute, in_buckets, width_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DAY_MINUTES = 1440
MOST_BUCKETS = 2000


@dataclass(frozen=True, slots=True)
class FlowBucket:
    """What went through in a span of time."""

    start: datetime
    counts: Mapping[FlowKind, int]
    """Every kind is there, with 0 where there was none."""

    @property
    def done(self) -> int:
        """Messages that were sent or handled."""
        return self.counts[FlowKind.SENT] + self.counts[FlowKind.HANDLED]

    @property
    def failed(self) -> int:
        """Attempts that failed: those that are retried, and those that were the last."""
        return sum(self.counts[kind] for kind in (FlowKind.RETRIED, FlowKind.PARKED, FlowKind.DEAD))


@dataclass(frozen=True, slots=True)
class Flow:
    """What went through, in buckets of equal width, oldest first; none is left out."""

    since: datetime
    until: datetime
    """The database's time when it was read: the last bucket may not be over."""
    minutes: int
    """The width of a bucket."""
    queue: str | None
    buckets: tuple[FlowBucket, ...]
    totals: Mapping[FlowKind, int]
    queues: tuple[str, ...]
    """The queues that something went through."""


def chosen_span(since: datetime | timedelta, minutes: int | None, now: datetime) -> tuple[int, int]:
    """The first minute since 1970 that is asked for, and the width of buckets. Raises `InvalidSetting`."""
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise InvalidSetting(f"since = {since} has no time zone: give it one, such as datetime.UTC")
        start = since
    elif since > timedelta(0):
        start = now - since
    else:
        raise InvalidSetting(f"since = {since} is not valid: give a timedelta above 0, or a datetime")
    first, last = minute_of(start), minute_of(now)
    if minutes is not None and not 1 <= minutes <= DAY_MINUTES:
        raise InvalidSetting(f"minutes = {minutes!r} is not valid: give 1 to {DAY_MINUTES}")
    width = minutes or width_for(last - first + 1)
    if (last - first) // width > MOST_BUCKETS:
        raise InvalidSetting(
            f"since = {since} with minutes = {width} gives more than {MOST_BUCKETS} buckets: give a later time, or "
            "wider ones"
        )
    return first_minute(min(first, last), width), width


def flow_of(
    counts: Sequence[tuple[int, str, int]],
    first: int,
    width: int,
    now: datetime,
    queue: str | None,
    queues: Sequence[str],
) -> Flow:
    """What is told, from the counters."""
    buckets = in_buckets(counts, first, minute_of(now), width)
    totals = {kind: sum(bucket[kind] for bucket in buckets.values()) for kind in FlowKind}
    told = tuple(FlowBucket(_moment(minute), bucket) for minute, bucket in buckets.items())
    return Flow(_moment(first), now, width, queue, told, totals, tuple(queues))


def minute_of(moment: datetime) -> int:
    """Minutes since 1970."""
    return int(moment.timestamp() // 60)


def _moment(minute: int) -> datetime:
    return datetime.fromtimestamp(minute * 60, UTC)
