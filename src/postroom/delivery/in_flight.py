"""What the relay has claimed and not yet settled: how much it is, and whether its leases still hold."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from postroom.rules.ordering import NO_LANE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.store.outbox.leases import Claimed, Lane, Lease

NOWHERE = 2**63


@dataclass(slots=True)
class HeldLane:
    """A lane that this relay holds."""

    lane: Lane
    cursor: int = 0
    """Messages up to here were read, and none can appear there but those that wait for something: see `Horizon`."""
    furthest: int = 0
    """The highest position that was ever read."""
    again: int = NOWHERE
    """How far the cursor must be set back after the read that is under way."""
    leaving: bool = False
    """To be released as soon as nothing of it is in flight."""

    def begin_read(self) -> None:
        """A read is about to start behind the cursor."""
        self.again = NOWHERE

    def end_read(self, position: int | None, safe: int) -> None:
        """It has read up to this position, and the next one may start behind the safe one.

        What was dropped while it was under way may lie before that, and is read again.
        """
        self.furthest = max(self.furthest, position or 0)
        self.cursor = min(max(self.cursor, safe), self.again)


class Flight:
    """Messages in flight, bounded in number and in bytes.

    Leases are watched by this process's own clock: a deadline is counted from before the statement that made or
    renewed the lease, so that it ends no later here than in the database. They are named by lane and token; messages
    without a key that were claimed together share one.
    """

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self.most_messages = most_messages
        self.most_bytes = most_bytes
        self.messages: dict[int, Claimed] = {}
        self.lanes: dict[int, HeldLane] = {}
        self.bytes = 0
        self._deadlines: dict[Lease, float] = {}
        self._lost: set[Lease] = set()
        self.forsaken: set[Lease] = set()
        """Leases of lanes of which nothing may be settled any more, though the database may know them."""
        self._landed = asyncio.Event()
        self._closing = False

    def take_off(self, claimed: Sequence[Claimed], deadline: float) -> None:
        """Messages were claimed, or read from a lane."""
        if not self.messages.keys().isdisjoint([one.position for one in claimed]):  # our own, whose leases had ended
            self.land([self.messages[one.position] for one in claimed if one.position in self.messages])
        self.messages.update(zip([one.position for one in claimed], claimed, strict=True))
        self.bytes += sum([one.size for one in claimed])
        for lease in {(one.lane, one.token) for one in claimed}:
            self._deadlines[lease] = max(deadline, self._deadlines.get(lease, deadline))

    def land(self, claimed: Iterable[Claimed]) -> None:
        """Messages were settled, given back or lost."""
        messages = self.messages
        for one in claimed:
            if messages.get(one.position) is one:
                del messages[one.position]
                self.bytes -= one.size
        self._landed.set()

    def flying(self, claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """Those that were not lost meanwhile. To be asked once, when a courier is done with them."""
        if not self._lost:
            return claimed
        kept = [one for one in claimed if one.lease not in self._lost]
        self._lost.difference_update([one.lease for one in claimed])
        return kept

    def held(self, claimed: Sequence[Claimed], now: float) -> Sequence[Claimed]:
        """Those that may still be sent: their leases hold as far as this process can know."""
        ended = {lease for lease in {(one.lane, one.token) for one in claimed} if not self._holds(lease, now)}
        if not ended and not self._lost:
            return claimed
        return [one for one in claimed if (one.lane, one.token) not in ended and one.lease not in self._lost]

    def _holds(self, lease: Lease, now: float) -> bool:
        lane, token = lease
        if self._deadlines.get(lease, 0.0) <= now:
            return False
        return lane == NO_LANE or (lane in self.lanes and self.lanes[lane].lane.token == token)

    def has_lane_of(self, one: Claimed) -> bool:
        """Whether the message's lane has not been lost or released, even if its lease may have ended."""
        return one.lane in self.lanes and self.lanes[one.lane].lane.token == one.token

    def lose(self, claimed: Iterable[Claimed]) -> None:
        """Somebody else has these messages, or will: they must not be sent, nor settled."""
        self._lost.update([one.lease for one in claimed])

    def extend(self, leases: Iterable[Lease], deadline: float) -> None:
        """Leases were renewed."""
        for lease in leases:
            if lease in self._deadlines:
                self._deadlines[lease] = deadline

    def forget_landed(self) -> None:
        """Drop the deadlines of claims that have nothing in flight any more."""
        flying = {(one.lane, one.token) for one in self.messages.values()}
        flying |= {held.lane.lease for held in self.lanes.values()}
        for lease in self._deadlines.keys() - flying:
            del self._deadlines[lease]

    def hold_lane(self, lane: Lane, deadline: float) -> None:
        """A lane was taken."""
        self.lanes[lane.number] = HeldLane(lane)
        self._deadlines[lane.lease] = deadline

    def read_again(self, number: int, position: int) -> None:
        """From this position on there is something to read that was passed by."""
        held = self.lanes.get(number)
        if held is not None:
            held.cursor = min(held.cursor, position - 1)
            held.again = min(held.again, position - 1)

    def drop_lane(self, number: int) -> list[Claimed]:
        """A lane was lost or released; returns what of it was in flight."""
        held = self.lanes.pop(number)
        self._deadlines.pop(held.lane.lease, None)
        return [one for one in self.messages.values() if (one.lane, one.token) == held.lane.lease]

    def forsake_lane(self, number: int) -> list[Claimed]:
        """The lane has other messages than those that are in flight; returns these."""
        self.forsaken.add(self.lanes[number].lane.lease)
        return self.drop_lane(number)

    def forget_reads(self, lanes: Iterable[HeldLane]) -> None:
        """Read these lanes from the beginning: what is known of positions may be from another life of the database."""
        for held in lanes:
            flying = [one.position for one in self.messages.values() if (one.lane, one.token) == held.lane.lease]
            held.cursor, held.furthest = 0, max(flying, default=0)

    def busy_lanes(self) -> set[int]:
        """Lanes with something in flight."""
        return {one.lane for one in self.messages.values()}

    def behind_cursors(self) -> list[int]:
        """What is in flight and would be read again, because a cursor was set back."""
        lanes = self.lanes
        if all(held.cursor >= held.furthest for held in lanes.values()):
            return []
        return [
            one.position
            for one in self.messages.values()
            if one.lane in lanes and one.position > lanes[one.lane].cursor
        ]

    @property
    def rows(self) -> list[Claimed]:
        """Messages in flight with a lease of their own."""
        return [one for one in self.messages.values() if one.lane == NO_LANE]

    @property
    def room(self) -> int:
        """How many more messages may be claimed."""
        return 0 if self.bytes >= self.most_bytes else max(0, self.most_messages - len(self.messages))

    async def wait_for_room(self, least: int) -> None:
        """Return when there is room for that many, or nothing is in flight, or none is needed any more."""
        while self.messages and self.room < least and not self._closing:
            self._landed.clear()
            await self._landed.wait()

    def need_no_room(self) -> None:
        """Nothing more will be claimed: whoever waits for room need not. It may never come, if the database is away."""
        self._closing = True
        self._landed.set()

    async def wait_until_empty(self) -> None:
        """Return when all is settled."""
        while self.messages:
            self._landed.clear()
            await self._landed.wait()
