"""All settings, validated: flag > environment > postroom.toml > [tool.postroom] in pyproject.toml > default.

What a framework has for settings comes before the environment (`provide`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec

from postroom.errors import InvalidSetting

MEGABYTE = 1024 * 1024
HOUR = 3600
MOST_DAYS = 36_500
MOST_PORT = 65_535
LEAST_LOAD = 0.01
Word = msgspec.Meta(min_length=1, max_length=255)
Pause = Annotated[float, msgspec.Meta(ge=0, le=365 * 24 * HOUR)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each field is a setting; `ENVIRONMENT` has the names of its environment variables.

    ``<variable>_FILE`` may name a file with the value instead, as containers are given their secrets.
    """

    database: str | None = None
    schema: str | None = None
    table_prefix: str | None = None
    max_payload_bytes: Annotated[int, msgspec.Meta(ge=1)] = MEGABYTE
    notify: bool = False
    cdc: bool = False
    cdc_max_wal_bytes: Annotated[int, msgspec.Meta(ge=MEGABYTE)] | None = None
    broker: str | None = None
    brokers: dict[Annotated[str, Word], str] = {}
    routes: dict[Annotated[str, Word], Annotated[str, Word]] = {}
    default_topic: Annotated[str, Word] = "events.default"
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=256)] = 4
    batch: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    saga_concurrency: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 16
    poll_interval_sec: Annotated[float, msgspec.Meta(gt=0, le=HOUR)] = 0.5
    lock_lease_sec: Annotated[float, msgspec.Meta(ge=1, le=24 * HOUR)] = 120.0
    lane_lease_sec: Annotated[float, msgspec.Meta(ge=1, le=24 * HOUR)] = 15.0
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 6
    backoff_sec: Annotated[tuple[Pause, ...], msgspec.Meta(min_length=1)] = (5, 10, 20, 40, 80, 160)
    broker_timeout_ms: Annotated[float, msgspec.Meta(gt=0, le=1000 * HOUR)] = 2500
    max_in_flight_bytes: Annotated[int, msgspec.Meta(ge=1)] = 16 * MEGABYTE
    order: Literal["hold", "skip"] = "hold"
    dedup: bool = False
    enabled: bool = True
    retention_days: Annotated[int, msgspec.Meta(ge=0, le=MOST_DAYS)] = 7
    inbox_retention_days: Annotated[int, msgspec.Meta(ge=0, le=MOST_DAYS)] = 7
    audit_retention_days: Annotated[int, msgspec.Meta(ge=0, le=MOST_DAYS)] = 365
    cleanup_every_sec: Annotated[float, msgspec.Meta(ge=1, le=MOST_DAYS * 24 * HOUR)] | None = None
    cleanup_load: Annotated[float, msgspec.Meta(ge=LEAST_LOAD, le=1)] = 0.25
    idempotency_lease_sec: Annotated[float, msgspec.Meta(ge=1, le=24 * HOUR)] = 30.0
    idempotency_keep_sec: Annotated[float, msgspec.Meta(ge=1, le=MOST_DAYS * 24 * HOUR)] = 24.0 * HOUR
    replay_failures: bool = False
    http_port: Annotated[int, msgspec.Meta(ge=1, le=MOST_PORT)] | None = None
    http_host: Annotated[str, Word] = "127.0.0.1"
    dashboard_token: str | None = None
    trace_link: str | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] | None = None
    tracebacks: bool | None = None

    @classmethod
    def load(cls, **overrides: Any) -> Settings:
        """The settings in force. None overrides nothing. Raises `InvalidSetting`, which names the source."""
        values: dict[str, Any] = {}
        provided = [(source, given()) for source, given in _PROVIDED.items()]
        for source, found in (*_files(Path.cwd()), *_environment(os.environ), *provided, ("an argument", overrides)):
            given = {name: _value(name, value) for name, value in found.items() if value is not None}
            _convert(source, given)
            values |= given
        return msgspec.convert(values, cls, strict=False)


_PROVIDED: dict[str, Callable[[], Mapping[str, Any]]] = {}
COMMAND_LINE = "the command line"


def provide(source: str, given: Callable[[], Mapping[str, Any]]) -> None:
    """Have `Settings.load` ask this function too: what it returns comes before the environment.

    Of several sources, the one that was first named last comes first.
    """
    _PROVIDED[source] = given


@contextmanager
def provided(source: str, values: Mapping[str, Any]) -> Iterator[None]:
    """`provide` these values inside the block."""
    provide(source, lambda: values)
    try:
        yield
    finally:
        del _PROVIDED[source]


