"""Lease renewal: what holds a request's key while its handler runs, for event loops and for threads."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from postroom.rules.replay import Entry
    from postroom.web.idempotency.keyed_request import KeyedRequest


async def renewing(lease: float, renew: Callable[[], Awaitable[None]], work: asyncio.Future[Any]) -> None:
    """Wait until the work is done, and renew its lease meanwhile. If cancelled, cancel the work, too."""
    try:
        while not (await asyncio.wait({work}, timeout=lease / 2))[0]:
            await renew()
    except asyncio.CancelledError:
        work.cancel()
        raise


class LeaseRenewal:
    """One thread that renews the leases of all running requests, at half their length. It ends when there are none."""

    def __init__(self, lease: float, renew: Callable[[Entry], None]) -> None:
        self._lease = lease
        self._renew = renew
        self._running: dict[KeyedRequest, float] = {}
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, keyed: KeyedRequest) -> None:
        """Renew this request's lease from now on."""
        with self._changing:
            self._running[keyed] = time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="postroom-renewals", daemon=True)
                self._thread.start()

    def remove(self, keyed: KeyedRequest) -> None:
        """Stop renewing it."""
        with self._changing:
            self._running.pop(keyed, None)

    def _run(self) -> None:
        while self._is_needed():
            time.sleep(self._lease / 8)
            for keyed in self._due(time.monotonic()):
                self._renew(keyed.entry)

    def _is_needed(self) -> bool:
        with self._changing:
            if not self._running:
                self._thread = None
            return bool(self._running)

    def _due(self, now: float) -> list[KeyedRequest]:
        with self._changing:
            waiting = [keyed for keyed, since in self._running.items() if now - since >= self._lease * 3 / 8]
            due = [keyed for keyed in waiting if keyed.needs_renewal]
            self._running.update(dict.fromkeys(due, now))
            return due
