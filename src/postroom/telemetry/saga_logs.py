"""Log lines of sagas: their names, ids, steps and codes; never data, results or texts of errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from postroom.telemetry.events import one_word
from postroom.telemetry.saga_events import (
    EndedStep,
    SagaEvent,
    SagaParked,
    SagasEnded,
    SagaSignalled,
    SagaStranded,
    SagaTurned,
    SignalEnd,
    StepEnd,
    StepsEnded,
)
from postroom.telemetry.tracebacks import raised_at, written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.telemetry.logs import Line

_STEP_LEVELS = {
    StepEnd.DONE: "debug",
    StepEnd.SKIPPED: "debug",
    StepEnd.RETRY: "warning",
    StepEnd.FAILED: "warning",
    StepEnd.LOST: "warning",
}
_SIGNAL_LEVELS = {
    SignalEnd.DELIVERED: "info",
    SignalEnd.LATE: "warning",
    SignalEnd.UNKNOWN: "warning",
    SignalEnd.DEAD: "error",
}


def saga_lines(event: SagaEvent, tracebacks: bool) -> Iterator[Line]:  # noqa: FBT001 - passed on
    """The lines of an event."""
    match event:
        case StepsEnded():
            for step in event.steps:
                trace = {"exception": written(step.error)} if tracebacks and step.error else {}
                yield _STEP_LEVELS[step.end], f"saga_step_{step.end}", {**step_fields(event.saga, step), **trace}
        case SagasEnded():
            from postroom.rules.saga_plan import SagaOutcome  # which a relay without sagas need not load

            for one in event.ended:
                done = one.outcome is SagaOutcome.COMPLETED
                fields = {"saga": event.saga, "saga_id": one.id, "took_ms": round(one.seconds * 1000, 1)}
                yield "info" if done else "warning", f"saga_{one.outcome.name.lower()}", fields
        case SagaTurned():
            yield "warning", "saga_turned", _failed(event)
        case SagaParked():
            more = {"direction": event.direction.name.lower(), "attempts": event.attempts}
            yield "error", "saga_parked", {**_failed(event), **more}
        case SagaStranded():
            yield "error", "saga_stranded", {**_failed(event), "cure": event.cure}
        case SagaSignalled():
            fields = {"saga": event.saga, "saga_id": event.id, "signal": event.event}
            yield _SIGNAL_LEVELS[event.end], f"saga_signal_{event.end}", fields
        case _:
            assert_never(event)


def step_fields(saga: str, step: EndedStep) -> dict[str, Any]:
    """What is logged of an attempt; if its function failed, also the error's class and where it was raised."""
    fields: dict[str, Any] = {"saga": saga, "saga_id": step.id, "step": step.step}
    fields |= {"direction": step.direction.name.lower(), "attempts": step.attempts}
    fields["took_ms"] = round(step.seconds * 1000, 1)
    if step.code:
        fields["reason_code"] = one_word(step.code)
    if step.error is not None:
        fields["error"] = type(step.error).__name__
        where = raised_at(step.error)
        fields |= {"where": where} if where else {}
    return fields


def _failed(event: SagaTurned | SagaParked | SagaStranded) -> dict[str, Any]:
    fields = {"saga": event.saga, "saga_id": event.id, "step": event.step, "reason_code": one_word(event.code)}
    return {name: value for name, value in fields.items() if value}
