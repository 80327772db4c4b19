"""Writes what went through the queues of a process into the database, every few seconds."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.errors import PostroomError

if TYPE_CHECKING:
    from postroom.rules.flow import FlowCounts
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.flow import Flow

EVERY = 10.0
"""Seconds between two writes, and so the most that is lost if the process is killed."""
LEAVING = 2.0


class FlowWriter:
    """One small statement now and then, on the connection of the heartbeats. One that fails is repeated later."""

    def __init__(self, counts: FlowCounts, flow: Flow, connection: Connection, every: float = EVERY) -> None:
        self._counts = counts
        self._flow = flow
        self._connection = connection
        self._every = every
        self._run = secrets.randbits(62)

    async def run(self) -> None:
        """Write until cancelled, and then what is left."""
        try:
            while True:
                await asyncio.sleep(self._every)
                await self._write()
        finally:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVING):
                    await self._write()

    async def _write(self) -> None:
        if self._counts.has_unwritten:
            with suppress(PostroomError):  # an outage, or a privilege that is missing: counters stop no delivery
                await self._connection.attempt(self._flow.write(self._counts, self._run))
