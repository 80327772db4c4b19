"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 30.0
POLL = 0.01


async def wait_for(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds; fail when it does not."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - what happens elsewhere sets no event
            await asyncio.sleep(POLL)
