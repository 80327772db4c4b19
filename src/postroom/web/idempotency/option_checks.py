"""Options that cannot be what was meant, told apart at the start instead of by the first request."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

from postroom.errors import InvalidSetting

CONFLICTS = (422, 409)
STATUSES = range(100, 1000)


def invalid(name: str, value: object, remedy: str) -> InvalidSetting:
    """What is to be raised for an option with this value."""
    return InvalidSetting(f"{name} = {value!r} is not valid: {remedy}")


def check_names(given: object, known: Collection[str]) -> None:
    """Raise `InvalidSetting` where the options are no mapping, or one of them does not exist."""
    if not isinstance(given, Mapping):
        raise InvalidSetting(f"the options are of the type {type(given).__name__}: give a mapping of names and values")
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise InvalidSetting(f"{name!r} is not an option of the idempotency middleware: {remedy}")


def check_function(name: str, value: object) -> None:
    """A function of the request that answers at once, or none."""
    if value is not None and not callable(value):
        raise invalid(name, value, "use a function of the request")
    if inspect.iscoroutinefunction(value):
        raise invalid(name, value, "use a function without `async`, since it is not awaited")


def check_hook(name: str, value: object) -> None:
    """A listener, or none."""
    if value is not None and not callable(value):
        raise invalid(name, value, "use a function of an event, such as postroom.telemetry.metrics.prometheus()")


def check_choice(name: str, value: object) -> None:
    """Patterns, or a function that tells. Whether each is a pattern is told elsewhere."""
    if callable(value):
        check_function(name, value)
    elif isinstance(value, str):
        raise invalid(name, value, "it is one pattern: give a list of them")
    elif not _is_collection(value, str):
        raise invalid(
            name, value, 'use a list of patterns, such as ["POST /orders/{id}"], or a function of the request'
        )


def check_size(name: str, value: object) -> None:
    """A number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise invalid(name, value, "use a whole number of bytes that is not negative")


def check_seconds(name: str, value: object) -> None:
    """A time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise invalid(name, value, "use a number of seconds that is not negative")


def check_flag(name: str, value: object) -> None:
    """Yes or no."""
    if not isinstance(value, bool):
        raise invalid(name, value, "use True or False")


def check_field(name: str, value: object) -> None:
    """The name of a field of the body, or none."""
    if value is not None and (not isinstance(value, str) or not value):
        raise invalid(name, value, "use the name of a field, or None")


def check_headers(name: str, value: object) -> None:
    """Names of headers, or none."""
    if value is not None and (isinstance(value, str) or not _is_collection(value, str)):
        raise invalid(name, value, 'use a list of names, such as ["Content-Type", "Location"]')


def check_statuses(name: str, value: Any) -> None:
    """Statuses of responses."""
    looked_at = [*value[:1], *value[-1:]] if isinstance(value, range) else value
    if not _is_collection(looked_at, int) or not all(status in STATUSES for status in looked_at):
        raise invalid(name, value, "use a list of statuses or a range, such as [503] or range(500, 600)")


def check_conflict(name: str, value: object) -> None:
    """The status of a conflict."""
    if not isinstance(value, int) or value not in CONFLICTS:
        raise invalid(name, value, "use 422 or 409")


def as_text(name: str, value: object) -> str:
    """What a function of the request has returned. A number is a text too; None might be two different people."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    raise InvalidSetting(
        f"the function {name} returned {'None' if value is None else f'a {type(value).__name__}'}: have it return a "
        "text for every request, and for those whose sender is not known one that nobody else has, such as 'anonymous'"
    )


CHECKS: dict[str, Callable[[str, Any], None]] = {
    "required": check_choice,
    "optional": check_choice,
    "scope": check_function,
    "operation": check_function,
    "body_field": check_field,
    "max_body_bytes": check_size,
    "pass_large_requests": check_flag,
    "max_response_bytes": check_size,
    "kept_headers": check_headers,
    "unrecorded": check_statuses,
    "conflict_status": check_conflict,
    "wait_seconds": check_seconds,
    "hook": check_hook,
}
"""Of each option that is not a setting."""


def _is_collection(value: Any, kind: type) -> bool:
    """Whether it can be looked into again and again, and holds nothing else."""
    return isinstance(value, Collection) and all(isinstance(one, kind) and not isinstance(one, bool) for one in value)
