"""Landing: how deliveries that a long-running destination has in hand come back to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from postroom.delivery.attempt import Attempt
    from postroom.delivery.destination import Outcome
    from postroom.delivery.in_flight import InFlight
    from postroom.delivery.signals import Signals
    from postroom.store.outbox.leases import Claimed


@dataclass(frozen=True, slots=True)
class QueueLanding:
    """The `Landing` of one queue."""

    attempt: Attempt
    in_flight: InFlight
    signals: Signals

    def land(self, claimed: Claimed, outcome: Outcome, seconds: float = 0.0) -> None:
        """Say what became of a delivery, as if `deliver` had returned it."""
        self.attempt.land(claimed, outcome, seconds)

    def replace(self, old: Claimed, new: Claimed) -> bool:
        """Go on with a delivery under a new token."""
        return self.in_flight.replace(old, new)

    def look_again(self) -> None:
        """Look at what is due now."""
        self.signals.rows_due()
        self.signals.wake()
