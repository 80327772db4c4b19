"""The report: what a relay did, counted from what it tells."""

from __future__ import annotations

from dataclasses import dataclass, field

from postroom.rules.lifecycle import Outcome
from postroom.telemetry import DATABASE, Event, Expired, Reachability, Settled


@dataclass(slots=True)
class Report:
    """What a relay did."""

    sent: int = 0
    retried: int = 0
    dead: int = 0
    duplicates: int = 0
    expired: int = 0
    conflicts: int = 0
    broker_down: bool = False
    """Whether a broker could not be reached at the end."""
    queues_down: list[str] = field(default_factory=list)
    """The queues whose broker that was."""

    def count(self, event: Event) -> None:
        """A hook that counts."""
        if isinstance(event, Expired):
            self.expired += len(event.messages)
        if isinstance(event, Reachability) and event.what != DATABASE:
            others = [queue for queue in self.queues_down if queue != event.queue]
            self.queues_down = others if event.reachable else [*others, event.queue]
            self.broker_down = bool(self.queues_down)
        if not isinstance(event, Settled):
            return
        match event.outcome:
            case Outcome.SUCCESS:
                self.sent += len(event.messages)
            case Outcome.RETRY:
                self.retried += len(event.messages)
            case Outcome.DEAD:
                self.dead += len(event.messages)
            case Outcome.DEDUP_HIT:
                self.duplicates += len(event.messages)
            case Outcome.CONFLICT:
                self.conflicts += len(event.messages)
            case _:
                pass
