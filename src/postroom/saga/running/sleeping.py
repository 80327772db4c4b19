"""How long a sleep has to go that ends at a time which a function of the data tells."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from postroom.errors import InvalidSetting
from postroom.runtime.calls import call_at_once

if TYPE_CHECKING:
    from collections.abc import Callable


def seconds_until(sleep: str, until: Callable[[Any], Any], data: Any, now: datetime) -> float:
    """Seconds from now, or less than 0. Raises `InvalidSetting` if the function tells no time, and what it raises."""
    told = call_at_once(until, data)
    if not isinstance(told, datetime) or told.tzinfo is None:
        what = "a datetime without a time zone" if isinstance(told, datetime) else type(told).__name__
        raise InvalidSetting(
            f"until of sleep {sleep!r} returned {what}: return a datetime with one, as in datetime.now(timezone.utc) + "
            "timedelta(hours=1)"
        )
    return (told - now).total_seconds()
