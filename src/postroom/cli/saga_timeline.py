"""One saga for people: where it stands, what was done and when, and what comes next."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import TYPE_CHECKING

from postroom.cli.output import duration, print_table, print_text, shown
from postroom.rules.saga_plan import Direction, StepOutcome
from postroom.rules.saga_state import SagaState

if TYPE_CHECKING:
    from datetime import datetime

    from postroom.admin import NextStep, SagaDetails, SagaStep
    from postroom.rules.saga_plan import Plan

DONE, UNDONE, FAILED, SKIPPED, NEXT = "✓", "↩", "✗", "-", "…"
PLAIN = {DONE: "+", UNDONE: "<", FAILED: "x", NEXT: "."}
"""For terminals whose encoding lacks them."""
TITLES = ("", "step", "at (UTC)", "took", "attempt", "")
MOST_EVENTS = 20


def print_saga(told: SagaDetails) -> None:
    """Print everything but data, results and the payloads of events."""
    held = f"   held by {told.owner}" if told.owner else ""
    print_text(shown(f"{told.name} {told.id}   {told.state}{held}"), style="bold")
    print_text(f"{shown(told.explanation)}\n")
    rows = [_done(step) for step in _in_order(told) if step.outcome is not StepOutcome.WAITING]
    rows += [_coming(told, step) for step in told.next]
    if rows:
        print_table(TITLES, rows, right=("took", "attempt"))
        print_text("")
    print_table(("field", "value"), [(name, value) for name, value in _facts(told).items() if value])
    if told.events:
        print_text("\nevents that no step has taken yet:")
        events = [(event.name, event.received_at, event.message_id) for event in told.events[:MOST_EVENTS]]
        print_table(("event", "received (UTC)", "message"), events)
        if len(told.events) > MOST_EVENTS:
            print_text(f"and {len(told.events) - MOST_EVENTS:,} more, which `--json` lists")
    if told.history:
        print_text("")
        history = [(entry.at, entry.action, entry.actor, entry.reason) for entry in told.history]
        print_table(("at (UTC)", "act", "by", "why"), history)


def print_data(found: dict[str, object]) -> None:
    """Print what `--data` asks for, as `--json` has it."""
    import json

    values = {"data": found["data"]}
    values |= {f"result of {step['step']}": step["result"] for step in found["steps"] if step["result"] is not None}  # type: ignore[attr-defined]
    values |= {f"event {event['name']}": event["payload"] for event in found["events"]}  # type: ignore[attr-defined]
    for title, value in values.items():
        print_text(f"\n{shown(title)}:")
        print_text("\n".join(map(shown, json.dumps(value, indent=2).splitlines())))


def _facts(told: SagaDetails) -> dict[str, object]:
    parent = told.parent
    return {
        "started": _moment(told.started_at),
        "ended": _moment(told.ended_at),
        "deadline": _moment(told.deadline),
        "message": str(told.message_id),
        "plan": " → ".join(_stages(told.plan)) if _encodable("→") else "",
        "data": f"{told.data_bytes:,} bytes",
        "leased until": _moment(told.leased_until),
        "claims": str(told.claims) if told.claims > 1 else "",
        "parent": f"{parent.name} {parent.id}, which is told by event {parent.event!r}" if parent else "",
        "children": ", ".join(f"{one.name} {one.id} ({one.state})" for one in told.children),
        "forked from": told.fork_of or "",
    }


def _stages(plan: Plan) -> list[str]:
    """The steps of a plan; those of a group, which run at the same time, as one: ``(ask_bank + ask_warehouse)``."""
    stages: list[str] = []
    for group, steps in groupby(plan, lambda one: one.group):
        names = [one.name for one in steps]
        stages += [f"({' + '.join(names)})"] if group else names
    return stages


def _in_order(told: SagaDetails) -> list[SagaStep]:
    """As the plan has them, so that a group's steps do not change places; what was undone comes last, as it was."""
    places = {step.name: place for place, step in enumerate(told.plan)}
    forward = [step for step in told.steps if step.direction is Direction.FORWARD]
    back = [step for step in told.steps if step.direction is Direction.BACK]
    return sorted(forward, key=lambda step: places.get(step.step, len(places))) + back


def _done(step: SagaStep) -> tuple[str, ...]:
    back = step.direction is Direction.BACK
    match step.outcome:
        case StepOutcome.SKIPPED:
            mark, text = SKIPPED, f"{'undo ' if back else ''}skipped{_why_skipped(step, back=back)}"
        case StepOutcome.FAILED:
            mark, text = FAILED, _error(step.error_code, step.error_message)
        case _:
            mark, text = UNDONE if back else DONE, ""
    attempt = str(step.attempts) if step.attempts else ""
    return _mark(mark), step.step, _clock(step.at), duration(step.seconds), attempt, text


def _coming(told: SagaDetails, step: NextStep) -> tuple[str, ...]:
    what = "undo: " if step.direction is Direction.BACK else ""
    error = _error(step.error_code, step.error_message)
    match told.state:
        case SagaState.PARKED:
            text = f"parked, {error}"
        case SagaState.STRANDED:
            text = "stranded, no worker has its code"
        case SagaState.WAITING:
            text = f"waits for {step.event}" if step.event else "sleeps"
            text += f" until {_moment(step.due)}" if step.due else ""
        case _ if step.attempts or error:
            attempt = f"attempt {step.attempts + 1} of {step.max_attempts}"
            text = f"{attempt} {f'at {_moment(step.due)}' if step.due else 'now'}, {error}"
        case _:
            text = "runs" if told.owner else "comes next"
    return _mark(NEXT), step.step, "", "", "", f"{what}{text}"


def _why_skipped(step: SagaStep, *, back: bool) -> str:
    if not step.error_code:
        return ": it was refused, so there is nothing to undo" if back else ": its condition said no"
    return f" by {step.worker}{f': {step.error_message}' if step.error_message else ''}"


def _error(code: str | None, text: str | None) -> str:
    return f"{code or ''} {text or ''}".strip()


def _moment(moment: datetime | None) -> str:
    return f"{shown(moment)} UTC" if moment else ""


def _clock(moment: datetime | None) -> str:
    return shown(moment) if moment else ""


def _mark(mark: str) -> str:
    return mark if _encodable(mark) else PLAIN.get(mark, mark)


def _encodable(text: str) -> bool:
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
