"""The census: has the backlog counted now and then, where somebody listens."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.store.connections.reconnecting import Outage
from postroom.telemetry.events import Counted

if TYPE_CHECKING:
    from postroom.store.admin.backlog import BacklogCount
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.telemetry.events import Hook

EVERY = 5.0
"""Seconds between two counts at the least."""
SHARE = 50
"""A count that takes long is followed by a pause that is so many times as long."""


class Counting:
    """Counts on a line of its own, and takes no more than a small share of the database's time."""

    def __init__(self, line: ReconnectingConnection, census: BacklogCount, hook: Hook) -> None:
        self._line = line
        self._census = census
        self._hook = hook

    async def run(self) -> None:
        """Count until cancelled. While the database is away, nothing is told."""
        while True:
            started = time.monotonic()
            with suppress(Outage):
                self._hook(Counted(await self._line.attempt(self._census.backlog())))
            await asyncio.sleep(max(EVERY, SHARE * (time.monotonic() - started)))
