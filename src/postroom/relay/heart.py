"""The heart: renews leases, says that this relay is alive, and shares the lanes with the others."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.relay.database import Outage
from postroom.rules.ordering import LANES

if TYPE_CHECKING:
    from postroom.relay.database import Line
    from postroom.relay.office import Office
    from postroom.store.workers import Workers

BEAT = 2.0


class Heart:
    """Beats every two seconds; leases are renewed when half of them is over."""

    def __init__(self, office: Office, line: Line, workers: Workers) -> None:
        self._office = office
        self._line = line
        self._workers = workers
        self._renewed_at = time.monotonic()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            with suppress(Outage):
                await self.beat()
            await asyncio.sleep(BEAT)

    async def beat(self) -> None:
        """One beat."""
        office = self._office
        alive = await self._line.attempt(
            self._workers.beat(office.options.worker, len(office.flight.lanes), len(office.flight.messages))
        )
        await self._renew()
        await self._share_lanes(alive)

    async def _renew(self) -> None:
        """Extend leases; what is lost is dropped. Where the database does not answer, deadlines pass by themselves."""
        office = self._office
        started = time.monotonic()
        options = office.options
        rows = office.flight.rows if started - self._renewed_at > options.lease / 2 - BEAT else []
        lanes = [one.lane for one in office.flight.lanes.values()]
        if not rows and not lanes:
            return
        renewal = await self._line.attempt(office.deliveries.extend(rows, lanes, options.lease, options.lane_lease))
        renewed = {(one.lane, one.token) for one in rows if one.lease in renewal.leases}
        office.flight.extend(renewed, started + options.lease)
        office.flight.extend(renewal.lanes, started + options.lane_lease)
        self._renewed_at = started if rows else self._renewed_at
        dropped = [one for lane in renewal.lost_lanes for one in office.flight.drop_lane(lane.number)]
        still = [one for one in renewal.lost if office.flight.messages.get(one.position) is one]
        office.lost([*still, *dropped], len(renewal.lost_lanes))

    async def _share_lanes(self, alive: int) -> None:
        """Hold a fair share of the lanes: give up what is too much, take what is free."""
        office = self._office
        share = -(-LANES // max(1, alive))
        staying = [one for one in office.flight.lanes.values() if not one.leaving]
        for one in sorted(staying, key=lambda one: len(one.in_flight))[: max(0, len(staying) - share)]:
            one.leaving = True
        gone = [one for one in office.flight.lanes.values() if one.leaving and not one.in_flight]
        if gone:
            await self._line.attempt(office.deliveries.release([one.lane for one in gone]))
            for one in gone:
                office.flight.drop_lane(one.lane.number)
        missing = share - len(office.flight.lanes)
        if missing > 0:
            started = time.monotonic()
            seconds = office.options.lane_lease
            for lane in await self._line.attempt(office.deliveries.take_lanes(office.options.worker, seconds, missing)):
                office.flight.hold_lane(lane, started + seconds)
                office.wake.set()
