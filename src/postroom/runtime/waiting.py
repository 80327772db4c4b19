"""Wait for an event, but not for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def wait_for(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, for `seconds` at most. Returns whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
