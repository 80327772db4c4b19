"""Continuity: whether the database that answers now is still the one that what is in flight came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.delivery.queue_state import Office
    from postroom.store.connections.reconnecting import ReconnectingConnection

FIRST = 1
"""A line's first connection: there is nothing yet that could be from another one."""


class Continuity:
    """Looks at what is in flight before a new connection is used.

    A standby that lagged when it was promoted, or a backup, lacks the newest messages and gives their positions out
    again. But it has the lanes' leases, and messages in lanes are settled by position: what was sent would be written
    down for a message that never was. So of a lane in which anything is not what we took it for, nothing is kept.
    """

    def __init__(self, office: Office) -> None:
        self._office = office
        self._known: dict[ReconnectingConnection, int] = {}

    async def on(self, line: ReconnectingConnection) -> int:
        """The number of the line's connection, on which what is in flight can be trusted. Raises `Outage`."""
        number = line.connections
        if self._known.get(line, FIRST) != number:
            await self._look(line, number)
            self._known[line] = number
        return number

    async def _look(self, line: ReconnectingConnection, number: int) -> None:
        office = self._office
        flying = [one for one in office.flight.messages.values() if one.ordered]
        if not flying:
            return
        strangers = await line.attempt(office.deliveries.strangers(flying), number)
        leases = {(one.lane, one.token) for one in strangers}
        lanes = [held.lane for held in office.flight.lanes.values() if held.lane.lease in leases]
        if not lanes:
            return
        dropped = [one for lane in lanes for one in office.flight.forsake_lane(lane.number)]
        office.lost(dropped, len(lanes))
        await line.attempt(office.deliveries.release(lanes), number)
