"""Admission: how much may be claimed now."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroom.delivery.circuit import Circuit
    from postroom.delivery.in_flight import InFlight


class Admission:
    """Keeps what is in flight within its limits, and lets a message that may kill its worker go alone."""

    def __init__(self, in_flight: InFlight, circuit: Circuit, batch: int, stopping: asyncio.Event) -> None:
        self._in_flight = in_flight
        self._circuit = circuit
        self._batch = batch
        self._stopping = stopping
        self._shared = asyncio.Event()
        self._shared.set()

    async def admit(self) -> int:
        """Wait for room. Returns how many messages may be claimed now: none while the destination is down."""
        if self._circuit.pause() > 0:
            return 0
        await self.wait_until_shared()
        await self._in_flight.wait_for_room(self._batch)
        if self._stopping.is_set():
            return 0
        return self._circuit.admit(min(self._batch, self._in_flight.room or 1))

    async def wait_until_shared(self) -> None:
        """Return when no message is in flight alone. Several may wait, and the first to go on may have one again."""
        while not self._shared.is_set():
            await self._shared.wait()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nothing else is in flight in this block, nor taken until what it takes has landed."""
        self._shared.clear()
        try:
            await self._in_flight.wait_until_empty()
            yield
            await self._in_flight.wait_until_empty()
        finally:
            self._shared.set()
