"""Nowhere: stands where no broker is given. Whatever comes here stays in the outbox, and counts as not tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from postroom.brokers.port import Capabilities, Outcome
from postroom.errors import BrokerUnavailable
from postroom.telemetry.events import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message


class Nowhere:
    """A broker that is never there."""

    name = NOWHERE
    capabilities = Capabilities(ordered_prefix=True)

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Raise `BrokerUnavailable`."""
        del timeout
        raise BrokerUnavailable(
            f"no broker is given for the topic {messages[0].topic!r}: no pattern of `brokers` matches it, "
            "and `broker` is not set"
        )

    async def close(self) -> None:
        """There is nothing to let go of."""
