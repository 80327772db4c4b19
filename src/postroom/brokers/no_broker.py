"""Stands in for a missing broker: its messages stay in the outbox and count as not tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.brokers.port import Capabilities, Outcome
from postroom.errors import BrokerUnavailable
from postroom.telemetry.events import NO_BROKER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message


class NoBroker:
    """A broker that is never available."""

    name = NO_BROKER
    capabilities = Capabilities(ordered_prefix=True)

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Raise `BrokerUnavailable`."""
        del timeout
        raise BrokerUnavailable(
            f"no broker is given for the topic {messages[0].topic!r}: no pattern of `brokers` matches it, "
            "and `broker` is not set"
        )

    async def close(self) -> None:
        """Do nothing."""
