"""A circuit breaker: while the destination cannot be reached, one message at a time probes it, and the rest waits."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.runtime.backoff import Backoff

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
        """Seconds after which a probe that has not reported counts as gone."""
        self._clock = clock
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._until = 0.0
        self._probe_until = 0.0
        self.down: str | None = None
        """Why the destination cannot be reached; None while it can."""
        self.outages = 0
        """How often it went away: the fate of what was sent before the last time says nothing of it now."""
        self.probed = 0
        """The position of the last probe that failed: the next one is another message."""

    def admit(self, batch: int) -> int:
        """How many messages may be claimed now. When it is one, and the circuit is open, that one is the probe."""
        if self.down is None:
            return batch
        if self._probing or self.pause() > 0:
            return 0
        self._probe_until = self._clock() + self._patience
        return 1

    def nothing_to_probe(self) -> None:
        """There was no message to probe with."""
        self._probe_until = 0.0

    def probe_from_start(self) -> None:
        """There was no message behind the last probe: the next one is the first that there is."""
        self.probed = 0

    def closed_or_probing(self) -> bool:
        """Whether a message that is on its way may be sent."""
        return self.down is None or self._probing

    @property
    def _probing(self) -> bool:
        return self._clock() < self._probe_until

    def failed(self, reason: str, position: int = 0) -> None:
        """The destination could not be reached with the message at this position."""
        first = self.down is None
        if first:
            self._backoff.reset()
        if first or self._probing:
            self._until = self._clock() + self._backoff.next()
        self._probe_until = 0.0
        self.probed = position
        self.down = reason or "no reason was given"
        if first:
            self.outages += 1
            self._changed(self.down)

    def worked(self) -> None:
        """The destination took or refused a message: it is there."""
        self._probe_until = 0.0
        if self.down is not None:
            self.down = None
            self._changed(None)

    def pause(self) -> float:
        """For how many seconds nothing should be sent."""
        return 0.0 if self.down is None else max(0.0, self._until - self._clock())
