"""What a queue is to the engine, and what all queues of an engine have in common."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier
from postroom.rules.lifecycle import DEFAULT_CLAIM_LIMITS, ClaimLimits
from postroom.rules.ordering import Order
from postroom.telemetry.events import HookFailed
from postroom.telemetry.tracebacks import raised_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.delivery.destination import Destination
    from postroom.message import Message
    from postroom.store.outbox.rerouting import QueueOf
    from postroom.telemetry.events import Event, Hook

    OnDead = Callable[[Message, str, str], object]
    Policy = RetryPolicy | Callable[[Message], RetryPolicy]
    """When a failed delivery is retried: one policy for all messages, or one for each."""

LONGEST_BEAT = 2.0
BATCHES_IN_FLIGHT = 4
DAY = 86_400.0


def ignore(event: Event) -> None:
    """A hook that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue: where its deliveries go, and how they are attempted and retried."""

    name: str
    destination: Destination
    timeout: float = 2.5
    """Seconds for one call of the destination."""
    policy: Policy = field(default_factory=RetryPolicy.worker)
    classifier: Classifier = DEFAULT_CLASSIFIER
    keyed: bool = True
    """Whether to deliver messages that have a key, in order. Without, the engine holds no lane of the queue."""
    order: Order = Order.HOLD
    """What a dead message does to those behind it on its key."""
    batch: int = 1000
    concurrency: int = 4
    """How many batches with keys are delivered at a time, and how many without."""
    most_in_flight: int | None = None
    """How many messages are in flight at most; by default four batches."""
    most_bytes: int = 32 * 1024 * 1024
    """Payload and headers in flight."""
    dedup: bool = False
    """Whether to drop what the same topic has already been sent with the same content."""
    claim_limits: ClaimLimits = DEFAULT_CLAIM_LIMITS
    ledger_keep: float = DAY
    """Seconds for which the idempotency ledger keeps what it learns of a delivery."""
    on_dead: OnDead | None = None
    hook: Hook = ignore
    """Receives every event of this queue."""
    queue_of: QueueOf | None = None
    """The queue that a topic belongs to. What is claimed here and belongs elsewhere is moved, not delivered."""
    has_destination: bool = True
    """False where deliveries can only wait for one: `run_until_empty` does not wait with them."""

    def policy_for(self, message: Message) -> RetryPolicy:
        """When a failed delivery of the message is retried. The default policy stands in for one that raises."""
        if isinstance(self.policy, RetryPolicy):
            return self.policy
        try:
            return self.policy(message)
        except Exception as error:  # noqa: BLE001 - a user's function must not stop the engine
            self.hook(HookFailed("policy", type(error).__name__, raised_at(error)))
            return RetryPolicy.worker()

    @property
    def most_messages(self) -> int:
        """How many messages are in flight at most."""
        return self.most_in_flight or BATCHES_IN_FLIGHT * self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What all queues of an engine have in common."""

    worker: str
    """The name that leases and audit records carry."""
    lease: float = 120.0
    """Seconds, of a message without a key."""
    lane_lease: float = 15.0
    """Seconds. When it has passed, other workers take over the lanes of one that was killed."""
    poll_interval: float = 0.5

    @property
    def heartbeat(self) -> float:
        """Seconds between two heartbeats: several in every lease, however short."""
        return min(LONGEST_BEAT, self.lane_lease / 4, self.lease / 4)

    @property
    def silent(self) -> float:
        """Seconds without a heartbeat after which another worker no longer counts when lanes are shared out.

        Its lanes come free when their leases end.
        """
        return 3.5 * self.heartbeat
