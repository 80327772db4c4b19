"""The lease keeper of a queue: renews its leases, and holds a fair share of its lanes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.rules.ordering import fair_share, lanes_to_release, least_share
from postroom.store.outbox.leases import new_token
from postroom.telemetry.events import Beat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.in_flight import InFlight
    from postroom.delivery.pending import PendingSettlements
    from postroom.delivery.queue import EngineOptions, Queue
    from postroom.delivery.signals import Signals
    from postroom.delivery.verdicts import Health
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.queue_store import QueueStore
    from postroom.store.outbox.workers import Workers


@dataclass(slots=True, eq=False, kw_only=True)
class LeaseKeeper:
    """Keeps one queue's leases. Leases of lanes are renewed at each beat, those of messages when half is over."""

    queue: Queue
    options: EngineOptions
    store: QueueStore
    workers: Workers
    connection: Connection
    in_flight: InFlight
    health: Health
    pending: PendingSettlements
    signals: Signals
    _renewed_at: float = field(default_factory=time.monotonic, init=False)
    _unresolved: list[int] = field(default_factory=list, init=False)
    """Tokens of lanes that may have been taken, by a statement whose answer never came."""
    _alive: int = field(default=1, init=False)
    """How many workers were alive at the last beat."""
    _least: int = field(default=0, init=False)
    """How many lanes there are for this one at least, once the others have released theirs."""

    async def beat(self) -> int:
        """Renew leases, say that this worker is alive, and share the lanes; returns how many workers are alive.

        Raises `Outage`: then deadlines pass by themselves.
        """
        await self._renew()
        alive = await self.connection.attempt(
            self.workers.beat(
                self.options.worker,
                len(self.in_flight.lanes),
                len(self.in_flight),
                self.health.circuit.down or "",
                self.options.silent,
            )
        )
        self._alive = alive
        if self.queue.keyed:
            await self.share_lanes()
        self.in_flight.forget_deadlines()
        return alive

    @property
    def lanes_change_hands(self) -> bool:
        """Whether lanes will soon be released, or soon be free to take: before the next beat."""
        lanes = self.in_flight.lanes
        return len(lanes) < self._least or any(one.leaving for one in lanes)

    async def share_lanes(self) -> None:
        """Hold a fair share of the lanes, as far as that is possible now. Raises `Outage`."""
        resting = await self.connection.attempt(self.store.lanes.rest())
        self._least = 0 if resting else least_share(self._alive)
        await self._share_lanes(0 if resting else fair_share(self._alive))

    def report(self, alive: int | None) -> None:
        """Emit the event of a beat; None where the database did not answer."""
        self.queue.hook(
            Beat(
                worker=self.options.worker,
                queue=self.queue.name,
                reached=alive is not None,
                alive=alive or 0,
                in_flight=len(self.in_flight),
                broker=self.queue.destination.name,
                broker_reachable=self.health.circuit.down is None,
                targets_down=len(self.health.targets.down),
            )
        )

    async def release(self, unresolved: Sequence[int]) -> None:
        """Release the lanes and what was claimed under these tokens, and sign this worker off. Raises `Outage`."""
        self._unresolved += unresolved
        await self._release_unresolved()
        await self.connection.attempt(self.store.lanes.release([one.lane for one in self.in_flight.lanes]))
        await self.connection.attempt(self.workers.leave(self.options.worker))

    async def _renew(self) -> None:
        """Extend leases; what was lost is dropped."""
        options = self.options
        started = time.monotonic()
        is_time = started - self._renewed_at > options.lease / 2 - options.heartbeat
        rows = self.in_flight.rows if is_time else []
        lanes = [one.lane for one in self.in_flight.lanes]
        if not rows and not lanes:
            return
        renew = self.store.renewals.renew(rows, lanes, options.lease, options.lane_lease)
        renewal = await self.connection.attempt(renew)
        # What somebody works on at this moment was passed over, and is neither renewed nor lost: it comes next time,
        # as does what has had another token meanwhile.
        positions, known = {one.position for one in rows}, renewal.leases | {one.lease for one in renewal.lost}
        passed_over = {one.token for one in self.in_flight.rows if one.position in positions and one.lease not in known}
        self.in_flight.extend({one.token for one in rows} - passed_over, started + options.lease)
        self.in_flight.lanes.extend(renewal.lanes, started + options.lane_lease)
        if rows and not passed_over:
            self._renewed_at = started
        lost = [one for one in renewal.lost if one in self.in_flight]
        for lane in renewal.lost_lanes:
            if self.in_flight.lanes.has(lane):
                self.in_flight.lanes.drop(lane.number)
                lost += self.in_flight.of_lane(lane)
        # A destination that has one may have just settled it, and reports what it found.
        lost = [one for one in lost if not self.in_flight.is_at_destination(one)]
        self.pending.lose(lost, len(renewal.lost_lanes))

    async def _share_lanes(self, share: int) -> None:
        """Hold a share of the lanes: release what is too much, take what is free."""
        await self._release_unresolved()
        staying = {one.lane.number: one for one in self.in_flight.lanes if not one.leaving}
        busy = self.in_flight.busy_lanes()
        for number in lanes_to_release(staying, busy, share):
            staying[number].leaving = True
        gone = [one.lane for one in self.in_flight.lanes if one.leaving and one.lane.number not in busy]
        if gone:
            for lane in gone:
                self.in_flight.lanes.drop(lane.number)
            await self.connection.attempt(self.store.lanes.release(gone))
        missing = share - len(self.in_flight.lanes)
        if missing > 0:
            await self._take_lanes(missing)

    async def _release_unresolved(self) -> None:
        for token in list(self._unresolved):
            await self.connection.attempt(self.store.recovery.forget(token))
            self._unresolved.remove(token)

    async def _take_lanes(self, missing: int) -> None:
        started = time.monotonic()
        seconds = self.options.lane_lease
        token = new_token()
        self._unresolved.append(token)
        taken = await self.connection.attempt(self.store.lanes.take(self.options.worker, seconds, missing, token=token))
        self._unresolved.remove(token)
        for lane in taken:
            self.in_flight.lanes.hold(lane, started + seconds)
        if taken:
            self.signals.wake()
