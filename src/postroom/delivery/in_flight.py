"""What a queue has claimed and not yet settled: every claim is taken once and lands once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.rules.ordering import NO_LANE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from postroom.delivery.held_lanes import HeldLane, HeldLanes
    from postroom.store.outbox.leases import Claimed, Lane, Lease


class InFlight:
    """Claims in flight, bounded in number and in bytes. There is one at most for each position.

    A claim that is taken counts until it lands: because it was settled, given back, lost, or claimed again under a
    newer lease. Landing a claim that is not in flight does nothing, so it cannot land twice. A destination may replace
    a claim by one with another token: that one lands in its stead.

    Leases are checked by this process's own clock: a deadline counts from before the statement that made or renewed
    the lease, so that it ends here no later than in the database. A message with a key is held by its lane's lease;
    messages without one that were claimed together share a token and a deadline.
    """

    def __init__(self, lanes: HeldLanes, most_messages: int, most_bytes: int) -> None:
        self.lanes = lanes
        self._most_messages = most_messages
        self._most_bytes = most_bytes
        self._claims: dict[int, Claimed] = {}
        self._deadlines: dict[int, float] = {}
        """Of messages without a key, by token."""
        self._at_destination: set[Lease] = set()
        self._landed = asyncio.Event()
        self._closing = False
        self.bytes = 0
        self.takes = 0
        """How often claims were taken."""

    def __len__(self) -> int:
        return len(self._claims)

    def __contains__(self, one: Claimed) -> bool:
        return self._claims.get(one.position) is one

    def take(self, claimed: Sequence[Claimed], deadline: float) -> None:
        """Add claims whose lease holds until the deadline; those of lanes are held for as long as their lane."""
        self.takes += 1
        claims = self._claims
        positions = [one.position for one in claimed]
        if not claims.keys().isdisjoint(positions):  # our own, whose leases had ended
            self.land([claims[position] for position in positions if position in claims])
        claims.update(zip(positions, claimed, strict=True))
        self.bytes += sum([one.size for one in claimed])
        for token in {one.token for one in claimed if one.lane == NO_LANE}:
            self._deadlines[token] = deadline

    def land(self, claimed: Iterable[Claimed]) -> None:
        """Remove claims: they were settled, given back or lost. Those that are not in flight are ignored."""
        claims, landed = self._claims, 0
        for one in claimed:
            position = one.position
            if claims.get(position) is one:
                del claims[position]
                landed += one.size
        self.bytes -= landed
        self._landed.set()

    def remaining(self, claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """Those that are still in flight: only they may be settled."""
        claims = self._claims
        kept = [one for one in claimed if claims.get(one.position) is one]
        return claimed if len(kept) == len(claimed) else kept

    def held(self, claimed: Sequence[Claimed], now: float) -> Sequence[Claimed]:
        """Those that may still be sent: they are in flight, and their lease holds as far as this process can know."""
        claimed = self.remaining(claimed)
        leases = {(one.lane, one.token) for one in claimed}
        ended = {lease for lease in leases if not self._holds(lease, now)}
        return [one for one in claimed if (one.lane, one.token) not in ended] if ended else claimed

    def _holds(self, lease: tuple[int, int], now: float) -> bool:
        lane, token = lease
        return self._deadlines.get(token, 0.0) > now if lane == NO_LANE else self.lanes.holds(lease, now)

    def may_be_renewed(self, one: Claimed) -> bool:
        """Whether its lease, which has ended as far as this process can know, may turn out to hold after all."""
        return self.lanes.has_lane_of(one)

    def lend(self, claimed: Iterable[Claimed]) -> None:
        """Note that the destination has these claims, and may settle them at any moment."""
        self._at_destination.update([one.lease for one in claimed])

    def take_back(self, claimed: Iterable[Claimed]) -> None:
        """Note that the destination no longer has these claims."""
        self._at_destination.difference_update([one.lease for one in claimed])

    def is_at_destination(self, one: Claimed) -> bool:
        """Whether the destination may settle the claim at any moment, so that its lease may be gone without a loss."""
        return one.lease in self._at_destination

    def replace(self, old: Claimed, new: Claimed) -> bool:
        """Put a claim without a key in the place of one that is at the destination; returns whether that was in flight.

        It is the same position under another token, and the deadline stays.
        """
        self.take_back([old])
        if self._claims.get(old.position) is not old:
            return False
        self._claims[new.position] = new
        self.bytes += new.size - old.size
        self._deadlines[new.token] = self._deadlines.get(old.token, 0.0)
        self.lend([new])
        return True

    def extend(self, tokens: Iterable[int], deadline: float) -> None:
        """Note that leases of messages without a key were renewed."""
        for token in tokens:
            if token in self._deadlines:
                self._deadlines[token] = deadline

    def forget_deadlines(self) -> None:
        """Drop the deadlines of claims that have all landed."""
        for token in self._deadlines.keys() - {one.token for one in self.rows}:
            del self._deadlines[token]

    def claims(self) -> list[Claimed]:
        """All claims, in the order in which they were taken."""
        return list(self._claims.values())

    @property
    def rows(self) -> list[Claimed]:
        """Claims of messages without a key."""
        return [one for one in self._claims.values() if one.lane == NO_LANE]

    @property
    def ordered(self) -> list[Claimed]:
        """Claims of messages with a key."""
        return [one for one in self._claims.values() if one.lane != NO_LANE]

    def contents(self) -> set[tuple[str, str | None]]:
        """Topic and digest of every message in flight."""
        return {(one.message.topic, one.message.digest) for one in self._claims.values()}

    def of_lane(self, lane: Lane) -> list[Claimed]:
        """Claims under a lane's lease."""
        return [one for one in self._claims.values() if (one.lane, one.token) == lane.lease]

    def busy_lanes(self) -> set[int]:
        """Lanes that have claims in flight."""
        return {one.lane for one in self._claims.values()}

    def behind_cursors(self, lanes: Collection[HeldLane]) -> list[int]:
        """Positions in flight that a read of these lanes would find for a second time."""
        if not any(held.cursor < held.furthest for held in lanes):
            return []
        cursors = {held.lane.number: held.cursor for held in lanes}
        return [
            one.position for one in self._claims.values() if one.lane in cursors and one.position > cursors[one.lane]
        ]

    @property
    def room(self) -> int:
        """How many more messages may be claimed."""
        return 0 if self.bytes >= self._most_bytes else max(0, self._most_messages - len(self._claims))

    async def wait_for_room(self, least: int) -> None:
        """Return when there is room for that many, when nothing is in flight, or after `stop_waiting`."""
        while self._claims and self.room < least and not self._closing:
            self._landed.clear()
            await self._landed.wait()

    def stop_waiting(self) -> None:
        """Nothing more will be claimed: do not wait for room, which may never come while the database is away."""
        self._closing = True
        self._landed.set()

    async def wait_until_empty(self) -> None:
        """Return when every claim has landed."""
        while self._claims:
            self._landed.clear()
            await self._landed.wait()
