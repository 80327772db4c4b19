"""Looks for the event of a wait. One that cannot be read stays where it is, and stops neither the next nor the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from postroom.errors import SagaNotDecodable
from postroom.saga.data import from_json
from postroom.saga.running.stranded import RETRY_STRANDED
from postroom.store.saga.values import LOST, Event, Lost

if TYPE_CHECKING:
    from uuid import UUID

    from postroom.rules.saga_plan import PlannedStep
    from postroom.saga.running.journal import Journal
    from postroom.saga.steps import Step
    from postroom.store.outbox.leases import Claimed


class Found(NamedTuple):
    """An event, and what its function gets; or none, and what is wrong with those that are there."""

    event: Event | None
    value: Any = None
    unreadable: str = ""


async def find_event(
    journal: Journal, claimed: Claimed, planned: PlannedStep, step: Step[..., Any], due_in: float
) -> Found | Lost:
    """Look for the first event that can be read; if there is none, give up the lease, unless `due_in` is 0 or less.

    Beside one that cannot be read it waits as a stranded instance does: another worker may have the code that reads it.
    """
    after: UUID | None = None
    unreadable = ""
    while True:
        event = await journal.wait(claimed, planned.name, planned.event, due_in, after, unreadable)
        if event is LOST:
            return LOST
        if not isinstance(event, Event):
            return Found(None, unreadable=unreadable)
        try:
            return Found(event, from_json(event.payload, step.event_kind, f"the event of {planned.name!r}"))
        except SagaNotDecodable as error:
            after = event.message_id
            unreadable = (
                f"event {planned.event!r} cannot be read ({error}): deploy code that reads it, or signal another"
            )
            due_in = min(due_in, RETRY_STRANDED)
