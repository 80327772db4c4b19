"""Results about sagas in the form that `--json` prints."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.admin.saga_details import NextStep, SagaDetails, SagaStep
    from postroom.admin.saga_results import SagaActResult
    from postroom.rules.saga_plan import PlannedStep
    from postroom.store.admin.sagas import SagaCount

DONE = {"resume": "resumed", "skip": "skipped", "abort": "aborted"}
"""What an act has done."""


def saga_json(told: SagaDetails, *, payload: bool) -> dict[str, Any]:
    """One saga; with its data, results and events, if they were read and are wanted."""
    parent = told.parent
    found = {
        "name": told.name,
        "id": told.id,
        "state": told.state.value,
        "explanation": told.explanation,
        "direction": told.direction.name.lower(),
        "position": told.position,
        "message_id": str(told.message_id),
        "started_at": told.started_at,
        "ended_at": told.ended_at,
        "deadline": told.deadline,
        "failed_step": told.failed_step,
        "turned_code": told.turned_code,
        "turned_message": told.turned_message,
        "aborted_by": told.aborted_by,
        "owner": told.owner,
        "leased_until": told.leased_until,
        "claims": told.claims,
        "data_bytes": told.data_bytes,
        "parent": None if parent is None else {"name": parent.name, "id": parent.id, "event": parent.event},
        "fork_of": told.fork_of,
        "children": [{"name": one.name, "id": one.id, "state": one.state.value} for one in told.children],
        "plan": [_planned(step) for step in told.plan],
        "steps": [_step(step, payload=payload) for step in told.steps],
        "next": [_next(step) for step in told.next],
        "events": [
            {"name": event.name, "message_id": event.message_id, "received_at": event.received_at}
            | ({"payload": _value(event.payload)} if payload else {})
            for event in told.events
        ],
        "history": [
            {"at": entry.at, "action": entry.action, "actor": entry.actor, "reason": entry.reason}
            for entry in told.history
        ],
    }
    return {**found, "data": _value(told.data)} if payload else found


def acted_json(result: SagaActResult) -> dict[str, Any]:
    """How many it was done to, and why it was not done to the others."""
    not_done = {f"{one.name} {one.id}": one.reason for one in result.refused}
    return {DONE[result.action]: result.count, "not_done": not_done}


def counts_json(counts: Sequence[SagaCount]) -> dict[str, dict[str, int]]:
    """By name, and then by state."""
    by_name: dict[str, dict[str, int]] = {}
    for one in counts:
        by_name.setdefault(one.name, {})[one.state.value] = one.count
    return by_name


def _planned(step: PlannedStep) -> dict[str, Any]:
    return {**asdict(step), "kind": step.kind.value}


def _step(step: SagaStep, *, payload: bool) -> dict[str, Any]:
    return {
        "step": step.step,
        "direction": step.direction.name.lower(),
        "outcome": step.outcome.name.lower(),
        "attempts": step.attempts,
        "at": step.at,
        "seconds": step.seconds,
        "worker": step.worker,
        "error_code": step.error_code,
        "error_message": step.error_message,
        "result_bytes": step.result_bytes,
    } | ({"result": _value(step.result)} if payload else {})


def _next(step: NextStep) -> dict[str, Any]:
    return {**asdict(step), "direction": step.direction.name.lower(), "kind": step.kind.value}


def _value(stored: bytes | None) -> Any:
    """Data as it is: JSON, or text where it is none."""
    if stored is None:
        return None
    try:
        return json.loads(stored)
    except ValueError:
        return stored.decode("utf-8", "backslashreplace")
