"""The timeline of a message: added, every failed attempt, what was done to it, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from postroom.rules.lifecycle import Stored

if TYPE_CHECKING:
    from postroom.store.admin.message_lookup import FoundMessage

_FIRST = datetime.min.replace(tzinfo=UTC)


class TimelineKind(StrEnum):
    """What happened."""

    ADDED = "added"
    ATTEMPT = "attempt"
    """A send, or a call of a handler, failed."""
    DEAD = "dead"
    SENT = "sent"
    DUPLICATE = "duplicate"
    EXPIRED = "expired"
    ACT = "act"
    """Somebody did something to it: see the audit."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One thing that happened to a message."""

    at: datetime | None
    what: TimelineKind
    text: str
    """In a few words."""
    code: str | None = None
    """The reason code of a failure."""
    detail: str | None = None
    """The error's message, the broker's answer or an operator's reason."""
    worker: str | None = None
    actor: str | None = None
    action: str | None = None


def timeline_of(found: FoundMessage) -> tuple[TimelineEvent, ...]:
    """What is on record about a message, oldest first. Attempts that succeeded have no record but the last one."""
    events = [TimelineEvent(found.message.created_at, TimelineKind.ADDED, f"added to {found.queue}")]
    events += [
        TimelineEvent(
            one.at,
            TimelineKind.ATTEMPT,
            f"attempt {one.attempt} failed",
            code=one.error_code or None,
            detail=one.error_message or None,
            worker=one.worker or None,
        )
        for one in found.attempts
    ]
    events += [
        TimelineEvent(
            entry.at,
            TimelineKind.ACT,
            entry.action.replace("_", " "),
            detail=entry.reason or None,
            actor=entry.actor or None,
            action=entry.action,
        )
        for entry in found.history
    ]
    delivery, receipt = found.delivery, found.receipt
    if receipt is not None:
        what = TimelineKind(receipt.outcome) if receipt.outcome in set(TimelineKind) else TimelineKind.SENT
        events.append(TimelineEvent(receipt.sent_at, what, what.value, detail=receipt.answer))
    elif delivery is not None and delivery.state == Stored.DEAD:
        events.append(
            TimelineEvent(
                delivery.failed_at,
                TimelineKind.DEAD,
                "given up",
                code=delivery.error_code or None,
                detail=delivery.error_message or None,
            )
        )
    return tuple(sorted(events, key=lambda one: (one.at or _FIRST, _ORDER.index(one.what))))


_ORDER = [*TimelineKind]
"""Of what happened at the same moment."""
