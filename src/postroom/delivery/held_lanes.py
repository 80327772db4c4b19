"""The lanes that this worker holds: how far each has been read, and until when its lease holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from postroom.store.outbox.leases import Claimed, Lane, Lease

NOWHERE = 2**63


@dataclass(slots=True, eq=False)
class HeldLane:
    """A lane that this worker holds."""

    lane: Lane
    deadline: float = 0.0
    """When the lease ends, by this process's clock."""
    cursor: int = 0
    """Everything up to here was read. Nothing new can appear there, except what was waiting: see `Horizon`."""
    ahead: int = 0
    """Up to here too, as long as certain transactions are open: see `Horizon.set_aside`. Never before the cursor."""
    furthest: int = 0
    """The highest position that was ever read."""
    again: int = NOWHERE
    """Where to set the cursor back to after the read that is under way."""
    leaving: bool = False
    """To be released as soon as nothing of it is in flight."""

    def begin_read(self) -> None:
        """Start a read behind the cursor."""
        self.again = NOWHERE

    def end_read(self, position: int | None, safe: int, ahead: int = 0) -> None:
        """Note that the read got up to `position`, and that the next one may start behind `safe`.

        `ahead`: behind that, as long as certain transactions are open. What was dropped during the read may lie before
        that, and is read again.
        """
        self.furthest = max(self.furthest, position or 0)
        self.cursor = min(max(self.cursor, safe), self.again)
        self.ahead = min(max(self.ahead, self.cursor, ahead), self.again)

    def read_again(self, position: int) -> None:
        """Read again from this position on."""
        self.cursor = min(self.cursor, position - 1)
        self.ahead = min(self.ahead, position - 1)
        self.again = min(self.again, position - 1)

    def start_over(self, furthest: int | None = None) -> None:
        """Read from the beginning; `furthest` is all that is known to have been read."""
        self.cursor = self.ahead = 0
        self.furthest = self.furthest if furthest is None else furthest

    def fall_back(self) -> None:
        """One of the transactions has ended for which reads started ahead of the cursor."""
        self.ahead = self.cursor


class HeldLanes:
    """All lanes of one queue that this worker holds, by number."""

    def __init__(self) -> None:
        self._lanes: dict[int, HeldLane] = {}
        self._abandoned: set[Lease] = set()

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[HeldLane]:
        return iter(tuple(self._lanes.values()))

    def __contains__(self, number: int) -> bool:
        return number in self._lanes

    def share(self, part: int, parts: int) -> dict[int, HeldLane]:
        """One of several parts of the lanes, by number."""
        return {number: one for number, one in self._lanes.items() if number % parts == part}

    def hold(self, lane: Lane, deadline: float) -> None:
        """Add a lane that was taken."""
        self._lanes[lane.number] = HeldLane(lane, deadline)

    def extend(self, leases: Iterable[Lease], deadline: float) -> None:
        """Note that leases were renewed; a deadline never moves back."""
        for number, token in leases:
            held = self._lanes.get(number)
            if held is not None and held.lane.token == token:
                held.deadline = max(held.deadline, deadline)

    def holds(self, lease: Lease, now: float) -> bool:
        """Whether the lane is still held under this token, and its lease has not ended."""
        held = self._lanes.get(lease[0])
        return held is not None and held.lane.token == lease[1] and held.deadline > now

    def has(self, lane: Lane) -> bool:
        """Whether the lane is held under this lease, even if it may have ended."""
        held = self._lanes.get(lane.number)
        return held is not None and held.lane.token == lane.token

    def has_lane_of(self, one: Claimed) -> bool:
        """Whether the message's lane has been neither lost nor released, even if its lease may have ended."""
        held = self._lanes.get(one.lane)
        return held is not None and held.lane.token == one.token

    def still_held(self, held: HeldLane) -> bool:
        """Whether this very lane has been neither lost nor released since it was looked up."""
        return self._lanes.get(held.lane.number) is held

    def read_again(self, number: int, position: int) -> None:
        """Read a lane again from this position on: something there was passed by."""
        held = self._lanes.get(number)
        if held is not None:
            held.read_again(position)

    def read_all_again(self) -> None:
        """Read all lanes from the beginning: messages appeared at positions that may have been passed by."""
        for held in self._lanes.values():
            held.read_again(1)

    def drop(self, number: int) -> Lane:
        """Remove a lane that was lost or released."""
        return self._lanes.pop(number).lane

    def abandon(self, number: int) -> Lane:
        """Remove a lane of which nothing may be settled any more, although the database may know its lease."""
        lane = self.drop(number)
        self._abandoned.add(lane.lease)
        return lane

    def may_settle(self, one: Claimed) -> bool:
        """Whether the message's lane was not abandoned."""
        return (one.lane, one.token) not in self._abandoned

    @property
    def any_abandoned(self) -> bool:
        """Whether any lane ever was."""
        return bool(self._abandoned)
