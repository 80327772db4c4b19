"""One timer for many waits. Most of them end long before their time is up, and cost less than a timer for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class SharedTimer:
    """Ends waits when their time is up. Used from one event loop at a time."""

    def __init__(self) -> None:
        self._due: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Set as long as somebody waits, for the first who is due, or who was when it was set."""

    async def wait(self, ended: asyncio.Future[None], seconds: float) -> None:
        """Wait until the future is done. When the time is up, set its result."""
        due = ended.get_loop().time() + seconds
        self._due[ended] = due
        if self._timer is None or due < self._timer.when():
            self._set(ended.get_loop(), due)
        try:
            await ended
        finally:
            del self._due[ended]
            if not self._due:
                self._cancel()

    def _set(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._cancel()
        self._timer = loop.call_at(due, self._ring, loop, due)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self, loop: asyncio.AbstractEventLoop, set_for: float) -> None:
        self._timer = None
        now = max(set_for, loop.time())  # the event loop may be a little early
        waiting = [(due, ended) for ended, due in self._due.items() if not ended.done()]
        for due, ended in waiting:
            if due <= now:
                ended.set_result(None)
        later = [due for due, _ in waiting if due > now]
        if later:
            self._set(loop, min(later))
