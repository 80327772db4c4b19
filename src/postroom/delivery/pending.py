"""Pending settlements: decided by an attempt, not yet written by the settler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.store.outbox.leases import GivenBack, Sent
from postroom.telemetry.events import LeasesLost

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.delivery.in_flight import InFlight
    from postroom.store.outbox.leases import Claimed, Lease, Settlement
    from postroom.telemetry.events import Hook


class PendingSettlements:
    """What is decided for one queue and not yet written. A claim stays in flight until it is."""

    def __init__(self, in_flight: InFlight, hook: Hook, queue: str = "") -> None:
        self._in_flight = in_flight
        self._hook = hook
        self._queue = queue
        self._pending: list[Settlement] = []
        self._conflicts: list[Claimed] = []
        self._seconds: dict[int, float] = {}
        self.waiting = asyncio.Event()
        """Set while there is something to write."""

    def add(self, settlements: Sequence[Settlement]) -> None:
        """Hand over settlements; they are written soon, together with others."""
        if settlements:
            self._pending.extend(settlements)
            self.waiting.set()

    def note_seconds(self, failed: Iterable[Claimed], seconds: float) -> None:
        """Note how long attempts that failed took, for the report."""
        self._seconds.update(dict.fromkeys([one.position for one in failed], seconds))

    def seconds_of(self, one: Claimed) -> float:
        """How long a failed attempt took. Returns it once."""
        return self._seconds.pop(one.position, 0.0)

    def give_back(self, claimed: Sequence[Claimed]) -> None:
        """Give back those that are still in flight, undelivered."""
        self.add([GivenBack(one) for one in self._in_flight.remaining(claimed)])

    def lose(self, claimed: Sequence[Claimed], lanes: int = 0) -> None:
        """Land claims whose leases were lost. They are neither delivered nor settled, and audited as conflicts."""
        if claimed or lanes:
            self._in_flight.land(claimed)
            self.add_conflicts(claimed)
            self._hook(LeasesLost(len(claimed), lanes, self._queue))

    def add_conflicts(self, claimed: Iterable[Claimed]) -> None:
        """Have conflicts audited."""
        self._conflicts.extend(claimed)
        self.waiting.set()

    def leases(self) -> set[Lease]:
        """Of all claims about which something is pending."""
        return {one.claimed.lease for one in self._pending}

    def take_pending(self) -> list[Settlement]:
        """Take what is to be written now."""
        self.waiting.clear()
        pending, self._pending = self._pending, []
        return pending

    def take_conflicts(self) -> list[Claimed]:
        """Take what is to be audited now."""
        conflicts, self._conflicts = self._conflicts, []
        return conflicts

    def unsent_keys(self) -> list[str]:
        """Keys of what is pending and was not sent."""
        return unsent_keys(self._pending)


def unsent_keys(settlements: Iterable[Settlement]) -> list[str]:
    """Keys of what was not sent, one for each message."""
    return [
        one.claimed.message.key for one in settlements if type(one) is not Sent and one.claimed.message.key is not None
    ]
