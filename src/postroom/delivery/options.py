"""How a relay works: the settings, and what only code can give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import DEFAULT_CLASSIFIER, Classifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.message import Message
    from postroom.settings import Settings

    OnDead = Callable[[Message, str, str], object]
    Policy = RetryPolicy | Callable[[Message], RetryPolicy]
    """When a failed send is tried again: for all messages alike, or for each."""

MOST_BEAT = 2.0
BATCHES_IN_FLIGHT = 4


@dataclass(frozen=True, slots=True)
class Options:
    """Seconds, counts and functions, ready for use."""

    worker: str
    batch: int = 1000
    concurrency: int = 4
    poll_interval: float = 0.5
    lease: float = 120.0
    lane_lease: float = 15.0
    broker_timeout: float = 2.5
    most_bytes: int = 32 * 1024 * 1024
    dedup: bool = False
    policy: Policy = field(default_factory=RetryPolicy.worker)
    classifier: Classifier = DEFAULT_CLASSIFIER
    on_dead: OnDead | None = None

    def policy_for(self, message: Message) -> RetryPolicy:
        """When a failed send of the message is tried again."""
        return self.policy if isinstance(self.policy, RetryPolicy) else self.policy(message)

    @property
    def beat(self) -> float:
        """Seconds between two heartbeats: several in every lease, however short."""
        return min(MOST_BEAT, self.lane_lease / 4, self.lease / 4)

    @property
    def silent(self) -> float:
        """Seconds after which another relay's lanes are to be shared out: three beats and a little, within a lease."""
        return 3.5 * self.beat

    @property
    def most_messages(self) -> int:
        """In flight at the same time."""
        return BATCHES_IN_FLIGHT * self.batch


def options_of(
    settings: Settings,
    worker: str,
    policy: Policy | None = None,
    classifier: Classifier | None = None,
    on_dead: OnDead | None = None,
) -> Options:
    """The settings as a relay uses them."""
    return Options(
        worker=worker,
        batch=settings.batch,
        concurrency=settings.concurrency,
        poll_interval=settings.poll_interval_sec,
        lease=settings.lock_lease_sec,
        lane_lease=settings.lane_lease_sec,
        broker_timeout=settings.broker_timeout_ms / 1000,
        most_bytes=settings.max_in_flight_bytes,
        dedup=settings.dedup,
        policy=policy or RetryPolicy.table(settings.backoff_sec, max_attempts=settings.max_attempts),
        classifier=classifier or DEFAULT_CLASSIFIER,
        on_dead=on_dead,
    )
