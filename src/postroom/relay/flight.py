"""What the relay has claimed and not yet settled: how much it is, and whether its leases still hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.store.leases import Claimed, Lane


@dataclass(slots=True)
class HeldLane:
    """A lane that this relay holds."""

    lane: Lane
    cursor: int = 0
    """Messages up to here were read; what comes later with a lower position is found by a sweep."""
    in_flight: set[int] = field(default_factory=set)
    leaving: bool = False
    """To be released as soon as nothing of it is in flight."""


class Flight:
    """Messages in flight, bounded in number and in bytes.

    Leases are watched by this process's own clock: a deadline is counted from before the statement that made or
    renewed the lease, so that it ends no later here than in the database.
    """

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self.most_messages = most_messages
        self.most_bytes = most_bytes
        self.messages: dict[int, Claimed] = {}
        self.lanes: dict[int, HeldLane] = {}
        self.bytes = 0
        self._leases: Counter[tuple[int, int]] = Counter()
        self._deadlines: dict[tuple[int, int], float] = {}
        self._lost: set[tuple[int, int]] = set()
        self._landed = asyncio.Event()

    def take_off(self, claimed: Sequence[Claimed], deadline: float) -> None:
        """Messages were claimed, or read from a lane."""
        for one in claimed:
            self.messages[one.position] = one
            self.bytes += one.message.size
            lease = (one.lane, one.token)
            self._leases[lease] += 1
            self._deadlines[lease] = max(deadline, self._deadlines.get(lease, deadline))
            if one.ordered and one.lane in self.lanes:
                self.lanes[one.lane].in_flight.add(one.position)

    def land(self, claimed: Iterable[Claimed]) -> None:
        """Messages were settled, given back or lost."""
        for one in claimed:
            if self.messages.get(one.position) is not one:
                continue
            del self.messages[one.position]
            self.bytes -= one.message.size
            self._lost.discard((one.position, one.token))
            lease = (one.lane, one.token)
            self._leases[lease] -= 1
            if not self._leases[lease]:
                del self._leases[lease]
                if not one.ordered:
                    del self._deadlines[lease]
            if one.ordered and one.lane in self.lanes:
                self.lanes[one.lane].in_flight.discard(one.position)
        self._landed.set()

    def holds(self, one: Claimed, now: float) -> bool:
        """Whether the message may still be sent: its lease holds as far as this process can know."""
        if (one.position, one.token) in self._lost or self._deadlines.get((one.lane, one.token), 0.0) <= now:
            return False
        return not one.ordered or (one.lane in self.lanes and self.lanes[one.lane].lane.token == one.token)

    def lose(self, claimed: Iterable[Claimed]) -> None:
        """Somebody else has these messages, or will: they must not be sent."""
        self._lost.update((one.position, one.token) for one in claimed)

    def extend(self, leases: Iterable[tuple[int, int]], deadline: float) -> None:
        """Leases, named by lane and token, were renewed."""
        for lease in leases:
            if lease in self._deadlines:
                self._deadlines[lease] = deadline

    def hold_lane(self, lane: Lane, deadline: float) -> None:
        """A lane was taken."""
        self.lanes[lane.number] = HeldLane(lane)
        self._deadlines[lane.lease] = deadline

    def read_again(self, number: int, position: int) -> None:
        """From this position on there is something to read that was passed by."""
        held = self.lanes.get(number)
        if held is not None:
            held.cursor = min(held.cursor, position - 1)

    def drop_lane(self, number: int) -> list[Claimed]:
        """A lane was lost or released; returns what of it was in flight."""
        held = self.lanes.pop(number)
        self._deadlines.pop(held.lane.lease, None)
        return [self.messages[position] for position in held.in_flight if position in self.messages]

    @property
    def rows(self) -> list[Claimed]:
        """Messages in flight with a lease of their own."""
        return [one for one in self.messages.values() if not one.ordered]

    @property
    def room(self) -> int:
        """How many more messages may be claimed."""
        return 0 if self.bytes >= self.most_bytes else max(0, self.most_messages - len(self.messages))

    async def wait_for_room(self, least: int) -> None:
        """Return when there is room for that many, or nothing is in flight."""
        while self.messages and self.room < least:
            self._landed.clear()
            await self._landed.wait()

    async def wait_until_empty(self) -> None:
        """Return when all is settled."""
        while self.messages:
            self._landed.clear()
            await self._landed.wait()
