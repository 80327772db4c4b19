"""The office: what the relay's parts share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from postroom.relay.circuit import Circuit
from postroom.relay.failed_keys import FailedKeys
from postroom.relay.flight import Flight
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier
from postroom.telemetry import LeasesLost, Reachability

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from postroom.brokers.port import Broker
    from postroom.message import Message
    from postroom.settings import Settings
    from postroom.store.deliveries import Deliveries
    from postroom.store.leases import Claimed, GivenBack, Settlement
    from postroom.telemetry import Hook

MEGABYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Options:
    """How a relay works; the defaults are the settings' defaults."""

    worker: str
    batch: int = 1000
    concurrency: int = 4
    poll_interval: float = 0.5
    lease: float = 120.0
    lane_lease: float = 15.0
    broker_timeout: float = 2.5
    most_bytes: int = 32 * MEGABYTE
    dedup: bool = False
    policy: RetryPolicy = field(default_factory=RetryPolicy.worker)
    classifier: Classifier = DEFAULT_CLASSIFIER
    on_dead: Callable[[Message, str, str], object] | None = None


def options_of(settings: Settings, worker: str, **overrides: Any) -> Options:
    """The settings as a relay uses them."""
    options = Options(
        worker=worker,
        batch=settings.batch,
        concurrency=settings.concurrency,
        poll_interval=settings.poll_interval_sec,
        lease=settings.lock_lease_sec,
        lane_lease=settings.lane_lease_sec,
        broker_timeout=settings.broker_timeout_ms / 1000,
        most_bytes=settings.max_in_flight_bytes,
        dedup=settings.dedup,
        policy=RetryPolicy.table(settings.backoff_sec, max_attempts=settings.max_attempts),
    )
    return replace(options, **overrides)


class Office:
    """One relay's state, on one event loop. The parts that do I/O are elsewhere and share it."""

    def __init__(self, options: Options, broker: Broker, deliveries: Deliveries, hook: Hook) -> None:
        self.options = options
        self.broker = broker
        self.deliveries = deliveries
        self.hook = hook
        self.flight = Flight(4 * options.batch, options.most_bytes)
        self.failed_keys = FailedKeys()
        self.circuit = Circuit(lambda down: hook(Reachability(broker.name, reachable=down is None, reason=down or "")))
        self.settlements: list[Settlement] = []
        self.to_settle = asyncio.Event()
        self.conflicts: list[Claimed] = []
        self.stopping = asyncio.Event()
        self.wake = asyncio.Event()

    def settle(self, settlements: Sequence[Settlement]) -> None:
        """Hand over what became of messages; it is written soon, together with others."""
        if settlements:
            self.settlements.extend(settlements)
            self.to_settle.set()

    def lost(self, claimed: Sequence[Claimed], lanes: int = 0) -> None:
        """Leases were lost: their messages are dropped unsent, not settled, and the conflict is audited."""
        if not claimed and not lanes:
            return
        self.flight.lose(claimed)
        self.flight.land(claimed)
        self.conflicts.extend(claimed)
        self.to_settle.set()
        self.hook(LeasesLost(len(claimed), lanes))

    def dropped(self, given_back: Sequence[GivenBack]) -> None:
        """Messages of a lane went unsent: read them again."""
        for one in given_back:
            self.flight.read_again(one.claimed.lane, one.claimed.position)
