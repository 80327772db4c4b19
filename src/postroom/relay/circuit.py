"""A circuit breaker: while the broker cannot be reached, one message tries it now and then, and the rest stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0


class Circuit:
    """Closed: send. Open: wait. Then half open: one message goes, and its fate decides."""

    def __init__(self, changed: Callable[[str | None], None]) -> None:
        self._changed = changed
        self._pause = 0.0
        self._until = 0.0
        self.is_open = False

    def limit(self, batch: int) -> int:
        """How many messages may be claimed at once."""
        return 1 if self.is_open else batch

    def failed(self, reason: str) -> None:
        """The broker could not be reached."""
        if not self.is_open:
            self.is_open = True
            self._pause = FIRST_PAUSE / 2
            self._changed(reason)
        now = asyncio.get_running_loop().time()
        if now >= self._until:
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            self._until = now + self._pause

    def worked(self) -> None:
        """The broker took or refused a message: it is there."""
        if self.is_open:
            self.is_open = False
            self._until = 0.0
            self._changed(None)

    def pause(self) -> float:
        """For how many seconds nothing should be sent."""
        return max(0.0, self._until - asyncio.get_running_loop().time())