class SettingsOverrides(TypedDict, total=False):
    """Settings that code gives by name. None leaves the setting in force.

    Every field of `Settings` but those that callers name themselves: `database`, `broker`, `brokers` and `batch`.
    """

    schema: str | None
    table_prefix: str | None
    max_payload_bytes: int | None
    notify: bool | None
    cdc: bool | None
    cdc_max_wal_bytes: int | None
    routes: Mapping[str, str] | None
    default_topic: str | None
    concurrency: int | None
    saga_concurrency: int | None
    poll_interval_sec: float | None
    lock_lease_sec: float | None
    lane_lease_sec: float | None
    max_attempts: int | None
    backoff_sec: Sequence[float] | None
    broker_timeout_ms: float | None
    max_in_flight_bytes: int | None
    order: Literal["hold", "skip"] | None
    dedup: bool | None
    enabled: bool | None
    retention_days: int | None
    inbox_retention_days: int | None
    audit_retention_days: int | None
    cleanup_every_sec: float | None
    cleanup_load: float | None
    idempotency_lease_sec: float | None
    idempotency_keep_sec: float | None
    replay_failures: bool | None
    http_port: int | None
    http_host: str | None
    dashboard_token: str | None
    trace_link: str | None
    log_level: Literal["debug", "info", "warning", "error"] | None
    log_format: Literal["json", "text"] | None
    tracebacks: bool | None


PREFIX = "POSTROOM_"
_OTHER_NAMES = {
    "concurrency": "OUTBOX_CONCURRENCY",
    "batch": "OUTBOX_BATCH",
    "poll_interval_sec": "OUTBOX_POLL_INTERVAL_SEC",
    "lock_lease_sec": "OUTBOX_LOCK_LEASE_SEC",
    "lane_lease_sec": "OUTBOX_LANE_LEASE_SEC",
    "max_attempts": "OUTBOX_MAX_ATTEMPTS",
    "backoff_sec": "OUTBOX_BACKOFF_SEC",
    "broker_timeout_ms": "BROKER_TIMEOUT_MS",
    "max_in_flight_bytes": "OUTBOX_MAX_IN_FLIGHT_BYTES",
    "order": "OUTBOX_ORDER",
    "dedup": "OUTBOX_DEDUP",
    "enabled": "OUTBOX_ENABLED",
    "retention_days": "OUTBOX_RETENTION_DAYS",
    "inbox_retention_days": "INBOX_RETENTION_DAYS",
    "cleanup_every_sec": "OUTBOX_CLEANUP_EVERY_SEC",
    "idempotency_lease_sec": "IDEMPOTENCY_LEASE_SEC",
    "idempotency_keep_sec": "IDEMPOTENCY_KEEP_SEC",
    "replay_failures": "IDEMPOTENCY_REPLAY_FAILURES",
    "http_port": "OUTBOX_HTTP_PORT",
    "http_host": "OUTBOX_HTTP_HOST",
}
"""Other variables for settings, named as in other outboxes. `POSTROOM_…` wins if both are set."""
ENVIRONMENT = {
    name: tuple(filter(None, (PREFIX + name.upper(), _OTHER_NAMES.get(name)))) for name in Settings.__struct_fields__
}
"""The variables of each setting; the first one wins."""

Source = tuple[str, Mapping[str, Any]]

_KNOWN = {
    "POSTROOM_SUPERVISED",  # set by `relay --processes` for its children
    *(f"{name}{end}" for names in ENVIRONMENT.values() for name in names for end in ("", "_FILE")),
}
_SERVICE = re.compile(r"POSTROOM_(?:\w+_)?(?:SERVICE_(?:HOST|PORT)\w*|PORT(?:_\d+_(?:TCP|UDP)\w*)?)")
"""Variables that Kubernetes sets in every container if there is a service whose name begins with postroom."""
_SECRETS = frozenset({"database", "broker", "brokers", "dashboard_token"})
"""Settings whose values may hold passwords."""
_TYPES = {field.name: field.type for field in msgspec.structs.fields(Settings)}
_CHOICES: dict[Any, str] = {
    bool: "use true or false",
    bool | None: "use true or false",
    Literal["hold", "skip"]: "use hold or skip",
    Literal["debug", "info", "warning", "error"]: "use debug, info, warning or error",
    Literal["json", "text"] | None: "use json or text",
}
"""What to say if a value is not one of the allowed ones."""
_WRITTEN = {"brokers": "write PATTERN=URL, several separated by white space, or a table of patterns and URLs"}
"""What to say if a value is not in the right form."""


