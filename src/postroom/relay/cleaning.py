"""Removes what is old and done now and then, if the relay is asked to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.store.admin.retention import Cleanup, Kept
from postroom.store.connections.reconnecting import Outage
from postroom.telemetry.events import Cleaned

if TYPE_CHECKING:
    from postroom.settings import Settings
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.sql.names import Names
    from postroom.telemetry.events import Hook

TIME_LIMIT = 600.0
"""Seconds for a batch: a tenth of a second as a rule, but a partition is emptied in one."""


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
        while True:
            await self._clean()
            await asyncio.sleep(self._every)

    async def _clean(self) -> None:
        """One cleanup, with its pauses. A table that cannot be cleaned does not keep the others from it."""
        cleanup = Cleanup(self._names, kept(self._settings), load=self._settings.cleanup_load)
        failed = 0
        while not cleanup.done:
            try:
                pause = await self._connection.attempt(cleanup.batch())
            except Outage:
                cleanup.skip()
                failed += 1
                continue
            await asyncio.sleep(pause)
        if not failed or cleanup.cleaned != NOTHING:
            self._hook(cleanup.cleaned)


NOTHING = Cleaned(0, 0, 0)


def kept(settings: Settings) -> Kept:
    """For how long the settings keep things."""
    return Kept(settings.retention_days, settings.inbox_retention_days, settings.audit_retention_days)
