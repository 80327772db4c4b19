"""The destination port: where the deliveries of a queue go, be it a broker or code in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from postroom.brokers.port import Outcome as BrokerOutcome
from postroom.store.outbox.leases import Settlement

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


class InHand(msgspec.Struct, frozen=True, gc=False):
    """The destination works on the delivery, and will land it: see `LongRunning`. Until then its lease is renewed."""


class Decided(msgspec.Struct, frozen=True, gc=False):
    """The destination decided itself what becomes of the delivery. The engine writes the settlement and reports it."""

    settlement: Settlement


Outcome = BrokerOutcome | AlreadySettled | LeaseLost | InHand | Decided
ALREADY_SETTLED = AlreadySettled()
LEASE_LOST = LeaseLost()
IN_HAND = InHand()


class Destination(Protocol):
    """Takes claimed deliveries together with their leases, and returns one outcome for each.

    `deliver` returns within the timeout, plus a grace period of a second. An exception means that all are refused, by a
    `whole_call`; `BrokerUnavailable` that none was attempted. Deliveries of one key come in order, and only one at a
    time unless `capabilities.ordered_prefix` says that the destination keeps the order itself.

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


class Landing(Protocol):
    """What a destination tells the engine about deliveries that it has in hand. Call it on the engine's event loop."""

    def land(self, claimed: Claimed, outcome: Outcome, seconds: float = 0.0) -> None:
        """Say what became of a delivery, as if `deliver` had returned it. A delivery lands once; again does nothing.

        `seconds` is how long a failed attempt took, for the report.
        """
        ...

    def replace(self, old: Claimed, new: Claimed) -> bool:
        """Go on with a delivery under a new token, with the same deadline. Returns whether it was in flight."""
        ...

    def look_again(self) -> None:
        """Look at what is due now: something was made due before its time."""
        ...


@runtime_checkable
class LongRunning(Destination, Protocol):
    """A destination that may return `InHand` from `deliver`, at once, and land the delivery whenever it is done.

    It is for deliveries without a key, and has `settles_itself`. As many come as the queue's `most_messages` allows.
    After a lease has ended, the same position may come again under a newer one while the older is still in hand.
    """

    @property
    def patience(self) -> float:
        """Seconds that what is running may take to end, after `stop`."""
        ...

    def begin(self, landing: Landing) -> None:
        """Learn where to land deliveries. Called once for each run, before the first delivery comes."""
        ...

    def stop(self) -> None:
        """Finish what is running, and land the rest as `NotSent`, soon. No delivery comes after this.

        May be called more than once.
        """
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
