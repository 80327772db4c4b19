"""The office: what the relay's parts share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from postroom.delivery.circuit import Circuit
from postroom.delivery.continuity import Continuity
from postroom.delivery.failed_keys import FailedKeys
from postroom.delivery.in_flight import Flight
from postroom.delivery.suspects import Suspects
from postroom.delivery.targets import Targets
from postroom.delivery.verdicts import Judge
from postroom.store.outbox.leases import GivenBack
from postroom.telemetry.events import LeasesLost, Reachability, TargetChanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.brokers.port import Broker
    from postroom.delivery.options import Options
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.outbox.deliveries import Deliveries
    from postroom.store.outbox.leases import Claimed, Settlement
    from postroom.store.outbox.sorting import QueueOf
    from postroom.telemetry.events import Hook


class Office:
    """One relay's state, on one event loop. The parts that do I/O are elsewhere and share it."""

    def __init__(
        self,
        options: Options,
        broker: Broker,
        deliveries: Deliveries,
        hook: Hook,
        queue_of: QueueOf | None = None,
    ) -> None:
        self.options = options
        self.broker = broker
        self.queue_of = queue_of
        """Which queue a topic belongs into, where there are several; None where all topics belong here."""
        self.deliveries = deliveries
        self.hook = hook
        self.flight = Flight(options.most_messages, options.most_bytes)
        self.continuity = Continuity(self)
        self.failed_keys = FailedKeys()
        self.circuit = Circuit(
            lambda down: hook(Reachability(broker.name, down is None, down or "", deliveries.queue)),
            patience=3 * options.broker_timeout + options.lane_lease,
        )
        self.targets = Targets(
            lambda topic, down: hook(TargetChanged(broker.name, topic, down is None, down or "", deliveries.queue)),
            patience=3 * options.broker_timeout + options.lane_lease,
        )
        self.suspects = Suspects()
        self.judge = Judge(self)
        self.freed = 0
        """How many messages were made due here, because their topics take messages again."""
        self.probe_from = 0
        """Where the message stands that tried the broker last and in vain: the next one to try is another."""
        self.neighbours: dict[str, Office] = {}
        """The offices of this relay, by their queues."""
        self.settlements: list[Settlement] = []
        self.conflicts: list[Claimed] = []
        self.to_settle = asyncio.Event()
        self.stopping = asyncio.Event()
        self.unshared = asyncio.Event()
        """Cleared while a message is sent alone, because workers may have died of it."""
        self.unshared.set()
        self.bells: dict[str, list[asyncio.Event]] = {}
        """Which collectors wait for which word."""
        self.questions: ReconnectingConnection
        """Where couriers ask the database; the shift says."""
        self.rows_given_back = False
        """Messages without a key lie behind the cursor again."""
        self.seconds: dict[int, float] = {}
        """How long the sends took that failed, by position, until that is reported."""

    def wake(self, what: str = "") -> None:
        """Something was committed, with a key or without, or there may be more to do, of whatever kind."""
        for bell in self.bells.get(what) or [bell for bells in self.bells.values() for bell in bells]:
            bell.set()

    def moved_in(self) -> None:
        """Messages came into the queue at positions that may have been passed by."""
        self.rows_given_back = True
        for number in self.flight.lanes:
            self.flight.read_again(number, 1)
        self.wake()

    def stop(self) -> None:
        """Claim no more."""
        self.stopping.set()
        self.flight.need_no_room()
        self.wake()

    async def admit(self) -> int:
        """Wait for room; returns how many messages may be claimed now, which is none while the broker is down."""
        if self.circuit.pause() > 0:
            return 0
        await self.wait_until_shared()
        await self.flight.wait_for_room(self.options.batch)
        if self.stopping.is_set():
            return 0
        return self.circuit.admit(min(self.options.batch, self.flight.room or 1))

    async def wait_until_shared(self) -> None:
        """Return when no message is sent alone. Several may wait, and the first to go on may have one again."""
        while not self.unshared.is_set():
            await self.unshared.wait()

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Hand over what became of messages; it is written soon, together with others."""
        if settlements:
            self.settlements.extend(settlements)
            self.to_settle.set()

    def give_back(self, claimed: Sequence[Claimed]) -> None:
        """Messages go unsent."""
        self.settle([GivenBack(one) for one in self.flight.flying(claimed)])

    def lost(self, claimed: Sequence[Claimed], lanes: int = 0) -> None:
        """Leases were lost while couriers are at work with their messages: none is sent any more, none is settled."""
        self.flight.lose(claimed)
        self.drop(claimed, lanes)

    def drop(self, claimed: Sequence[Claimed], lanes: int = 0) -> None:
        """Leases were lost: their messages go unsent and unsettled, and the conflict is audited."""
        if not claimed and not lanes:
            return
        self.flight.land(claimed)
        self.conflicts.extend(claimed)
        self.to_settle.set()
        self.hook(LeasesLost(len(claimed), lanes))
