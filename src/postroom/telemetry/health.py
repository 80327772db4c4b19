"""Health: whether the relays and consumers of this process live, and whether they can work, as far as they told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.telemetry.events import DATABASE, NO_BROKER, Beat, Lifecycle, Reachability, adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.telemetry.events import Event

STALLED = 90.0
"""Seconds without a heartbeat after which a relay is taken to hang: longer than a database may take to refuse."""


class Health:
    """A hook. Several relays and consumers may share it: then it speaks for all of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._made_at = clock()
        self._at_work: set[tuple[str, str]] = set()
        self._hearts: dict[tuple[str, str], float] = {}
        self._away: dict[tuple[str, str], str] = {}
        """What cannot be reached, by its name and queue; and how that is told."""

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case Beat():
                self._hearts[event.worker, event.queue] = self._clock()
                self._reached(DATABASE, "", reachable=event.reached)
                if event.broker:
                    self._reached(event.broker, event.queue, reachable=event.broker_reachable)
            case Reachability():
                self._reached(event.what, event.queue, reachable=event.reachable)
            case Lifecycle(what="started"):
                self._at_work.add((event.worker, event.consumer))
            case Lifecycle():
                self._at_work.discard((event.worker, event.consumer))
                self._hearts = {name: at for name, at in self._hearts.items() if name[0] != event.worker}
            case _:
                pass

    def not_live(self) -> list[str]:
        """Why this process should be started anew; empty where it need not. Outages are no reason."""
        hearts = list(self._hearts.items()) or [(("", ""), self._made_at)]
        late = [queue for (_, queue), at in hearts if self._clock() - at > STALLED]
        return [f"no heartbeat{f' of {queue}' if queue else ''}" for queue in sorted(late)]

    def not_ready(self) -> list[str]:
        """What keeps it from working; empty where nothing does.

        A broker counts as reachable until a relay has tried in vain to send something.
        """
        return [*self.not_live(), *([] if self._at_work else ["not started"]), *sorted(self._away.values())]

    def _reached(self, what: str, queue: str, *, reachable: bool) -> None:
        if what == NO_BROKER:  # for messages that have no broker: the others have theirs
            return
        if reachable:
            self._away.pop((what, queue), None)
        elif what == DATABASE:
            self._away[what, queue] = "the database cannot be reached"
        else:
            self._away[what, queue] = f"the broker {adapter(what)}{f' of {queue}' if queue else ''} cannot be reached"
