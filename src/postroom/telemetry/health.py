"""Health: whether the relays and consumers of this process are alive, and able to work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.telemetry.events import DATABASE, NO_BROKER, Beat, Lifecycle, Reachability, adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.telemetry.events import Event

STALLED = 90.0
"""Seconds without a heartbeat after which a relay counts as hung: longer than a database may take to refuse."""


class Health:
    """A hook. Several relays and consumers may share it; it then reports on all of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made_at = clock()
        self._running: set[tuple[str, str]] = set()
        self._heartbeats: dict[tuple[str, str], float] = {}
        self._unreachable: dict[tuple[str, str], str] = {}
        """What cannot be reached, by name and queue, and the problem to report."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case Beat():
                self._heartbeats[event.worker, event.queue] = self._clock()
                self._reached(DATABASE, "", reachable=event.reached)
                if event.broker:
                    self._reached(event.broker, event.queue, reachable=event.broker_reachable)
            case Reachability():
                self._reached(event.what, event.queue, reachable=event.reachable)
            case Lifecycle(what="started"):
                self._running.add((event.worker, event.consumer))
            case Lifecycle():
                self._running.discard((event.worker, event.consumer))
                self._heartbeats = {name: at for name, at in self._heartbeats.items() if name[0] != event.worker}
            case _:
                pass

    def not_live(self) -> list[str]:
        """Why this process should be restarted; empty if it need not. Outages are no reason."""
        heartbeats = list(self._heartbeats.items()) or [(("", ""), self._made_at)]
        late = [queue for (_, queue), at in heartbeats if self._clock() - at > STALLED]
        return [f"no heartbeat{f' of {queue}' if queue else ''}" for queue in sorted(late)]

    def not_ready(self) -> list[str]:
        """What keeps it from working; empty if nothing does.

        A broker counts as reachable until a relay fails to send something to it.
        """
        return [*self.not_live(), *([] if self._running else ["not started"]), *sorted(self._unreachable.values())]

    def _reached(self, what: str, queue: str, *, reachable: bool) -> None:
        if what == NO_BROKER:  # stands for messages without a broker; the others have one
            return
        if reachable:
            self._unreachable.pop((what, queue), None)
        elif what == DATABASE:
            self._unreachable[what, queue] = "the database cannot be reached"
        else:
            place = f" of {queue}" if queue else ""
            self._unreachable[what, queue] = f"the broker {adapter(what)}{place} cannot be reached"