def _convert(source: str, values: Mapping[str, Any]) -> None:
    """Refuse values of the wrong type or range, and name their source."""
    for name, value in values.items():
        try:
            msgspec.convert({name: value}, Settings, strict=False)
        except msgspec.ValidationError as error:
            if name not in Settings.__struct_fields__:
                raise InvalidSetting(f"{source}: there is no setting {name!r}; {_meant(name)}") from None
            shown = "(hidden)" if name in _SECRETS else repr(value)
            reason = _WRITTEN.get(name) or _CHOICES.get(_TYPES[name]) or str(error).partition(" - at ")[0]
            raise InvalidSetting(f"{source}: {name} = {shown} is not valid: {reason}") from None


def _meant(name: str) -> str:
    """The setting that an unknown name was probably meant to be; otherwise all settings."""
    from difflib import get_close_matches

    near = get_close_matches(name, Settings.__struct_fields__, 1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(Settings.__struct_fields__)}"


def _files(folder: Path) -> list[Source]:
    """The settings files of the working directory, weakest first."""
    found: list[Source] = []
    tools = _toml(folder / "pyproject.toml").get("tool")
    pyproject = tools.get("postroom", {}) if isinstance(tools, dict) else {}
    for source, values in (
        ("pyproject.toml [tool.postroom]", pyproject),
        ("postroom.toml", _toml(folder / "postroom.toml")),
    ):
        if not isinstance(values, dict):
            raise InvalidSetting(f"{source} is not a table: write one setting a line below it")
        found.append((source, {name.replace("-", "_"): value for name, value in values.items()}))
    return found


def _toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidSetting(f"{path.name} cannot be read: {_why(error)}") from None


def _environment(variables: Mapping[str, str]) -> list[Source]:
    """Settings from variables and the files that they name, weakest first. Warns about unknown POSTROOM variables."""
    for variable in unknown_variables(variables):
        _warn_of(variable)
    found: list[Source] = []
    for name, names in ENVIRONMENT.items():
        for variable in reversed(names):
            if variable in variables and not _is_service(variable, variables[variable]):
                found.append((f"environment variable {variable}", {name: variables[variable]}))
            elif f"{variable}_FILE" in variables:
                found.append((f"file of {variable}_FILE", {name: _secret(variable, variables[f"{variable}_FILE"])}))
    return found


def unknown_variables(variables: Mapping[str, str]) -> list[str]:
    """The variables that look like settings, but are none."""
    return [
        variable
        for variable in variables
        if variable.startswith(PREFIX) and variable not in _KNOWN and not _SERVICE.fullmatch(variable)
    ]


def _is_service(variable: str, value: str) -> bool:
    """Whether Kubernetes set it, as it sets POSTROOM_HTTP_PORT for a service named postroom-http."""
    return _SERVICE.fullmatch(variable) is not None and "://" in value


def _secret(variable: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (UnicodeDecodeError, OSError) as error:
        raise InvalidSetting(f"environment variable {variable}_FILE: {path} cannot be read: {_why(error)}") from None


@cache
def _warn_of(variable: str) -> None:
    """Once per process, and without the value."""
    import logging
    from difflib import get_close_matches

    meant = {name.removeprefix(PREFIX): names[0] for names in ENVIRONMENT.values() for name in names}
    near = get_close_matches(variable.removeprefix(PREFIX).removesuffix("_FILE"), meant, 1)
    hint = f"did you mean {meant[near[0]]}?" if near else f"settings are {PREFIX} and a name of docs/guide/settings.md"
    logging.getLogger("postroom.settings").warning("environment variable %s is not a setting: %s", variable, hint)


def _value(name: str, value: Any) -> Any:
    return _parsed(name, value) if isinstance(value, str) else value


def _parsed(name: str, text: str) -> Any:
    """The value of a text. Lists: 5, 10, 20 or [5, 10, 20]. Tables: OrderCreated=orders, OrderPaid=payments.

    URLs may contain commas and equals signs: brokers are separated by white space, or written as JSON.
    """
    match name:
        case "backoff_sec":
            return [part.strip() for part in text.strip().removeprefix("[").removesuffix("]").split(",")]
        case "routes":
            parts = [part.partition("=") for part in text.split(",") if part.strip()]
            return {kind.strip(): topic.strip() for kind, _, topic in parts}
        case "brokers":
            return _brokers(text.strip())
        case _:
            return text


def _brokers(text: str) -> Any:
    if text.startswith("{"):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text  # which is then refused, since it is not a table
    parts = [part.partition("=") for part in text.split()]
    return {pattern: url for pattern, _, url in parts} if all(url for _, _, url in parts) else text


def _why(error: Exception) -> str:
    """The reason in words, without anything from the file."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "it is not text in UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
