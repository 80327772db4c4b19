"""The destination port: where the deliveries of a queue go, be it a broker or a handler in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from postroom.brokers.port import Outcome as BrokerOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.brokers.port import Broker, Capabilities
    from postroom.store.outbox.leases import Claimed


class AlreadySettled(msgspec.Struct, frozen=True, gc=False):
    """The destination settled the delivery itself, in its own transaction, by the delivery's token.

    The engine writes nothing and emits no `Settled` event: the destination reports what it did.
    """


class LeaseLost(msgspec.Struct, frozen=True, gc=False):
    """The destination tried to settle and found no row with the token: somebody else has the delivery.

    Its transaction must be rolled back. The engine settles nothing and audits the conflict.
    """


Outcome = BrokerOutcome | AlreadySettled | LeaseLost
ALREADY_SETTLED = AlreadySettled()
LEASE_LOST = LeaseLost()


class Destination(Protocol):
    """Takes claimed deliveries together with their leases, and returns one outcome for each.

    `deliver` returns within the timeout, plus a grace period of a second. An exception counts as a failed attempt of
    every delivery, except `BrokerUnavailable`: then none counts as attempted. Deliveries of one key come in order, and
    only one at a time unless `capabilities.ordered_prefix` says that the destination keeps the order itself.

    To settle in your own transaction, see `SettlementWriter.in_transaction`; `postroom.consumer.settlement` does it.
    """

    @property
    def name(self) -> str:
        """What logs, metrics and audit records call it."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it guarantees about order."""
        ...

    @property
    def settles_itself(self) -> bool:
        """Whether it may return `AlreadySettled`: while it has a delivery, only it can tell that the lease was lost."""
        ...

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the destination knows what can still be told apart when time is up
        """Return one outcome for each delivery, in their order."""
        ...

    async def close(self) -> None:
        """Release connections and threads."""
        ...


class PublishToBroker:
    """A broker as a destination: it sees messages, and no leases."""

    settles_itself = False

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.name = broker.name
        self.capabilities = broker.capabilities

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Publish the messages."""
        return await self._broker.publish([one.message for one in claimed], timeout)

    async def close(self) -> None:
        """Close the broker."""
        await self._broker.close()
