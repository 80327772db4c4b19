"""Targets: a circuit for each topic that takes no messages, inside the broker's. Its messages wait; others go on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.delivery.circuit import FIRST_PAUSE
from postroom.rules.target_probes import probe_times, recheck_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

LONGEST_PAUSE = 10.0
"""Seconds between two probes at the most: short, because one relay does not know what another has found out."""
CROWD, CROWD_PAUSE = 100, 1.0
"""When so many messages of a topic come, another relay may have freed them: it is tried after so many seconds."""
MOST = 1000
"""Topics that are known to take no messages; what more there are is tried again when it comes due, one by one."""


class Target:
    """One topic that takes no messages. Now and then one of them tries it."""

    __slots__ = ("pause", "probe_at", "probe_until", "probed_at", "reason", "scouts", "turned_away")

    def __init__(self, reason: str, probe_at: float) -> None:
        self.reason = reason
        self.pause = FIRST_PAUSE
        self.probe_at = probe_at
        self.probed_at = probe_at - FIRST_PAUSE
        self.turned_away = 0
        """Messages that came since the last probe, and could not try."""
        self.probe_until = 0.0
        """A message is trying it, or is taken to have gone another way after this moment."""
        self.scouts: list[float] = []
        """When messages come due that are to try it."""


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

    def __bool__(self) -> bool:
        return bool(self.down)

    def admits(self, topic: str) -> bool:
        """Whether a message of the topic may be sent now; where the topic takes none, it is the one that tries."""
        target = self.down.get(topic)
        if target is None:
            return True
        now = self._clock()
        crowd = target.turned_away >= CROWD and now >= target.probed_at + CROWD_PAUSE
        if now < target.probe_until or (now < target.probe_at and not crowd):
            return False
        target.probe_until = now + self._patience
        target.probed_at, target.turned_away = now, 0
        target.probe_at = now + target.pause
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
            target.pause = min(target.pause * 2, LONGEST_PAUSE)
            target.probe_at = now + target.pause
        target.probe_until = 0.0
        target.reason = reason

    def worked(self, topics: Iterable[str]) -> None:
        """These topics took a message. What waits for one that did not is to be freed."""
        for topic in topics:
            if self.down.pop(topic, None) is not None:
                self.to_free[topic] = None
                self._changed(topic, None)

    def nothing_to_probe(self, topic: str) -> None:
        """The message that was to try the topic went another way."""
        if topic in self.down:
            self.down[topic].probe_until = 0.0

    def delays(self, topic: str, count: int, *, tried: bool) -> list[float]:
        """In how many seconds so many messages of the topic are due again, which have just tried it or have not."""
        now = self._clock()
        target = self.down.get(topic)
        scouts: list[float] = []
        if target is not None:
            target.scouts = [due for due in target.scouts if due > now]
            target.turned_away += 0 if tried else count
            scouts = probe_times(target.scouts, count, max(target.probe_at, now), target.pause, tried=tried)
            target.scouts += scouts
        rest = count - len(scouts)
        if rest:
            self._tail = recheck_time(self._tail, rest, now)
        return [*(due - now for due in scouts), *[self._tail - now] * rest]

    def learn(self, found: Mapping[str, str]) -> list[str]:
        """Messages of these topics wait in the database, for reasons that this relay, or another, was given.

        Returns those that were not known here. They may take messages by now: the next message tries them.
        """
        new = [topic for topic in found if topic not in self.down and topic not in self.to_free]
        del new[max(0, MOST - len(self.down)) :]
        for topic in new:
            self.down[topic] = Target(found[topic], self._clock())
            self._changed(topic, found[topic])
        return new

    def unprobed(self) -> list[str]:
        """Topics that could be tried, while no message that was to do so has come for long."""
        now = self._clock()
        return [
            topic
            for topic, target in self.down.items()
            if now >= target.probe_until and now >= max([target.probe_at, *target.scouts]) + FIRST_PAUSE
        ]

    def forget(self, topic: str) -> None:
        """Nothing waits for the topic any more."""
        if self.down.pop(topic, None) is not None:
            self._changed(topic, None)
