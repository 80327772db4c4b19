"""Lease renewal: what holds a request's key while its handler runs, for event loops and for threads."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.rules.replay import Entry
    from postroom.web.idempotency.keyed_request import KeyedRequest


class Renewable(Protocol):
    """A running request whose lease can be renewed."""

    async def renew_lease(self) -> None:
        """Hold the key for another lease."""


class LoopLeaseRenewal:
    """One timer of each event loop that renews the leases of all running requests, at half their length.

    Most requests end before that, and cost no more than to be noted.
    """

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._running: dict[asyncio.AbstractEventLoop, dict[Renewable, float]] = {}
        self._renewing: set[asyncio.Task[None]] = set()

    def add(self, request: Renewable) -> None:
        """Renew this request's lease from now on."""
        loop = asyncio.get_running_loop()
        running = self._running.get(loop)
        if running is None:
            for closed in [each for each in list(self._running) if each.is_closed()]:  # other threads add theirs
                self._running.pop(closed, None)
            running = self._running[loop] = {}
            self._look_later(loop)
        running[request] = loop.time()

    def remove(self, request: Renewable) -> None:
        """Stop renewing it."""
        self._running.get(asyncio.get_running_loop(), {}).pop(request, None)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(self._lease / 8, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        running, now = self._running[loop], loop.time()
        for request in [one for one, since in running.items() if now - since >= self._lease * 3 / 8]:
            running[request] = now
            renewing = loop.create_task(request.renew_lease())
            self._renewing.add(renewing)
            renewing.add_done_callback(self._renewing.discard)
        if running:
            self._look_later(loop)
        else:
            del self._running[loop]


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
