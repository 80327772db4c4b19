"""When messages of a topic that takes none are tried again: a few soon and in turn, the many late and spread."""

from collections.abc import Sequence

SCOUTS = 4
"""Messages of a topic that are due at its next probes: several, so that it is not always the same that tries."""
RATE = 20.0
"""The most messages a second that are looked at again beyond these, by one relay: what waits may be millions."""
SOONEST = 60.0
"""Seconds after which the others are looked at again at the earliest. When a probe gets through, all are freed."""
LONGEST = 30 * 24 * 3600.0


def scouting(scheduled: Sequence[float], count: int, probe_at: float, pause: float, *, tried: bool) -> list[float]:
    """Return when those of `count` messages are due that may try the topic next, beside those `scheduled`.

    `probe_at` is the moment of the next probe, `pause` the seconds between two. One that has just `tried` in vain
    stands back behind others. There are at most `SCOUTS` in all.
    """
    places = max(0, min(count, SCOUTS - len(scheduled)))
    return [probe_at + pause if tried and scheduled else probe_at] * places


def queueing(tail: float, count: int, now: float) -> float:
    """Return when `count` further messages are due: behind all that wait until `tail`, so that few come at a time."""
    return min(max(tail, now + SOONEST) + count / RATE, now + LONGEST)
