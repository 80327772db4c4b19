"""Where a saga stands, in a sentence for people, and what there is to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.errors import SagaNotDecodable
from postroom.rules.naming import SAGA_PLAN
from postroom.rules.saga_plan import Direction, past_pivot
from postroom.rules.saga_state import SagaState
from postroom.store.saga.plan_header import plan_from_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from postroom.admin.saga_details import NextStep
    from postroom.store.admin.saga_lookup import FoundSaga

    Sentence = Callable[[FoundSaga, Sequence[NextStep]], str]


def explanation_of(found: FoundSaga, coming: Sequence[NextStep], *, readable: bool) -> str:
    """The sentence. `readable`: this version can read its plan."""
    told = EXPLANATIONS[found.saga.state](found, coming)
    return told if readable else f"{told}; this version of Postroom cannot read its plan: use the one that wrote it"


def _started(found: FoundSaga, _coming: Sequence[NextStep]) -> str:
    return f"started at {_moment(found.saga.started_at)}, and {_taken_next(found)}"


def _running(found: FoundSaga, coming: Sequence[NextStep]) -> str:
    return f"{_doing(coming)}{_held_by(found)}"


def _waiting(found: FoundSaga, coming: Sequence[NextStep]) -> str:
    due = found.delivery.due if found.delivery else None
    events = [step.event for step in coming if step.event]
    what = f"waits for event {events[0]!r} until {_moment(due)}" if events else f"sleeps until {_moment(due)}"
    return f"{what}{_nobody(found)}"


def _retrying(found: FoundSaga, coming: Sequence[NextStep]) -> str:
    return f"{_names(coming)} failed{_error(found)}; {_retry(found, coming)}{_nobody(found)}"


def _compensating(found: FoundSaga, coming: Sequence[NextStep]) -> str:
    at = found.delivery
    if at is not None and at.error_code and not at.leased:
        now = f"undoing {_names(coming)} failed{_error(found)}; {_retry(found, coming)}{_nobody(found)}"
    else:
        now = f"{_doing(coming)}{_held_by(found)}"
    return f"goes back, because {_why_back(found)}: {now}"


def _parked(found: FoundSaga, coming: Sequence[NextStep]) -> str:
    place = f"{found.saga.name} {found.saga.id}"
    if found.delivery is None:
        return (
            "has no delivery, so that neither workers nor lists find it: somebody deleted that row. Run `postroom "
            f"sagas resume {place}` to restore it and go on"
        )
    what = f"undoing {_names(coming)}" if found.direction is Direction.BACK else _names(coming)
    back = f" It goes back, because {_why_back(found)}." if found.direction is Direction.BACK else ""
    abort = (
        f"; or make sure that it has not happened and run `postroom sagas abort {place}`" if _may_abort(found) else ""
    )
    return (
        f"{what} failed for good{_error(found)}.{back} Remove the cause and run `postroom sagas resume {place}`; or do "
        f"it by hand and run `postroom sagas skip {place}`{abort}"
    )


def _may_abort(found: FoundSaga) -> bool:
    """Whether a parked one can still be undone: it is parked at its pivot, not behind it."""
    try:
        plan = plan_from_header(found.message.headers.get(SAGA_PLAN, ""))
    except SagaNotDecodable:
        return False
    return found.direction is Direction.FORWARD and not past_pivot(plan, found.outcomes)


def _stranded(found: FoundSaga, _coming: Sequence[NextStep]) -> str:
    text = found.delivery.error_message if found.delivery else ""
    return (
        f"needs code that no worker has: {text or 'a step is missing'}. Deploy it again, under @saga.retired if new "
        f"sagas do without it; it then goes on by itself, and no attempt is lost. It is looked at again at "
        f"{_moment(found.delivery.due if found.delivery else None)}"
    )


def _completed(found: FoundSaga, _coming: Sequence[NextStep]) -> str:
    return f"completed at {_moment(found.saga.ended_at)}"


def _compensated(found: FoundSaga, _coming: Sequence[NextStep]) -> str:
    return f"undone at {_moment(found.saga.ended_at)}, because {_why_back(found)}"


def _why_back(found: FoundSaga) -> str:
    code, text = found.turned_by
    if found.saga.aborted_by:
        return f"{found.saga.aborted_by} aborted it{_said(code, text)}"
    failed = f"{found.saga.failed_step} failed" if found.saga.failed_step else "it failed"
    return f"{failed}{_said(code, text)}"


def _doing(coming: Sequence[NextStep]) -> str:
    if not coming:
        return "at its end"
    return f"{'undoing' if coming[0].direction is Direction.BACK else 'at'} {_names(coming)}"


def _names(coming: Sequence[NextStep]) -> str:
    return " and ".join(step.step for step in coming) or "a step"


def _retry(found: FoundSaga, coming: Sequence[NextStep]) -> str:
    at = found.delivery
    if at is None or at.due is None:
        return "it is tried again at once"
    of = f" of {coming[0].max_attempts}" if len(coming) == 1 else ""
    return f"attempt {at.attempts + 1}{of} is at {_moment(at.due)}"


def _held_by(found: FoundSaga) -> str:
    at = found.delivery
    if at is None or not at.leased:
        return f"; {_taken_next(found)}"
    alive = any(worker.name == at.owner for worker in found.workers)
    gone = "" if alive else ", which is not alive: another one takes it then"
    return f", held until {_moment(at.leased_until)} by {at.owner}{gone}"


def _taken_next(found: FoundSaga) -> str:
    return f"no worker is alive for it: {_start()}" if not found.workers else "a worker takes it next"


def _nobody(found: FoundSaga) -> str:
    return "" if found.workers else f"; no worker is alive for it: {_start()}"


def _start() -> str:
    return "start one with `postroom relay --app`"


def _error(found: FoundSaga) -> str:
    at = found.delivery
    return _said(at.error_code, at.error_message) if at else ""


def _said(code: str, text: str) -> str:
    return f" ({f'{code} {text}'.strip()})" if code or text else ""


def _moment(moment: datetime | None) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC") if moment else "an unknown time"


EXPLANATIONS: dict[SagaState, Sentence] = {
    SagaState.STARTED: _started,
    SagaState.RUNNING: _running,
    SagaState.WAITING: _waiting,
    SagaState.RETRYING: _retrying,
    SagaState.COMPENSATING: _compensating,
    SagaState.PARKED: _parked,
    SagaState.STRANDED: _stranded,
    SagaState.COMPLETED: _completed,
    SagaState.COMPENSATED: _compensated,
}
