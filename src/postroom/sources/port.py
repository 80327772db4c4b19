"""The receive port: what a broker is to a consumer."""

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
    """Gives messages, and takes their acknowledgements. Used by one task at a time for each method.

    It connects, and connects again, by itself. Where the broker cannot be reached, or is not set up for it (no such
    stream or queue, not authorised), `receive` raises `BrokerUnavailable`; it may be called again. What was received
    before a connection was lost may be acknowledged in vain: it comes again, which is no error.
    """

    name: str
    """A source may also have an attribute `is_behind`: whether it has not yet been given all that the broker has, as
    while it waits to be let into a group. Who wants what is at hand, and no more, goes on until it is not."""

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` messages, in the broker's order. Waits for the first so long, and not for more than are there.

        Messages that were received and neither acknowledged nor given back are not given again while the connection
        that they came by lasts, however long their handlers take.
        """
        ...

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """These are done, for ever. Raises `BrokerUnavailable`; then they come again."""
        ...

    async def give_back(self, received: Sequence[Received]) -> None:
        """These are not done: they come again, soon, here or elsewhere. Does not raise."""
        ...

    async def close(self) -> None:
        """Leave; what is neither acknowledged nor given back comes again."""
        ...
