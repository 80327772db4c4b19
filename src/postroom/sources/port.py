"""The receive port: the contract between consumer and broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.incoming import Incoming


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """A message, and what its source needs to acknowledge it."""

    message: Incoming
    receipt: Any = None


class Source(Protocol):
    """Receives messages and acknowledges them. Each method is used by one task at a time.

    A source connects and reconnects by itself. If the broker cannot be reached or is not set up (no such stream or
    queue, not authorised), `receive` raises `BrokerUnavailable`, and may be called again. Acknowledging messages of a
    lost connection has no effect: they come again, which is no error.
    """

    name: str
    """A source may also have an attribute `is_behind`: true while the broker may have more than was received, for
    example while the source waits to join a group. A consumer that stops when the broker is empty goes on until it is
    false."""

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` messages, in the broker's order. Waits up to `seconds` for the first, not for more.

        A message that is neither acknowledged nor given back is not delivered again while its connection lasts, however
        long its handler takes.
        """
        ...

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Mark these as done for good. Raises `BrokerUnavailable`; then they come again."""
        ...

    async def give_back(self, received: Sequence[Received]) -> None:
        """Return these unfinished messages: they come again soon, here or elsewhere. Does not raise."""
        ...

    async def close(self) -> None:
        """Leave; what is neither acknowledged nor given back comes again."""
        ...
