"""Freeing: make due what waits for a topic, once the topic takes messages again, whichever relay found that out."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.held_targets import BEGINNING, MOST_TARGETS
from postroom.store.sql.operations import chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.signals import Signals
    from postroom.delivery.targets import Targets
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.held_targets import HeldTargets
    from postroom.store.sql.operations import Place

GLANCE = 0.25
"""Seconds between two checks whether an attempt has found a topic that takes messages again."""
EVERY = 10.0
"""Seconds between two looks at what waits in the database, at least."""
SHARE = 50
"""A look that takes long, because much waits, is followed by a pause this many times as long."""

SOON, BUSY_SHARE = 1.0, 0.25
"""If more topics wait than one look returns, and some were freed, the next look comes after this many seconds; looking
takes no more than this share of the time."""
NEVER = float("inf")


class Freeing:
    """Works beside the attempts, batch by batch, so that a million messages hold up nothing."""

    def __init__(self, connection: Connection, holding: HeldTargets, targets: Targets, signals: Signals) -> None:
        self._connection = connection
        self._holding = holding
        self._targets = targets
        self._signals = signals
        self._look_at = 0.0
        self._look_for_more_at = NEVER

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            with suppress(Outage):
                await self.free()
                await self.look()
            await asyncio.sleep(GLANCE)

    async def free(self) -> int:
        """Make due what waits for topics that take messages again; returns how many messages. Raises `Outage`."""
        freed, to_free = 0, self._targets.to_free
        for some_topics in chunks(list(to_free)):
            begin: Place | None = BEGINNING
            topics: Sequence[str] = some_topics
            while begin is not None and (topics := [one for one in topics if one in to_free]):  # it may refuse again
                some = await self._connection.attempt(self._holding.free(topics, begin))
                freed, begin = freed + some.messages, some.next
                if some.messages:
                    self._targets.freed += some.messages
                    self._signals.wake()
            for topic in topics:
                to_free.pop(topic, None)
        if freed:
            self._look_at = min(self._look_at, self._look_for_more_at)
        return freed

    async def look(self, *, everything: bool = False) -> None:
        """Learn what waits, also since before this worker started, and make some of it due. Raises `Outage`."""
        started = time.monotonic()
        if started < self._look_at and not everything:
            return
        found = await self._connection.attempt(self._holding.targets_of_queue())
        known = {one.topic: one.reason for one in found}
        unprobed = self._targets.unprobed()
        to_probe = [*self._targets.learn(known), *(topic for topic in unprobed if topic in known)]
        for topics in chunks(to_probe):
            await self._connection.attempt(self._holding.free_one_of_each(topics))
        there_are_more = len(found) == MOST_TARGETS
        for topic in unprobed:
            if topic not in known and not there_are_more:
                self._targets.forget(topic)
        seconds = time.monotonic() - started
        self._look_at = started + max(EVERY, SHARE * seconds)
        self._look_for_more_at = started + max(SOON, seconds / BUSY_SHARE) if there_are_more else NEVER
