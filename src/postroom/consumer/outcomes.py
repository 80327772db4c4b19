"""What can become of a received message, and how a consumer counts it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from postroom.telemetry.events import Handled

if TYPE_CHECKING:
    from postroom.telemetry.events import Event


class Fate(StrEnum):
    """What became of a received message."""

    HANDLED = "handled"
    """Its handler ran, and its transaction is committed."""
    DUPLICATE = "duplicate"
    """It was handled before."""
    PARKED = "parked"
    """Its handler failed, or an earlier message of its key is parked: it is kept, and retried."""
    DEAD = "dead"
    """It is a dead letter."""
    SKIPPED = "skipped"
    """It has no handler."""
    UNDONE = "undone"
    """Nothing was done, because the consumer is stopping: the broker delivers it again."""

    @property
    def is_done(self) -> bool:
        """Whether it can be acknowledged."""
        return self is not Fate.UNDONE


@dataclass(slots=True)
class Report:
    """What a consumer did with the messages it received. Each retry of a parked message counts again."""

    handled: int = 0
    duplicates: int = 0
    parked: int = 0
    dead: int = 0
    skipped: int = 0

    def count(self, event: Event) -> None:
        """A hook that counts."""
        if not isinstance(event, Handled):
            return
        match Fate(event.fate):
            case Fate.HANDLED:
                self.handled += len(event.messages)
            case Fate.DUPLICATE:
                self.duplicates += len(event.messages)
            case Fate.PARKED:
                self.parked += len(event.messages)
            case Fate.DEAD:
                self.dead += len(event.messages)
            case Fate.SKIPPED:
                self.skipped += len(event.messages)
            case Fate.UNDONE:
                pass
