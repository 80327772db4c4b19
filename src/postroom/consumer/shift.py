"""A shift: the consumer's parts at work, from the first message received to the last acknowledged."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from postroom.consumer.reception import Reception
from postroom.errors import BrokerUnavailable
from postroom.telemetry.events import Lifecycle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroom.consumer.office import Office
    from postroom.consumer.presence import Presence
    from postroom.relay import Relay
    from postroom.sources.port import Source

AT_HAND = 0.2
"""Seconds in which a broker gives what it has."""
JOINING = 100.0
"""Seconds in which a source is let in: a group waits that long for a member that is gone."""


class Shift:
    """Reception, desks, and the relay of what is parked."""

    def __init__(
        self, office: Office, source: Source | None, relay: Relay, presence: Presence, concurrency: int
    ) -> None:
        self._office = office
        self._relay = relay
        self._presence = presence
        self.reception = Reception(office, source, concurrency, max(office.batch, concurrency))

    def stop(self) -> None:
        """Receive no more."""
        self._office.stopping.set()
        self._relay.stop()

    async def work(self) -> None:
        """Receive and handle until the consumer stops."""
        async with self._at_work(), asyncio.TaskGroup() as group:
            group.create_task(self._relay.run())
            saying = group.create_task(self._presence.run(lambda: self.reception.state))
            await self.reception.receive()
            saying.cancel()

    async def work_once(self) -> None:
        """Handle what the broker has at hand, and what is parked and due.

        Raises `BrokerUnavailable`; also where handlers hang, and nothing more can be handled.
        """
        self._office.is_patient = False
        async with self._at_work():
            deadline = time.monotonic() + JOINING
            while not self._office.stopping.is_set():
                if not await self.reception.receive_some(AT_HAND) and not self.reception.is_behind(deadline):
                    break
            await self.reception.wait_until_idle()
            if not self._office.stopping.is_set():
                await self._relay.run_once()
        if self._office.runner.hangs_for_good:
            raise BrokerUnavailable(f"not all is handled: {self._office.runner.stuck or 'all calls hang'}")

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        office = self._office
        office.hook(Lifecycle(self._relay.worker, "started", office.name))
        async with asyncio.TaskGroup() as group:
            desks = [group.create_task(desk.run()) for desk in self.reception.desks]
            group.create_task(self.reception.acknowledge())
            try:
                yield
            finally:
                office.stopping.set()
                await self.reception.wait_until_idle()
                self.reception.close()
                for desk in desks:
                    desk.cancel()
        await self._presence.leave()
        office.hook(Lifecycle(self._relay.worker, "stopped", office.name))
