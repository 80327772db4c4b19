"""Taskiq's tasks: write a call's arguments as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taskiq import AsyncTaskiqDecoratedTask
from taskiq.kicker import AsyncKicker

from postroom.encoding import JSON, encode_json
from postroom.errors import InvalidMessage, PayloadNotEncodable
from postroom.tasks.calls import Arguments, TaskCall, topic_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from postroom.tasks.calls import Mask

LIBRARY = "taskiq"
LABELS = "labels"
TASK_ID = "task_id"
_NOT_SENT = "types_of_exceptions"
"""A label that only a worker's own copy of the task is asked for."""


def call_of(
    task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], options: dict[str, Any], mask: Mask | None
) -> TaskCall:
    """The call of a decorated task, or of its ``kicker()``. The options are labels. Raises `InvalidMessage`."""
    if not isinstance(task, AsyncTaskiqDecoratedTask | AsyncKicker):
        raise InvalidMessage(f"task is a {type(task).__name__} of Taskiq: give a decorated task, or its kicker()")
    name = task.task_name
    given = Arguments(tuple(args), dict(kwargs)).masked(mask, topic_of(LIBRARY, name))
    try:
        payload = encode_json({"args": list(given.args), "kwargs": given.kwargs})
    except PayloadNotEncodable as error:
        raise PayloadNotEncodable(f"the arguments of the task {name!r}: {error}") from None
    labels = {label: value for label, value in {**task.labels, **options}.items() if label != _NOT_SENT}
    stored: dict[str, Any] = {LABELS: labels}
    task_id = labels.pop(TASK_ID, None) or getattr(task, "custom_task_id", None)
    if task_id is not None:
        stored[TASK_ID] = str(task_id)
    return TaskCall(library=LIBRARY, name=name, payload=payload, content_type=JSON, options=stored)
