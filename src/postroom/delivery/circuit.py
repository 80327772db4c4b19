"""A circuit breaker: while the broker cannot be reached, one message tries it now and then, and the rest stays."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0


class Circuit:
    """Closed: send. Open: wait. Then half open: one message goes, and its fate decides."""

    def __init__(
        self, changed: Callable[[str | None], None], patience: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._changed = changed
        self._patience = patience
        """Seconds after which a message that was to try the broker is taken to have gone another way."""
        self._clock = clock
        self._pause = 0.0
        self._until = 0.0
        self._probe_until = 0.0
        self.down: str | None = None
        """Why the broker cannot be reached; None while it can."""
        self.outages = 0
        """How often it went away: the fate of what was sent before the last time says nothing of it now."""

    def admit(self, batch: int) -> int:
        """How many messages may be claimed now. When it is one, and the circuit is open, that one is the probe."""
        if self.down is None:
            return batch
        if self._probing or self.pause() > 0:
            return 0
        self._probe_until = self._clock() + self._patience
        return 1

    def nothing_to_probe(self) -> None:
        """There was no message to try the broker with."""
        self._probe_until = 0.0

    def closed_or_probing(self) -> bool:
        """Whether a message that is on its way may go on."""
        return self.down is None or self._probing

    @property
    def _probing(self) -> bool:
        return self._clock() < self._probe_until

    def failed(self, reason: str) -> None:
        """The broker could not be reached."""
        now = self._clock()
        first = self.down is None
        if first or self._probing:
            self._pause = FIRST_PAUSE if first else min(self._pause * 2, LONGEST_PAUSE)
            self._until = now + self._pause
        self._probe_until = 0.0
        self.down = reason or "no reason was given"
        if first:
            self.outages += 1
            self._changed(self.down)

    def worked(self) -> None:
        """The broker took or refused a message: it is there."""
        self._probe_until = 0.0
        if self.down is not None:
            self.down = None
            self._changed(None)

    def pause(self) -> float:
        """For how many seconds nothing should be sent."""
        return 0.0 if self.down is None else max(0.0, self._until - self._clock())
