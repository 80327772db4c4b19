"""The lease keeper of a queue: renews its leases, and holds a fair share of its lanes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.rules.ordering import fair_share, lanes_to_release
from postroom.store.outbox.leases import new_token
from postroom.telemetry.events import Beat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.in_flight import InFlight
    from postroom.delivery.pending import PendingSettlements
    from postroom.delivery.queue import EngineOptions, Queue
    from postroom.delivery.signals import Signals
    from postroom.delivery.verdicts import Health
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.outbox.queue_store import QueueStore
    from postroom.store.outbox.workers import Workers


class LeaseKeeper:
    """Keeps one queue's leases. Leases of lanes are renewed at each beat, those of messages when half is over."""

    def __init__(  # noqa: PLR0913 - what is leased, and who learns what was lost
        self,
        *,
        queue: Queue,
        options: EngineOptions,
        store: QueueStore,
        workers: Workers,
        connection: ReconnectingConnection,
        in_flight: InFlight,
        health: Health,
        pending: PendingSettlements,
        signals: Signals,
    ) -> None:
        self._queue = queue
        self._options = options
        self._store = store
        self._workers = workers
        self._connection = connection
        self._in_flight = in_flight
        self._lanes = in_flight.lanes
        self._health = health
        self._pending = pending
        self._signals = signals
        self._renewed_at = time.monotonic()
        self._unresolved: list[int] = []
        """Tokens of lanes that may have been taken, by a statement whose answer never came."""

    async def beat(self) -> int:
        """Renew leases, say that this worker is alive, and share the lanes; returns how many workers are alive.

        Raises `Outage`: then deadlines pass by themselves.
        """
        await self._renew()
        alive = await self._connection.attempt(
            self._workers.beat(
                self._options.worker,
                len(self._lanes),
                len(self._in_flight),
                self._health.circuit.down or "",
                self._options.silent,
            )
        )
        if self._queue.keyed:
            await self._share_lanes(alive)
        self._in_flight.forget_deadlines()
        return alive

    def report(self, alive: int | None) -> None:
        """Emit the event of a beat; None where the database did not answer."""
        self._queue.hook(
            Beat(
                worker=self._options.worker,
                queue=self._queue.name,
                reached=alive is not None,
                alive=alive or 0,
                in_flight=len(self._in_flight),
                broker=self._queue.destination.name,
                broker_reachable=self._health.circuit.down is None,
                targets_down=len(self._health.targets.down),
            )
        )

    async def release(self, unresolved: Sequence[int]) -> None:
        """Release the lanes and what was claimed under these tokens, and sign this worker off. Raises `Outage`."""
        self._unresolved += unresolved
        await self._release_unresolved()
        await self._connection.attempt(self._store.lanes.release([one.lane for one in self._lanes]))
        await self._connection.attempt(self._workers.leave(self._options.worker))

    async def _renew(self) -> None:
        """Extend leases; what was lost is dropped."""
        options = self._options
        started = time.monotonic()
        is_time = started - self._renewed_at > options.lease / 2 - options.heartbeat
        rows = self._in_flight.rows if is_time else []
        lanes = [one.lane for one in self._lanes]
        if not rows and not lanes:
            return
        renew = self._store.renewals.renew(rows, lanes, options.lease, options.lane_lease)
        renewal = await self._connection.attempt(renew)
        # What somebody works on at this moment was passed over, and is neither renewed nor lost: it comes next time.
        passed_over = {one.token for one in rows if one.lease not in renewal.leases and one in self._in_flight}
        self._in_flight.extend({one.token for one in rows} - passed_over, started + options.lease)
        self._lanes.extend(renewal.lanes, started + options.lane_lease)
        if rows and not passed_over:
            self._renewed_at = started
        lost = [one for one in renewal.lost if one in self._in_flight and not self._in_flight.is_at_destination(one)]
        for lane in renewal.lost_lanes:
            if self._lanes.has(lane):
                self._lanes.drop(lane.number)
                lost += self._in_flight.of_lane(lane)
        self._pending.lose(lost, len(renewal.lost_lanes))

    async def _share_lanes(self, alive: int) -> None:
        """Hold a fair share of the lanes: release what is too much, take what is free."""
        await self._release_unresolved()
        share = fair_share(alive)
        staying = {one.lane.number: one for one in self._lanes if not one.leaving}
        busy = self._in_flight.busy_lanes()
        for number in lanes_to_release(staying, busy, share):
            staying[number].leaving = True
        gone = [one.lane for one in self._lanes if one.leaving and one.lane.number not in busy]
        if gone:
            for lane in gone:
                self._lanes.drop(lane.number)
            await self._connection.attempt(self._store.lanes.release(gone))
        missing = share - len(self._lanes)
        if missing > 0:
            await self._take_lanes(missing)

    async def _release_unresolved(self) -> None:
        for token in list(self._unresolved):
            await self._connection.attempt(self._store.recovery.forget(token))
            self._unresolved.remove(token)

    async def _take_lanes(self, missing: int) -> None:
        started = time.monotonic()
        seconds = self._options.lane_lease
        token = new_token()
        self._unresolved.append(token)
        taken = await self._connection.attempt(
            self._store.lanes.take(self._options.worker, seconds, missing, token=token)
        )
        self._unresolved.remove(token)
        for lane in taken:
            self._lanes.hold(lane, started + seconds)
        if taken:
            self._signals.wake()
