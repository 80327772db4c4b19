"""Counts the backlog now and then, if a hook wants to know."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.store.connections.reconnecting import Outage
from postroom.store.stream.debezium import Debezium
from postroom.telemetry.events import Counted

if TYPE_CHECKING:
    from postroom.store.admin.backlog import BacklogReader
    from postroom.store.admin.sagas import Sagas
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.telemetry.events import Hook

EVERY = 5.0
"""Seconds between two counts, at least."""
SHARE = 50
"""A count that takes long is followed by a pause this many times as long."""


class BacklogCounter:
    """Counts on its own connection, and takes only a small share of the database's time."""

    def __init__(
        self, connection: ReconnectingConnection, reader: BacklogReader, hook: Hook, sagas: Sagas | None = None
    ) -> None:
        """`sagas`: count these as well, by name and state."""
        self._connection = connection
        self._reader = reader
        self._hook = hook
        self._sagas = sagas

    async def run(self) -> None:
        """Count until cancelled. Reports nothing while the database is away."""
        while True:
            started = time.monotonic()
            with suppress(Outage):
                backlog = await self._connection.attempt(self._reader.backlog())
                self._hook(Counted(backlog, await self._by_state(), await self._held_for_debezium()))
            await asyncio.sleep(max(EVERY, SHARE * (time.monotonic() - started)))

    async def _held_for_debezium(self) -> int | None:
        if self._reader.names.dialect != "postgresql":
            return None
        return await self._connection.attempt(Debezium(self._reader.names).held_bytes())

    async def _by_state(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        if self._sagas is not None:
            for one in await self._connection.attempt(self._sagas.open_counts()):
                found.setdefault(one.name, {})[one.state.value] = one.count
        return found
