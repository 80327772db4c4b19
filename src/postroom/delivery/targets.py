"""Targets: a circuit breaker for each topic that takes no messages. Its messages wait, others go on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.delivery.circuit import FIRST_PAUSE
from postroom.rules.target_probes import probe_times, recheck_time
from postroom.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

LONGEST_PAUSE = 10.0
"""Seconds between two probes at most: short, because one relay does not know what another has found out."""
CROWD, CROWD_PAUSE = 100, 1.0
"""When this many messages of a topic come, another relay may have freed them: probe it after this many seconds."""
MOST = 1000
"""Topics that are remembered to take no messages. Messages of any others are retried one by one when they are due."""


class Target:
    """One topic that takes no messages. Now and then one of them probes it."""

    __slots__ = ("backoff", "probe_at", "probe_until", "probed_at", "probes", "reason", "turned_away")

    def __init__(self, reason: str, probe_at: float) -> None:
        self.reason = reason
        self.backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.probe_at = probe_at
        self.probed_at = probe_at - FIRST_PAUSE
        self.turned_away = 0
        """Messages that came since the last probe and were not sent."""
        self.probe_until = 0.0
        """A message is probing it; after this moment it counts as gone."""
        self.probes: list[float] = []
        """When messages come due that are to probe it."""


class Targets:
    """What is known of topics on one event loop. Only those that take no messages are remembered."""

    def __init__(
        self, changed: Callable[[str, str | None], None], patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._changed = changed
        self._patience = patience
        self._clock = clock
        self._tail = 0.0
        self.down: dict[str, Target] = {}
        self.to_free: dict[str, None] = {}
        """Topics that take messages again, while others of theirs still wait in the database."""
        self.freed = 0
        """How many messages were made due here, because their topics take messages again."""

    def __bool__(self) -> bool:
        return bool(self.down)

    def admits(self, topic: str) -> bool:
        """Whether a message of the topic may be sent now. If the topic takes none, this message is the probe."""
        target = self.down.get(topic)
        if target is None:
            return True
        now = self._clock()
        crowd = target.turned_away >= CROWD and now >= target.probed_at + CROWD_PAUSE
        if now < target.probe_until or (now < target.probe_at and not crowd):
            return False
        target.probe_until = now + self._patience
        target.probed_at, target.turned_away = now, 0
        target.probe_at = now + target.backoff.pause
        return True

    def failed(self, topic: str, reason: str) -> None:
        """The topic takes no messages."""
        now = self._clock()
        target = self.down.get(topic)
        if target is None:
            if len(self.down) < MOST:
                self.down[topic] = Target(reason, now + FIRST_PAUSE)
                self.to_free.pop(topic, None)
                self._changed(topic, reason)
            return
        if now < target.probe_until:
            target.backoff.next()
            target.probe_at = now + target.backoff.pause
        target.probe_until = 0.0
        target.reason = reason

    def worked(self, topics: Iterable[str]) -> None:
        """These topics took a message: what waits for one of them is to be freed."""
        for topic in topics:
            if self.down.pop(topic, None) is not None:
                self.to_free[topic] = None
                self._changed(topic, None)

    def nothing_to_probe(self, topic: str) -> None:
        """The message that was to probe the topic was not sent."""
        if topic in self.down:
            self.down[topic].probe_until = 0.0

    def delays(self, topic: str, count: int, *, tried: bool) -> list[float]:
        """In how many seconds each of `count` messages of the topic is due again; whether they were just tried."""
        now = self._clock()
        target = self.down.get(topic)
        probes: list[float] = []
        if target is not None:
            target.probes = [due for due in target.probes if due > now]
            target.turned_away += 0 if tried else count
            probes = probe_times(target.probes, count, max(target.probe_at, now), target.backoff.pause, tried=tried)
            target.probes += probes
        rest = count - len(probes)
        if rest:
            self._tail = recheck_time(self._tail, rest, now)
        return [*(due - now for due in probes), *[self._tail - now] * rest]

    def learn(self, found: Mapping[str, str]) -> list[str]:
        """Messages of these topics wait in the database, for reasons that this relay or another was given.

        Returns the topics that were not known here. They may take messages by now: the next message probes them.
        """
        new = [topic for topic in found if topic not in self.down and topic not in self.to_free]
        del new[max(0, MOST - len(self.down)) :]
        for topic in new:
            self.down[topic] = Target(found[topic], self._clock())
            self._changed(topic, found[topic])
        return new

    def unprobed(self) -> list[str]:
        """Topics that could be probed, but no message that was to do so has come for long."""
        now = self._clock()
        return [
            topic
            for topic, target in self.down.items()
            if now >= target.probe_until and now >= max([target.probe_at, *target.probes]) + FIRST_PAUSE
        ]

    def forget(self, topic: str) -> None:
        """Nothing waits for the topic any more."""
        if self.down.pop(topic, None) is not None:
            self._changed(topic, None)
