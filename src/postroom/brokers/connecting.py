"""Connections of publishers: close them in the background, and check that connecting has left enough time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from postroom.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

CLOSE_TIMEOUT = 2.0
"""Seconds for closing a connection."""
MIN_TIME_LEFT = 0.2
"""The share of the timeout that must be left for sending to make sense."""


class ClosingConnections:
    """Closes connections in the background, so that no batch waits for it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, closing: Coroutine[Any, Any, None]) -> None:
        """Start closing a connection."""
        task = asyncio.create_task(_close(closing))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Return when all are closed."""
        await asyncio.gather(*self._tasks)


async def _close(closing: Coroutine[Any, Any, None]) -> None:
    """Give up on a silent server after a while, and ignore errors: nobody needs the connection any more."""
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await closing


def check_time_left(name: str, deadline: float, timeout: float) -> None:
    """Raise `BrokerUnavailable` if connecting has left too little time for an answer.

    Nothing was tried then, and the next batch finds the connection ready.
    """
    if deadline - asyncio.get_running_loop().time() < timeout * MIN_TIME_LEFT:
        raise BrokerUnavailable(f"{name}: connecting took nearly all of the {timeout:g} s")
