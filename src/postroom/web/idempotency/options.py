"""The options of the idempotency middleware: one set for ASGI, WSGI and Django, checked when the application starts."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict
from uuid import UUID

from postroom.errors import InvalidSetting
from postroom.settings import MEGABYTE, Settings

if TYPE_CHECKING:
    from postroom.telemetry.events import Hook
    from postroom.web.idempotency.routes import Patterns
    from postroom.web.requests import Request


class OptionArguments(TypedDict, total=False):
    """The options as keyword arguments. `Options` explains them."""

    database: str | None
    schema: str | None
    table_prefix: str | None
    lease_seconds: float | None
    keep_seconds: float | None
    replay_failures: bool | None
    required: Patterns
    optional: Patterns
    scope: Callable[[Request], str | int | UUID] | None
    operation: Callable[[Request], str | int] | None
    body_field: str | None
    max_body_bytes: int
    pass_large_requests: bool
    max_response_bytes: int
    kept_headers: Collection[str] | None
    unrecorded: Collection[int]
    conflict_status: int
    wait_seconds: float
    hook: Hook | None


@dataclass(frozen=True, kw_only=True)
class Options:
    """Each has a default. Raises `InvalidSetting` for an invalid value."""

    database: str | None = None
    """Its URL. By default the settings decide, as for the next five."""
    schema: str | None = None
    table_prefix: str | None = None
    lease_seconds: float | None = None
    """How long a run that died holds its key. A living one renews its lease."""
    keep_seconds: float | None = None
    """How long a response can be replayed."""
    replay_failures: bool | None = None
    """A request that ended in an exception does not run again."""
    required: Patterns = ()
    """Requests that are refused without a key: patterns, or a function of the request."""
    optional: Patterns = ("POST", "PATCH")
    """Requests that may have a key."""
    scope: Callable[[Request], str | int | UUID] | None = None
    """Whose key it is. By default a hash of the request's credentials; a request without any is refused."""
    operation: Callable[[Request], str | int] | None = None
    """What the key is for. By default the pattern's or the framework's route, else method and path."""
    body_field: str | None = "idempotency_key"
    """The field of a JSON object or a form that holds the key if no header does."""
    max_body_bytes: int = MEGABYTE
    """A keyed request with a larger body is refused."""
    pass_large_requests: bool = False
    """Instead of being refused, it runs as if it had no key."""
    max_response_bytes: int = MEGABYTE
    """A larger response is streamed to the client, and cannot be replayed."""
    kept_headers: Collection[str] | None = None
    """The response headers to replay. By default all but cookies, credentials and those of a connection."""
    unrecorded: Collection[int] = ()
    """Statuses of responses after which the request may run again, such as ``range(500, 600)``."""
    conflict_status: int = 422
    """The status for a key that was used for another request: 422 or 409."""
    wait_seconds: float = 0.0
    """How long a request waits while the same request is running, before it is told to come again."""
    hook: Hook | None = None
    """Receives a `postroom.telemetry.events.Keyed` for each keyed request."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        for name, remedy_for in _CHECKS.items():
            value = getattr(self, name)
            if (remedy := remedy_for(value)) is not None:
                raise InvalidSetting(f"{name} = {value!r} is not valid: {remedy}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options from keyword arguments. Raises `InvalidSetting` for an unknown one, too."""
        if not isinstance(given, Mapping):
            raise InvalidSetting(
                f"the options are of the type {type(given).__name__}: give a mapping of names and values"
            )
        known = OptionArguments.__annotations__
        for name in given:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, 1)
                remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise InvalidSetting(f"{name!r} is not an option of the idempotency middleware: {remedy}")
        return cls(**given)

    def settings(self, *, needs_database: bool = True) -> Settings:
        """The settings in force, overridden by the options. Raises `InvalidSetting`."""
        settings = Settings.load(
            database=self.database,
            schema=self.schema,
            table_prefix=self.table_prefix,
            idempotency_lease_sec=self.lease_seconds,
            idempotency_keep_sec=self.keep_seconds,
            replay_failures=self.replay_failures,
        )
        if needs_database and settings.database is None:
            raise InvalidSetting(
                "no database is given: use database=URL or set POSTROOM_DATABASE, for example to sqlite:///app.db"
            )
        return settings


def as_text(name: str, value: object) -> str:
    """What the function `name` has returned for a request, as text. Raises `InvalidSetting` for anything else.

    None is refused: it may stand for two different people.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    raise InvalidSetting(
        f"the function {name} returned {'None' if value is None else f'a {type(value).__name__}'}: have it return a "
        "text for every request; for requests of unknown senders a text that nobody else has, such as 'anonymous'"
    )


def _function(value: object) -> str | None:
    if value is not None and not callable(value):
        return "use a function of the request"
    return "use a function without `async`, since it is not awaited" if inspect.iscoroutinefunction(value) else None


def _hook(value: object) -> str | None:
    is_valid = value is None or callable(value)
    return None if is_valid else "use a function of an event, such as postroom.telemetry.metrics.prometheus()"


def _patterns(value: object) -> str | None:
    if callable(value):
        return _function(value)
    if isinstance(value, str):
        return "it is one pattern: give a list of them"
    is_valid = _is_collection(value, str)
    return None if is_valid else 'use a list of patterns, such as ["POST /orders/{id}"], or a function of the request'


def _size(value: object) -> str | None:
    is_valid = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return None if is_valid else "use a whole number of bytes that is not negative"


def _seconds(value: object) -> str | None:
    is_valid = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
    return None if is_valid else "use a number of seconds that is not negative"


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "use True or False"


def _field(value: object) -> str | None:
    is_valid = value is None or (isinstance(value, str) and value != "")
    return None if is_valid else "use the name of a field, or None"


def _headers(value: object) -> str | None:
    is_valid = value is None or (not isinstance(value, str) and _is_collection(value, str))
    return None if is_valid else 'use a list of names, such as ["Content-Type", "Location"]'


def _statuses(value: Any) -> str | None:
    ends = [*value[:1], *value[-1:]] if isinstance(value, range) else value
    is_valid = _is_collection(ends, int) and all(status in range(100, 1000) for status in ends)
    return None if is_valid else "use a list of statuses or a range, such as [503] or range(500, 600)"


def _conflict(value: object) -> str | None:
    return None if isinstance(value, int) and value in {422, 409} else "use 422 or 409"


def _is_collection(value: Any, kind: type) -> bool:
    """Whether it can be searched again and again, and holds nothing else."""
    return isinstance(value, Collection) and all(isinstance(one, kind) and not isinstance(one, bool) for one in value)


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "required": _patterns,
    "optional": _patterns,
    "scope": _function,
    "operation": _function,
    "body_field": _field,
    "max_body_bytes": _size,
    "pass_large_requests": _flag,
    "max_response_bytes": _size,
    "kept_headers": _headers,
    "unrecorded": _statuses,
    "conflict_status": _conflict,
    "wait_seconds": _seconds,
    "hook": _hook,
}
"""For each option that is not a setting: what to use instead of an invalid value, None for a valid one."""
