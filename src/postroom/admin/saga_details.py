"""Everything about one saga: what was done, what comes next, and what to do if it is stuck."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from postroom.admin.saga_explanations import explanation_of
from postroom.errors import SagaNotDecodable
from postroom.rules.lifecycle import Stored
from postroom.rules.naming import SAGA_FORK_OF
from postroom.rules.saga_failures import COMPENSATION_RETRY, STEP_RETRY
from postroom.rules.saga_plan import Direction, Kind, Run, StepOutcome, Undo, next_move
from postroom.saga.messages import read_start

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from postroom.rules.saga_plan import Plan, PlannedStep
    from postroom.rules.saga_state import SagaState
    from postroom.saga.messages import Start, Tell
    from postroom.store.admin.audit import AuditEntry
    from postroom.store.admin.saga_lookup import FoundSaga, PendingEvent, StepRecord
    from postroom.store.admin.sagas import ListedSaga


@dataclass(frozen=True, slots=True)
class SagaStep:
    """A step or a compensation that is on record."""

    step: str
    direction: Direction
    outcome: StepOutcome
    attempts: int
    at: datetime | None
    """When it ended; of one that waits, when it began."""
    seconds: float | None
    """How long it ran, or waited; None if it did not run."""
    worker: str | None
    """Who ran it; of one that an operator skipped, the operator."""
    error_code: str | None
    error_message: str | None
    result_bytes: int | None
    """How large its result is; None if it has none."""
    result: bytes | None
    """Its result as JSON; None unless it was asked for."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """What comes next: a step that is run or waits, or a compensation."""

    step: str
    direction: Direction
    kind: Kind
    event: str | None
    """What it waits for."""
    attempts: int
    """Failed attempts so far."""
    max_attempts: int
    """How many it has in all, by the code that started the saga."""
    due: datetime | None
    """When it is tried or looked at again; None if that is not a question of time."""
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class SagaDetails:
    """One instance of a saga. Its data, results and events are None unless they were asked for."""

    name: str
    id: str
    position: int
    message_id: UUID
    """Of the message that started it."""
    state: SagaState
    explanation: str
    """Where it stands, in a sentence, and what there is to do."""
    direction: Direction
    plan: Plan
    """The steps that it has followed from its start on; empty if this version cannot read them."""
    steps: tuple[SagaStep, ...]
    """What is on record, in order."""
    next: tuple[NextStep, ...]
    """What comes next: one step, or those of a group that are not done; nothing once it has ended."""
    started_at: datetime | None
    ended_at: datetime | None
    deadline: datetime | None
    failed_step: str | None
    """The step whose failure made it go back."""
    turned_code: str | None
    """Why it went back."""
    turned_message: str | None
    aborted_by: str | None
    owner: str | None
    """The worker that holds it."""
    leased_until: datetime | None
    claims: int
    """Claims since it last made progress."""
    events: tuple[PendingEvent, ...]
    """Received, and not taken by a step yet."""
    parent: Tell | None
    """The saga that is told of its end, and by which event."""
    children: tuple[ListedSaga, ...]
    fork_of: str | None
    """The id of the saga that it was forked from."""
    history: tuple[AuditEntry, ...]
    """What operators did to it, oldest first."""
    data_bytes: int
    data: bytes | None


def plan_of(found: FoundSaga) -> Start | None:
    """What the message says that started it; None if this version cannot read it."""
    try:
        return read_start(found.message.headers)
    except SagaNotDecodable:
        return None


def details_of(found: FoundSaga, children: Sequence[ListedSaga], *, data: bool) -> SagaDetails:
    """What is told about a saga, from what the tables say."""
    saga, delivery, start = found.saga, found.delivery, plan_of(found)
    plan = start.plan if start else ()
    coming = tuple(_coming(found, plan))
    code, text = found.turned_by
    now = next((one.data for one in reversed(found.records) if one.data is not None), found.message.payload)
    held = delivery is not None and delivery.leased
    return SagaDetails(
        name=saga.name,
        id=saga.id,
        position=saga.position,
        message_id=found.message.id,
        state=saga.state,
        explanation=explanation_of(found, coming, readable=start is not None),
        direction=found.direction,
        plan=plan,
        steps=tuple(_step(one, data=data) for one in found.records),
        next=coming,
        started_at=saga.started_at,
        ended_at=saga.ended_at,
        deadline=saga.deadline,
        failed_step=saga.failed_step,
        turned_code=code or None,
        turned_message=text or None,
        aborted_by=saga.aborted_by,
        owner=saga.owner,
        leased_until=delivery.leased_until if delivery and held else None,
        claims=delivery.claims if delivery else 0,
        events=found.events if data else tuple(replace(event, payload=None) for event in found.events),
        parent=start.tell if start else None,
        children=tuple(children),
        fork_of=found.message.headers.get(SAGA_FORK_OF),
        history=found.history,
        data_bytes=len(now or b""),
        data=now if data else None,
    )


def _step(record: StepRecord, *, data: bool) -> SagaStep:
    ran = record.attempts > 0 and record.started_at is not None and record.finished_at is not None
    return SagaStep(
        step=record.step,
        direction=record.direction,
        outcome=record.outcome,
        attempts=record.attempts,
        at=record.finished_at,
        seconds=_seconds(record) if ran else None,
        worker=record.worker or None,
        error_code=record.error_code or None,
        error_message=record.error_message or None,
        result_bytes=None if record.result is None else len(record.result),
        result=record.result if data else None,
    )


def _seconds(record: StepRecord) -> float | None:
    if record.started_at is None or record.finished_at is None or record.outcome is StepOutcome.WAITING:
        return None
    return round(max(0.0, (record.finished_at - record.started_at).total_seconds()), 3)


def _coming(found: FoundSaga, plan: Plan) -> list[NextStep]:
    if found.saga.ended_at is not None or not plan:
        return []
    match next_move(plan, found.direction, found.outcomes):
        case Run(steps=steps):
            return [_next(found, step) for step in steps]
        case Undo(step=step):
            return [_next(found, step)]
        case _:
            return []


def _next(found: FoundSaga, step: PlannedStep) -> NextStep:
    at = found.delivery
    waits = at is not None and at.stored in (Stored.SCHEDULED, Stored.RETRY)
    back = found.direction is Direction.BACK
    return NextStep(
        step=step.name,
        direction=found.direction,
        kind=step.kind,
        event=None if back else step.event or None,
        attempts=at.attempts if at else 0,
        max_attempts=(step.undo_attempts or COMPENSATION_RETRY.max_attempts)
        if back
        else (step.attempts or STEP_RETRY.max_attempts),
        due=at.due if at and waits else None,
        error_code=at.error_code or None if at else None,
        error_message=at.error_message or None if at else None,
    )
