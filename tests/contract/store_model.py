"""The lease protocol in a few lines of plain Python: what the store must agree with, operation by operation.

It is slow, has no concurrency and knows nothing of SQL. Its clock is a number that tests move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, assert_never

from postroom.rules.lifecycle import ClaimLimits, State, Stored, split_batch, status
from postroom.rules.ordering import LANES, NO_LANE, Order, key_hash, lane_of
from postroom.store.outbox.leases import (
    Claimed,
    Dead,
    Duplicate,
    Expired,
    GivenBack,
    Lane,
    Postponed,
    Rerouted,
    Retry,
    Sent,
    Settlement,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


@dataclass
class Unsent:
    """A message that is not settled."""

    position: int
    key: str | None
    state: Stored = Stored.READY
    due: float = -inf
    expires: float = inf
    attempts: int = 0
    claims: int = 0
    token: int = 0
    until: float = -inf

    @property
    def lane(self) -> int:
        return NO_LANE if self.key is None else lane_of(key_hash(self.key))

    def release(self) -> None:
        self.token, self.until = 0, -inf

    def fail(self, state: Stored, due: float, attempts: int) -> None:
        self.state, self.due, self.claims = state, due, 0
        self.attempts += attempts
        self.release()


@dataclass
class Taken:
    """A lane and its lease."""

    token: int = 0
    until: float = -inf
    read_to: int = 0


@dataclass
class Model:
    """All messages and lanes of one queue."""

    order: Order
    limits: ClaimLimits
    now: float = 0
    unsent: dict[int, Unsent] = field(default_factory=dict)
    settled: dict[int, tuple[str, float]] = field(default_factory=dict)
    lanes: list[Taken] = field(default_factory=lambda: [Taken() for _ in range(LANES)])

    # Leases

    def claim(self, token: int, limit: int, seconds: float) -> list[int]:
        free = [one for one in self.unsent.values() if one.key is None and one.until <= self.now]
        waiting = (one for one in free if one.state in (Stored.SCHEDULED, Stored.RETRY) and one.due <= self.now)
        due = sorted(waiting, key=lambda one: (one.due, one.position))[:limit]
        ready = [one for one in self._by_position(free) if one.state is Stored.READY]
        taken = self._by_position([*due, *ready[: limit - len(due)]])
        for one in taken:
            one.state, one.token, one.until = Stored.READY, token, self.now + seconds
            one.claims += 1
        return self._sift(taken, [one.claims for one in taken])

    def take_lanes(self, token: int, limit: int, seconds: float) -> list[tuple[int, bool]]:
        free = [number for number, lane in enumerate(self.lanes) if lane.until <= self.now][:limit]
        found = [(number, self.lanes[number].token != 0) for number in free]
        for number in free:
            self.lanes[number] = Taken(token, self.now + seconds)
        return found

    def read_lanes(self, lanes: Sequence[Lane], limit: int, seconds: float, in_flight: Collection[int]) -> list[int]:
        read: list[Unsent] = []
        for lane in self._held(lanes):
            ready = (one for one in self._by_position(self.unsent.values()) if one.lane == lane.number)
            able = [one for one in ready if one.state is Stored.READY and not self._is_held_back(one)]
            mine = [one for one in able if one.position not in in_flight][:limit]
            taken = self.lanes[lane.number]
            taken.until = self.now + seconds
            taken.read_to = max(taken.read_to, *(one.position for one in mine), 0)
            read += mine
        read = self._by_position(read)
        interrupted = {lane.number for lane in lanes if lane.interrupted}
        handed_out = self._sift(read, [one.claims + (one.lane in interrupted) for one in read])
        for one in read:
            if one.position in handed_out and one.lane in interrupted:
                one.claims += 1
        return handed_out

    def promote(self, lanes: Sequence[Lane]) -> dict[int, int]:
        held = {lane.number for lane in self._held(lanes)}
        lowest: dict[int, int] = {}
        for one in self._by_position(self.unsent.values()):
            if one.lane in held and one.state in (Stored.SCHEDULED, Stored.RETRY) and one.due <= self.now:
                one.state = Stored.READY
                lowest.setdefault(one.lane, one.position)
        return lowest

    def settle(self, settlements: Iterable[Settlement]) -> list[Claimed]:
        in_order = sorted(settlements, key=lambda one: one.claimed.position)
        lost = [one.claimed for one in in_order if not self.holds(one.claimed)]
        for settlement in in_order:
            if settlement.claimed not in lost:
                self._settle(settlement)
        return lost

    def renew(
        self, claimed: Sequence[Claimed], lanes: Sequence[Lane], seconds: float
    ) -> tuple[list[Claimed], list[Lane]]:
        held = self._held(lanes)
        lost = [one for one in claimed if not self.holds(one)]
        for one in claimed:
            if one not in lost:
                self.unsent[one.position].until = self.now + seconds
        for lane in held:
            self.lanes[lane.number].until = self.now + seconds
        return lost, [lane for lane in lanes if lane not in held]

    def release(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            if self.lanes[lane.number].token == lane.token:
                self.lanes[lane.number] = Taken()

    def forget(self, token: int) -> None:
        for one in self.unsent.values():
            if one.state is Stored.READY and one.key is None and one.token == token:
                one.claims -= 1
                one.release()
        self.lanes = [Taken() if lane.token == token else lane for lane in self.lanes]

    def holds(self, claimed: Claimed) -> bool:
        """Whether the claim's lease, its own or its lane's, has not ended and nobody else has it."""
        one = self.unsent.get(claimed.position)
        if one is None or one.state is not Stored.READY:
            return False
        lease = one if one.key is None else self.lanes[one.lane]
        return lease.token == claimed.token and lease.until > self.now

    # Operators, retention, status

    def requeue(self, positions: Collection[int]) -> list[int]:
        found = self._dead(positions)
        for one in found:
            one.state, one.due, one.attempts, one.claims = Stored.RETRY, -inf, 0, 0
        return [one.position for one in found]

    def discard(self, positions: Collection[int]) -> list[int]:
        found = [one.position for one in self._dead(positions)]
        for position in found:
            del self.unsent[position]
        return found

    def remove_settled(self, seconds: float) -> int:
        old = [position for position, (_, at) in self.settled.items() if at + seconds <= self.now]
        for position in old:
            del self.settled[position]
        return len(old)

    def statuses(self) -> dict[int, str]:
        found = {
            position: State.EXPIRED.value if outcome == "expired" else State.SENT.value
            for position, (outcome, _) in self.settled.items()
        }
        for one in self.unsent.values():
            leased = one.until > self.now
            if one.key is not None:
                lane = self.lanes[one.lane]
                stuck = self._is_behind(one, (Stored.RETRY, Stored.DEAD))
                leased = lane.until > self.now and one.position <= lane.read_to and not stuck
            found[one.position] = status(one.state, due_passed=one.due <= self.now, leased=leased).value
        return found

    def holding_back(self, position: int) -> list[int]:
        """What must leave before this message: the earlier ones of its key that are not scheduled."""
        one = self.unsent[position]
        passing = {Stored.SCHEDULED} if self.order is Order.HOLD else {Stored.SCHEDULED, Stored.DEAD}
        return [
            other.position
            for other in self.unsent.values()
            if other.key == one.key is not None and other.position < position and other.state not in passing
        ]

    # Inside

    def _sift(self, taken: Sequence[Unsent], claims: Sequence[int]) -> list[int]:
        able = [(one, count) for one, count in zip(taken, claims, strict=True) if one.expires > self.now]
        for one in taken:
            if one.expires <= self.now:
                self._finish(one, "expired")
        split = split_batch([count for _, count in able], self.limits, [one.key for one, _ in able])
        for index in split.dead:
            able[index][0].fail(Stored.DEAD, self.now, 0)
        for index in split.give_back:
            if able[index][0].key is None:
                able[index][0].claims -= 1
                able[index][0].release()
        return [able[index][0].position for index in split.send]

    def _settle(self, settlement: Settlement) -> None:
        one = self.unsent[settlement.claimed.position]
        match settlement:
            case Sent() | Duplicate() | Expired():
                self._finish(one, type(settlement).__name__.lower())
            case Retry():
                one.fail(Stored.RETRY, self.now + settlement.delay, 1)
            case Postponed():
                claims = one.claims - 1 if one.key is None else 0  # not tried: this claim does not count, others do
                one.fail(Stored.RETRY, self.now + settlement.delay, 0)
                one.claims = claims
            case Dead():
                one.fail(Stored.DEAD, self.now, int(settlement.attempted))
            case GivenBack():
                one.claims -= one.key is None
                one.release()
            case Rerouted():
                del self.unsent[one.position]  # out of this queue
            case _:
                assert_never(settlement)

    def _finish(self, one: Unsent, outcome: str) -> None:
        del self.unsent[one.position]
        self.settled[one.position] = (outcome, self.now)

    def _held(self, lanes: Sequence[Lane]) -> list[Lane]:
        return [
            lane
            for lane in lanes
            if self.lanes[lane.number].token == lane.token and self.lanes[lane.number].until > self.now
        ]

    def _is_held_back(self, one: Unsent) -> bool:
        return self._is_behind(one, (Stored.RETRY, Stored.DEAD) if self.order is Order.HOLD else (Stored.RETRY,))

    def _is_behind(self, one: Unsent, states: Collection[Stored]) -> bool:
        return any(
            other.key == one.key and other.position < one.position and other.state in states
            for other in self.unsent.values()
        )

    def _dead(self, positions: Collection[int]) -> list[Unsent]:
        dead = (one for one in self._by_position(self.unsent.values()) if one.state is Stored.DEAD)
        return [one for one in dead if one.position in positions]

    @staticmethod
    def _by_position(messages: Iterable[Unsent]) -> list[Unsent]:
        return sorted(messages, key=lambda one: one.position)
