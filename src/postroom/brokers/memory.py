"""A broker in memory, for tests and for trying things out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.brokers.port import ACCEPTED, Capabilities, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message


class MemoryBroker:
    """Keeps what it is given, in order."""

    name = "memory"
    capabilities = Capabilities(ordered_prefix=True)

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Keep the messages."""
        del timeout
        self.messages.extend(messages)
        return [ACCEPTED] * len(messages)

    async def close(self) -> None:
        """Nothing to close."""
