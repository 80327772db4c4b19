"""Continuity: check that the database that answers now is still the one that the claims in flight came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.delivery.in_flight import InFlight
    from postroom.delivery.pending import PendingSettlements
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.queue_store import QueueStore

FIRST = 1
"""The number of a first connection: nothing can be in flight yet that came from another one."""


class Continuity:
    """Checks what is in flight before a new connection is used.

    A standby that lagged when it was promoted, or a restored backup, lacks the newest messages and assigns their
    positions again. But it has the lanes' leases, and messages in lanes are settled by position: a receipt would be
    written for a message that was never sent. So if anything in a lane is not what was claimed, the whole lane is
    abandoned. Messages without a key need no check: their lease is in their own row, and settles nothing elsewhere.

    Settler and lane readers ask `on` before every operation that relies on what is in flight.
    """

    def __init__(self, store: QueueStore, in_flight: InFlight, pending: PendingSettlements) -> None:
        self._store = store
        self._in_flight = in_flight
        self._lanes = in_flight.lanes
        self._pending = pending
        self._checked: dict[Connection, int] = {}

    async def on(self, connection: Connection) -> int:
        """The number of the connection that is open, on which what is in flight can be trusted. Raises `Outage`."""
        number = connection.connections
        if self._checked.get(connection, FIRST) != number:
            await self._check(connection, number)
            self._checked[connection] = number
        return number

    async def _check(self, connection: Connection, number: int) -> None:
        ordered = self._in_flight.ordered
        if not ordered:
            return
        strangers = await connection.attempt(self._store.recovery.strangers(ordered), number)
        leases = {(one.lane, one.token) for one in strangers}
        lanes = [self._lanes.abandon(held.lane.number) for held in self._lanes if held.lane.lease in leases]
        if not lanes:
            return
        self._pending.lose([one for lane in lanes for one in self._in_flight.of_lane(lane)], len(lanes))
        await connection.attempt(self._store.lanes.release(lanes), number)
