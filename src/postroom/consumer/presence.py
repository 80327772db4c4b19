"""Presence: a consumer says that it is there, and why it receives nothing, where `postroom status` looks."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.store.connections.reconnecting import Outage

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.outbox.workers import Workers

BEAT = 2.0
LEAVING = 5.0


class Presence:
    """Writes a row among those of the relays, for the broker that is received from."""

    def __init__(self, workers: Workers, line: ReconnectingConnection, worker: str) -> None:
        self._workers = workers
        self._line = line
        self._worker = worker

    async def run(self, state: Callable[[], tuple[int, str]]) -> None:
        """Say how many messages are in hand, and why the broker cannot be reached, until cancelled."""
        while True:
            in_flight, down = state()
            with suppress(Outage):
                await self._line.attempt(self._workers.beat(self._worker, 0, in_flight, down))
            await asyncio.sleep(BEAT)

    async def leave(self) -> None:
        """The consumer is gone."""
        with suppress(Outage, TimeoutError):
            async with asyncio.timeout(LEAVING):
                await self._line.attempt(self._workers.leave(self._worker))
