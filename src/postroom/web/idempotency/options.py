"""The options of the idempotency middleware: one set for ASGI, WSGI and Django."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from postroom.errors import InvalidSetting
from postroom.settings import MEGABYTE, Settings
from postroom.web.idempotency.option_checks import CHECKS, check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from uuid import UUID

    from postroom.telemetry.events import Hook
    from postroom.web.idempotency.routes import Choice
    from postroom.web.requests import Request


class Given(TypedDict, total=False):
    """The options as keywords; `Options` tells what they mean."""

    database: str | None
    schema: str | None
    table_prefix: str | None
    lease_seconds: float | None
    keep_seconds: float | None
    replay_failures: bool | None
    required: Choice
    optional: Choice
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
    """Each has a default. Raises `InvalidSetting` where one has a value that it cannot have."""

    database: str | None = None
    """Its URL; by default that of the settings, as are the next five."""
    schema: str | None = None
    table_prefix: str | None = None
    lease_seconds: float | None = None
    """For how long a run that died holds its key. One that lives renews it."""
    keep_seconds: float | None = None
    """For how long a response can be given again."""
    replay_failures: bool | None = None
    """A request that ended in an exception does not run again."""
    required: Choice = ()
    """Requests that are refused without a key: patterns, or a function of the request."""
    optional: Choice = ("POST", "PATCH")
    """Requests whose key is made use of where they have one."""
    scope: Callable[[Request], str | int | UUID] | None = None
    """Whose key it is. By default its credentials tell, of which a hash is kept; without any it is refused."""
    operation: Callable[[Request], str | int] | None = None
    """What the key is for. By default the pattern's or the framework's route, else method and path."""
    body_field: str | None = "idempotency_key"
    """The field of a JSON object or a form that holds the key where no header does."""
    max_body_bytes: int = MEGABYTE
    """A keyed request with a larger body is refused."""
    pass_large_requests: bool = False
    """It is not refused, but runs as if it had no key."""
    max_response_bytes: int = MEGABYTE
    """A larger response goes to the client as it comes, and cannot be given again."""
    kept_headers: Collection[str] | None = None
    """The response headers that are given again. By default all but cookies, credentials and those of a connection."""
    unrecorded: Collection[int] = ()
    """Statuses of responses after which the request may run again, such as ``range(500, 600)``."""
    conflict_status: int = 422
    """What a key is answered that was used for another request: 422 or 409."""
    wait_seconds: float = 0.0
    """For how long a request waits for its twin, which is running, before it is told to come again."""
    hook: Hook | None = None
    """Is told what became of each keyed request, see `postroom.telemetry.events.Keyed`."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name, check in CHECKS.items():
            check(name, getattr(self, name))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The options as keywords. Raises `InvalidSetting` also where there is no such option."""
        check_names(given, Given.__annotations__)
        return cls(**given)

    def settings(self, *, needs_database: bool = True) -> Settings:
        """The settings in force, with the options that override them. Raises `InvalidSetting`."""
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
