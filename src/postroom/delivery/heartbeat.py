"""The heartbeat: renews the leases of all queues, and says in each that this worker is alive."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.store.connections.reconnecting import Outage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.lease_keeper import LeaseKeeper

LONGEST_BEAT = 20.0
"""Seconds, including the wait for the connection, which all queues share: each reports in time that it cannot beat."""
HANDING_OVER = 0.2
"""Seconds between two looks at lanes that change hands: until the next beat, nobody would send what is in them."""
LOOKS = 50
"""How often in a second all queues together look at most: they share a connection, which beats must not wait for."""


class Heartbeat:
    """Beats for each queue at the same interval. A queue whose beat takes long does not delay those of the others."""

    def __init__(self, keepers: Sequence[LeaseKeeper], interval: float) -> None:
        self._keepers = [(keeper, asyncio.Lock()) for keeper in keepers]
        self._interval = interval
        self._pause = max(HANDING_OVER, len(keepers) / LOOKS)

    async def run(self) -> None:
        """Beat until cancelled."""
        async with asyncio.TaskGroup() as group:
            for keeper, beating in self._keepers:
                group.create_task(self._beat_for(keeper, beating))

    async def _beat_for(self, keeper: LeaseKeeper, beating: asyncio.Lock) -> None:
        while True:
            alive: int | None = None
            with suppress(Outage, TimeoutError):
                async with beating, asyncio.timeout(LONGEST_BEAT):
                    alive = await keeper.beat()
            keeper.report(alive)
            next_beat = time.monotonic() + self._interval
            if alive is not None:
                await self._hand_over(keeper, beating, next_beat - self._pause)
            await asyncio.sleep(max(0.0, next_beat - time.monotonic()))

    async def _hand_over(self, keeper: LeaseKeeper, beating: asyncio.Lock, until: float) -> None:
        """Release and take lanes that change hands, between two beats."""
        with suppress(Outage, TimeoutError):
            while time.monotonic() < until and keeper.lanes_change_hands:
                await asyncio.sleep(self._pause)
                async with beating, asyncio.timeout(LONGEST_BEAT):
                    await keeper.share_lanes()

    async def finish(self) -> None:
        """Return when the beats under way are done; no other begins. One that was broken off could have taken lanes."""
        for _, beating in self._keepers:
            await beating.acquire()
