"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tests.services.pauses import pause

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 60.0
"""Seconds: after RabbitMQ's crash, Celery waits up to 14 until it looks again, on a machine where all is slow."""
POLL = 0.01


async def wait_for(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds; fail when it does not."""
    async with asyncio.timeout(PATIENCE):
        asked = time.monotonic()
        while not condition():
            await asyncio.sleep(pause(asked, POLL))
            asked = time.monotonic()
