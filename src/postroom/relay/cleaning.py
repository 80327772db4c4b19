"""Removes what is old and done now and then, if the relay is asked to."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.store.admin.retention import clean
from postroom.store.connections.reconnecting import Outage

if TYPE_CHECKING:
    from postroom.settings import Settings
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.sql.names import Names
    from postroom.telemetry.events import Hook

TIME_LIMIT = 3600.0
"""Seconds for a whole cleanup, which is many small transactions."""


class Cleaning:
    """Cleans up on its own connection, at the start and then at intervals. Several relays may do it at once."""

    def __init__(
        self, connection: ReconnectingConnection, names: Names, settings: Settings, every: float, hook: Hook
    ) -> None:
        self._connection = connection
        self._names = names
        self._settings = settings
        self._every = every
        self._hook = hook

    async def run(self) -> None:
        """Clean up until cancelled. What an outage interrupts is done the next time."""
        days, inbox_days = self._settings.retention_days, self._settings.inbox_retention_days
        while True:
            with suppress(Outage):
                self._hook(await self._connection.attempt(clean(self._names, days=days, inbox_days=inbox_days)))
            await asyncio.sleep(self._every)
