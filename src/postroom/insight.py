"""Insight: read-only figures for the command line, pages and probes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from postroom.rules.lifecycle import State
    from postroom.store.steps import Steps
    from postroom.store.watching import Watching


@dataclass(frozen=True, slots=True)
class Status:
    """How many messages are in which state, and how long the oldest that could leave has waited."""

    pending: int
    sending: int
    waiting: int
    dead: int
    sent: int
    expired: int
    held: int
    """Pending behind a failed or dead message of their key; counted in `pending` too."""
    oldest_pending_seconds: float


def status(watching: Watching) -> Steps[Status]:
    """The figures of the whole outbox."""
    counts = yield from watching.counts()
    held = yield from watching.held()
    oldest = yield from watching.oldest_pending()
    return Status(
        **{state.value: count for state, count in counts.items()}, held=held, oldest_pending_seconds=round(oldest, 3)
    )


def messages(
    watching: Watching, state: State | None = None, limit: int = 50, before: int | None = None
) -> Steps[list[dict[str, Any]]]:
    """Messages, newest first, without their payloads."""
    return (yield from watching.messages(state, limit, before))
