"""Counts what goes through a queue, from its events: a hook for each queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.rules.flow import FlowKind
from postroom.rules.lifecycle import OutcomeCode
from postroom.telemetry.events import Expired, Handled, Settled

if TYPE_CHECKING:
    from postroom.rules.flow import FlowCounts
    from postroom.telemetry.events import Event, Hook

_SETTLED = {
    OutcomeCode.SUCCESS: FlowKind.SENT,
    OutcomeCode.RETRY: FlowKind.RETRIED,
    OutcomeCode.DEAD: FlowKind.DEAD,
    OutcomeCode.DEDUP_HIT: FlowKind.DUPLICATE,
}
_HANDLED = {
    "handled": FlowKind.HANDLED,
    "duplicate": FlowKind.DUPLICATE,
    "parked": FlowKind.PARKED,
    "dead": FlowKind.DEAD,
}


def counting(counts: FlowCounts, queue: str) -> Hook:
    """A hook that counts the messages of a queue. It only adds up numbers."""

    def count(event: Event) -> None:
        match event:
            case Settled() if event.outcome in _SETTLED:
                counts.count(queue, _SETTLED[event.outcome], len(event.messages))
            case Handled() if event.fate in _HANDLED:
                counts.count(queue, _HANDLED[event.fate], len(event.messages))
            case Expired():
                counts.count(queue, FlowKind.EXPIRED, len(event.messages))
            case _:
                pass

    return count
