"""The report: what a relay did, counted from its events."""

from __future__ import annotations

from dataclasses import dataclass, field

from postroom.rules.lifecycle import OutcomeCode
from postroom.rules.naming import is_saga_queue
from postroom.telemetry.events import DATABASE, Event, Expired, Postponed, Reachability, Settled, TargetChanged
from postroom.telemetry.saga_events import SagaParked, SagasEnded


@dataclass(slots=True)
class Report:
    """What a relay did."""

    sent: int = 0
    retried: int = 0
    dead: int = 0
    duplicates: int = 0
    expired: int = 0
    conflicts: int = 0
    completed: int = 0
    """Sagas that came to their end."""
    compensated: int = 0
    """Sagas that were undone."""
    parked: int = 0
    """How often sagas were left to an operator."""
    postponed: int = 0
    """How often messages had to wait because their topic takes none."""
    broker_down: bool = False
    """Whether a broker could not be reached when the run ended."""
    queues_down: list[str] = field(default_factory=list)
    """The queues of the brokers that could not be reached, and of sagas whose steps hang and leave no thread free."""
    targets_down: dict[str, str] = field(default_factory=dict)
    """The topics that took no messages when the run ended, and why."""

    def count(self, event: Event) -> None:
        """Count an event: a hook."""
        match event:
            case Settled():
                self._settled(event)
            case Expired():
                self.expired += len(event.messages)
            case Postponed():
                self.postponed += event.messages
            case SagasEnded():
                from postroom.rules.saga_plan import SagaOutcome  # which a relay without sagas need not load

                undone = sum(one.outcome is SagaOutcome.COMPENSATED for one in event.ended)
                self.compensated += undone
                self.completed += len(event.ended) - undone
            case SagaParked():
                self.parked += 1
            case TargetChanged():
                others = {topic: reason for topic, reason in self.targets_down.items() if topic != event.topic}
                self.targets_down = others if event.available else {**others, event.topic: event.reason}
            case Reachability() if event.what != DATABASE:
                queues = [queue for queue in self.queues_down if queue != event.queue]
                self.queues_down = queues if event.reachable else [*queues, event.queue]
                self.broker_down = any(not is_saga_queue(queue) for queue in self.queues_down)
            case _:
                pass

    def _settled(self, event: Settled) -> None:
        match event.outcome:
            case OutcomeCode.SUCCESS:
                self.sent += len(event.messages)
            case OutcomeCode.RETRY:
                self.retried += len(event.messages)
            case OutcomeCode.DEAD:
                self.dead += len(event.messages)
            case OutcomeCode.DEDUP_HIT:
                self.duplicates += len(event.messages)
            case OutcomeCode.CONFLICT:
                self.conflicts += len(event.messages)
            case _:
                pass
