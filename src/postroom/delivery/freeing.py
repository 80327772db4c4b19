"""Freeing: what waits for a topic goes on when the topic takes messages again, whichever relay has found that out."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.holding import BEGINNING, MOST_TARGETS
from postroom.store.sql.operations import chunks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.queue_state import Office
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.outbox.holding import Holding
    from postroom.store.sql.operations import Place

GLANCE = 0.25
"""Seconds between two looks at what couriers have found out."""
EVERY = 10.0
"""Seconds between two looks at what waits in the database, at the least."""
SHARE = 50
"""A look that takes long, because much waits, is followed by a pause that is so many times as long."""

SOON, BUSY_SHARE = 1.0, 0.25
"""Where more topics wait than a look tells, and some are freed, the next are looked at after so many seconds; and
looking takes no more than this share of the time."""
NEVER = float("inf")


class Freeing:
    """Works beside the couriers, batch by batch, so that a million messages hold up nothing."""

    def __init__(self, office: Office, line: ReconnectingConnection, holding: Holding) -> None:
        self._office = office
        self._line = line
        self._holding = holding
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
        """Make due what waits for topics that take messages again; returns how many it were. Raises `Outage`."""
        office, freed = self._office, 0
        to_free = office.targets.to_free
        for some_topics in chunks(list(to_free)):
            begin: Place | None = BEGINNING
            topics: Sequence[str] = some_topics
            while begin is not None and (topics := [one for one in topics if one in to_free]):  # it may refuse again
                some = await self._line.attempt(self._holding.free(topics, begin))
                freed, begin = freed + some.messages, some.next
                if some.messages:
                    office.freed += some.messages
                    office.wake()
            for topic in topics:
                to_free.pop(topic, None)
        if freed:
            self._look_at = min(self._look_at, self._look_for_more_at)
        return freed

    async def look(self, *, everything: bool = False) -> None:
        """Learn what waits, also since before this relay was started, and have some of it try. Raises `Outage`."""
        started = time.monotonic()
        if started < self._look_at and not everything:
            return
        targets = self._office.targets
        found = await self._line.attempt(self._holding.targets_of_queue())
        known = {one.topic: one.reason for one in found}
        unprobed = targets.unprobed()
        to_try = [*targets.learn(known), *(topic for topic in unprobed if topic in known)]
        for topics in chunks(to_try):
            await self._line.attempt(self._holding.free_one_of_each(topics))
        there_are_more = len(found) == MOST_TARGETS
        for topic in unprobed:
            if topic not in known and not there_are_more:
                targets.forget(topic)
        seconds = time.monotonic() - started
        self._look_at = started + max(EVERY, SHARE * seconds)
        self._look_for_more_at = started + max(SOON, seconds / BUSY_SHARE) if there_are_more else NEVER
