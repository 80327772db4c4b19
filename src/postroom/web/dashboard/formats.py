"""How values look on a page."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

MINUTE, HOUR, DAY = 60, 3600, 86_400
SHORT = 8
NOTHING = "\N{EN DASH}"


def number(value: Any) -> str:
    """A whole number with separators; a bounded one says so itself."""
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def duration(seconds: float) -> str:
    """A span of time in its two largest units."""
    if seconds < 1:
        return "0 s" if seconds <= 0 else f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    for size, name, next_size, next_name in (
        (DAY, "d", HOUR, "h"),
        (HOUR, "h", MINUTE, "min"),
        (MINUTE, "min", 1, "s"),
    ):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            return f"{whole} {name} {rest // next_size} {next_name}" if rest // next_size else f"{whole} {name}"
    return f"{seconds:.0f} s"


def brief(seconds: float) -> str:
    """A span of time in its largest unit."""
    return " ".join(duration(seconds).split()[:2])


def moment(value: datetime | None) -> Markup | str:
    """A moment in UTC, to the second."""
    if value is None:
        return NOTHING
    utc = value.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(utc.isoformat(), f"{utc:%Y-%m-%d %H:%M:%S}")


def ago(value: datetime | None) -> Markup | str:
    """How long ago a moment was, or how soon it comes. A script keeps it right while the page is open."""
    if value is None:
        return NOTHING
    utc = value.astimezone(UTC)
    seconds = (datetime.now(UTC) - utc).total_seconds()
    text = f"{brief(seconds)} ago" if seconds >= 0 else f"in {brief(-seconds)}"
    return Markup('<time datetime="{}" title="{} UTC" data-ago>{}</time>').format(
        utc.isoformat(), f"{utc:%Y-%m-%d %H:%M:%S}", "just now" if 0 <= seconds < 1 else text
    )


def short(value: str | None) -> str:
    """The last characters of an id, which tell one from another; the first ones are a time."""
    return NOTHING if not value else value if len(value) <= SHORT + 4 else f"…{value[-SHORT:]}"


def ticked(text: str) -> Markup:
    """A sentence whose commands stand between backticks."""
    parts = text.split("`")
    odd = len(parts) % 2 == 1
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if odd and n % 2 else escape(part if odd or n == 0 else f"`{part}")
        for n, part in enumerate(parts)
    )


def size(count: int) -> str:
    """A number of bytes."""
    if count < 1024:  # noqa: PLR2004 - a kilobyte
        return f"{count} bytes"
    return f"{count / 1024:.1f} kB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MB"


def readable(content: bytes | None) -> str:
    """A payload for people: JSON with indentation, text as it is, anything else in hexadecimal."""
    if content is None:
        return ""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return content.hex(" ", 4)
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def counted(count: Any, one: str, many: str = "") -> str:
    """A number with its noun."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


FILTERS = {
    "number": number,
    "brief": brief,
    "duration": duration,
    "moment": moment,
    "ago": ago,
    "short": short,
    "size": size,
    "ticked": ticked,
    "readable": readable,
}
