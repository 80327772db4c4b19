"""Signals to the work sources of a queue: look for work now, and look behind the cursors."""

from __future__ import annotations

import asyncio


class Signals:
    """Wakes the work sources of one queue, by the kind of work."""

    def __init__(self) -> None:
        self._events: dict[str, list[asyncio.Event]] = {}
        self._rows_behind = False
        self._rows_due = False

    def subscribe(self, kind: str) -> asyncio.Event:
        """An event that is set when there may be work of this kind."""
        event = asyncio.Event()
        self._events.setdefault(kind, []).append(event)
        return event

    def wake(self, kind: str = "") -> None:
        """Something was committed. Wakes the sources of this kind, or all of them if there is none."""
        for event in self._events.get(kind) or [event for events in self._events.values() for event in events]:
            event.set()

    def rows_behind(self) -> None:
        """Messages without a key lie behind the cursor again: the next claim must start at the beginning."""
        self._rows_behind = True

    def take_rows_behind(self) -> bool:
        """Whether the claim that comes now must start at the beginning. Asked once for each claim."""
        behind, self._rows_behind = self._rows_behind, False
        return behind

    def rows_due(self) -> None:
        """Messages without a key were made due before their time: the next claim must look at what is due."""
        self._rows_due = True

    def take_rows_due(self) -> bool:
        """Whether the claim that comes now must look at what is due. Asked once for each claim."""
        due, self._rows_due = self._rows_due, False
        return due
