"""The heart: renews leases, says that this relay is alive, and shares the lanes with the others."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom.rules.ordering import LANES, NO_LANE
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.leases import new_token
from postroom.telemetry.events import Beat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.queue_state import Office
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.outbox.leases import Claimed
    from postroom.store.outbox.workers import Workers

LONGEST_BEAT = 20.0
"""Seconds, with the wait for its line: of many hearts that share one, each tells in time that it cannot beat."""


class Heart:
    """Beats every two seconds or sooner; leases on messages are renewed when half of them is over."""

    def __init__(self, office: Office, line: ReconnectingConnection, workers: Workers) -> None:
        self._office = office
        self._line = line
        self._workers = workers
        self._renewed_at = time.monotonic()
        self._beating = asyncio.Lock()
        self._unknown: list[int] = []
        """Tokens of lanes that may have been taken, by a statement whose answer never came."""

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            alive: int | None = None
            with suppress(Outage, TimeoutError):
                async with self._beating, asyncio.timeout(LONGEST_BEAT):
                    alive = await self.beat()
            self._tell(alive)
            await asyncio.sleep(self._office.options.beat)

    async def beat(self) -> int:
        """One beat; returns how many relays are alive. Raises `Outage`: then deadlines pass by themselves."""
        office = self._office
        await self._renew()
        alive = await self._line.attempt(
            self._workers.beat(
                office.options.worker,
                len(office.flight.lanes),
                len(office.flight.messages),
                office.circuit.down or "",
                office.options.silent,
            )
        )
        await self._share_lanes(alive)
        office.flight.forget_landed()
        return alive

    def _tell(self, alive: int | None) -> None:
        office = self._office
        office.hook(
            Beat(
                worker=office.options.worker,
                queue=office.deliveries.queue,
                reached=alive is not None,
                alive=alive or 0,
                in_flight=len(office.flight.messages),
                broker=office.broker.name,
                broker_reachable=office.circuit.down is None,
                targets_down=len(office.targets.down),
            )
        )

    async def rest(self) -> None:
        """Return when the beat that is under way is done; no other begins. One broken off could have taken lanes."""
        await self._beating.acquire()

    async def leave(self, unknown: Sequence[int]) -> None:
        """Free the lanes, and what was claimed under these tokens, for others; take this relay's name off the list."""
        self._unknown += unknown
        await self._forget_unknown()
        lanes = [one.lane for one in self._office.flight.lanes.values()]
        await self._line.attempt(self._office.deliveries.release(lanes))
        await self._line.attempt(self._workers.leave(self._office.options.worker))

    async def _renew(self) -> None:
        """Extend leases; what is lost is dropped."""
        office = self._office
        options = office.options
        started = time.monotonic()
        rows = office.flight.rows if started - self._renewed_at > options.lease / 2 - options.beat else []
        lanes = [one.lane for one in office.flight.lanes.values()]
        if not rows and not lanes:
            return
        renewal = await self._line.attempt(office.deliveries.renew(rows, lanes, options.lease, options.lane_lease))
        # What somebody works on at this moment was passed over, and is neither renewed nor lost: it comes next time.
        passed_over = {one.token for one in rows if one.lease not in renewal.leases and self._in_flight(one)}
        renewed = {(NO_LANE, one.token) for one in rows if one.token not in passed_over}
        office.flight.extend(renewed, started + options.lease)
        office.flight.extend(renewal.lanes, started + options.lane_lease)
        if rows and not passed_over:
            self._renewed_at = started
        dropped = []
        for lane in renewal.lost_lanes:
            if self._holds(lane.number, lane.token):
                dropped += office.flight.drop_lane(lane.number)
        office.lost([*(one for one in renewal.lost if self._in_flight(one)), *dropped], len(renewal.lost_lanes))

    def _in_flight(self, one: Claimed) -> bool:
        return self._office.flight.messages.get(one.position) is one

    def _holds(self, number: int, token: int) -> bool:
        held = self._office.flight.lanes.get(number)
        return held is not None and held.lane.token == token

    async def _share_lanes(self, alive: int) -> None:
        """Hold a fair share of the lanes: give up what is too much, take what is free."""
        office = self._office
        await self._forget_unknown()
        share = -(-LANES // max(1, alive))
        staying = [one for one in office.flight.lanes.values() if not one.leaving]
        busy = office.flight.busy_lanes()
        too_many = max(0, len(staying) - share)
        for one in sorted(staying, key=lambda one: one.lane.number in busy)[:too_many]:
            one.leaving = True
        gone = [one for one in office.flight.lanes.values() if one.leaving and one.lane.number not in busy]
        if gone:
            for one in gone:
                office.flight.drop_lane(one.lane.number)
            await self._line.attempt(office.deliveries.release([one.lane for one in gone]))
        missing = share - len(office.flight.lanes)
        if missing > 0:
            await self._take_lanes(missing)

    async def _forget_unknown(self) -> None:
        for token in list(self._unknown):
            await self._line.attempt(self._office.deliveries.forget(token))
            self._unknown.remove(token)

    async def _take_lanes(self, missing: int) -> None:
        office = self._office
        started = time.monotonic()
        seconds = office.options.lane_lease
        token = new_token()
        self._unknown.append(token)
        taken = await self._line.attempt(
            office.deliveries.take_lanes(office.options.worker, seconds, missing, token=token)
        )
        self._unknown.remove(token)
        for lane in taken:
            office.flight.hold_lane(lane, started + seconds)
        if taken:
            office.wake()
