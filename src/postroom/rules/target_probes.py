"""When to retry the messages of a topic that is unavailable: a few soon, as probes; the rest late and spread out."""

from collections.abc import Sequence

PROBES = 4
"""Messages per topic that act as probes: several, so that it is not always the same one that tries."""
RATE = 20.0
"""The most other messages that one relay looks at again per second: millions may be waiting."""
SOONEST = 60.0
"""Seconds before the others are looked at again. When a probe gets through, all of them are released at once."""
LONGEST = 30 * 24 * 3600.0


def probe_times(scheduled: Sequence[float], count: int, probe_at: float, pause: float, *, tried: bool) -> list[float]:
    """Return when up to `count` messages are due that may probe the topic, in addition to those `scheduled`.

    `probe_at` is the time of the next probe, `pause` the seconds between two probes. A message that has just `tried`
    and failed goes behind the others. There are at most `PROBES` in total.
    """
    places = max(0, min(count, PROBES - len(scheduled)))
    return [probe_at + pause if tried and scheduled else probe_at] * places


def recheck_time(tail: float, count: int, now: float) -> float:
    """Return when `count` more messages are due: after all that wait until `tail`, so that few come at a time."""
    return min(max(tail, now + SOONEST) + count / RATE, now + LONGEST)
