"""Values as other outboxes store them, whichever database and driver they come from."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

_MILLISECONDS, _MICROSECONDS = 10**11, 10**14
"""From here on, a number since 1970 is no number of seconds, nor of milliseconds."""
_UUID_BYTES = 16


class NotMappable(ValueError):
    """A row that cannot become a message. It says why, without quoting payload or headers."""


def text(name: str, value: object) -> str:
    """A text. Raises `NotMappable` for NULL, and for bytes that are not UTF-8."""
    if value is None:
        raise NotMappable(f"{name} is NULL")
    if isinstance(value, bytes | bytearray | memoryview):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            raise NotMappable(f"{name} is not valid UTF-8") from None
    return str(value)


def optional_text(name: str, value: object) -> str | None:
    """A text, or None for NULL."""
    return None if value is None else text(name, value)


def payload(value: object) -> bytes | None:
    """The bytes of a payload. NULL is a tombstone."""
    if value is None:
        return None
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else str(value).encode()


def is_json(body: bytes | None) -> bool:
    """Whether it is a JSON object or array."""
    if body is None or not body.strip().startswith((b"{", b"[")):
        return False
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def uuid(name: str, value: object) -> UUID:
    """A UUID, be it stored as such, as 16 bytes, or as text with or without dashes. Raises `NotMappable`."""
    found = as_uuid(value)
    if found is None:
        raise NotMappable(f"{name} is no UUID")
    return found


def as_uuid(value: object) -> UUID | None:
    """The UUID that a value is, or None."""
    if isinstance(value, UUID):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        stored = bytes(value)
        if len(stored) == _UUID_BYTES:
            return UUID(bytes=stored)
        value = stored.decode(errors="replace")
    try:
        return UUID(str(value))
    except ValueError:
        return None


def moment(name: str, value: object) -> datetime | None:
    """A moment in UTC. Numbers count seconds, milliseconds or microseconds since 1970. Raises `NotMappable`."""
    if value is None:
        return None
    try:
        return _moment(value)
    except (ValueError, OverflowError, OSError):
        raise NotMappable(f"{name} is no moment") from None


def _moment(value: object) -> datetime:
    if isinstance(value, int | float | Decimal):
        number = float(value)
        size = abs(number)
        divisor = 1 if size < _MILLISECONDS else 1000 if size < _MICROSECONDS else 1_000_000
        return datetime.fromtimestamp(number / divisor, UTC)
    given = value if isinstance(value, datetime) else datetime.fromisoformat(text("", value))
    return given.replace(tzinfo=UTC) if given.tzinfo is None else given.astimezone(UTC)


def headers(name: str, value: object) -> dict[str, str]:
    """Headers that are stored as a JSON object. Values that are no text become JSON; NULLs are left out.

    Raises `NotMappable`.
    """
    if value is None:
        return {}
    try:
        stored = json.loads(text(name, value))
    except (ValueError, RecursionError):
        stored = None
    if not isinstance(stored, dict):
        raise NotMappable(f"{name} is no JSON object")
    return {key: _header(one) for key, one in stored.items() if one is not None}


def _header(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def properties(value: str) -> dict[str, str]:
    """The pairs in a text of lines ``name=value``, as Java writes properties, without comments."""
    lines = (line.strip() for line in value.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {name.strip(): given.replace("\\", "").strip() for name, mark, given in pairs if mark}
