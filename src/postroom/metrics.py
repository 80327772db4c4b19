"""Metrics: what relays and consumers do, as figures for Prometheus."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from postroom.errors import DriverMissing
from postroom.gauges import Gauges
from postroom.rules.lifecycle import Outcome
from postroom.telemetry import Expired, Handled, LeasesLost, NotSettled, Phase, Settled

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from postroom.telemetry import Event

PHASES = ("claim", "send", "commit")
LAST_ATTEMPT = 10
"""Attempts from this one on are counted together."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_made: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()
_making = threading.Lock()


def prometheus(registry: CollectorRegistry | None = None) -> Metrics:
    """A hook for relays and consumers that counts in a registry: that of prometheus_client, unless one is given.

    For one registry it is always the same hook, so that several relays and consumers of one database may share it.
    Labels are from closed sets, or named by the configuration. Raises `DriverMissing`.
    """
    try:
        import prometheus_client
    except ImportError:
        raise DriverMissing("metrics need prometheus_client: pip install 'postroom[metrics]'") from None
    place = prometheus_client.REGISTRY if registry is None else registry
    with _making:
        if place not in _made:
            _made[place] = Metrics(place)
        return _made[place]


class Metrics:
    """A listener; made by `prometheus`."""

    wants_counts = True

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        self._claimed = Counter("outbox_claimed", "Messages claimed.", registry=registry)
        self._processed = Counter(
            "outbox_processed", "Messages by what became of a try to send them.", ["outcome"], registry=registry
        )
        self._expired = Counter(
            "outbox_expired", "Messages whose time was over before they were sent.", registry=registry
        )
        self._retry = Counter(
            "outbox_retry", "Failed sends that are tried again, by the attempt.", ["attempt"], registry=registry
        )
        self._lease_expired = Counter(
            "outbox_lock_lease_expired",
            "Messages claimed whose earlier lease had ended without a settlement.",
            registry=registry,
        )
        self._lost = Counter(
            "outbox_leases_lost", "Leases that relays here lost, by kind.", ["kind"], registry=registry
        )
        self._latency = Histogram(
            "outbox_latency_seconds",
            "How long a batch took to be claimed, sent or settled.",
            ["phase"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._handled = Counter(
            "postroom_consumer_messages",
            "Messages received, by what became of them.",
            ["consumer", "fate"],
            registry=registry,
        )
        self._handler = Histogram(
            "postroom_consumer_handler_seconds",
            "How long a call of a handler took, with its transaction.",
            ["consumer"],
            buckets=BUCKETS,
            registry=registry,
        )
        self._gauges = Gauges()
        registry.register(self._gauges)
        for outcome in Outcome:
            self._processed.labels(outcome.value)
        for phase in PHASES:
            self._latency.labels(phase)
        for kind in ("message", "lane"):
            self._lost.labels(kind)

    def __call__(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Phase():
                self._phase(event)
            case Settled():
                self._settled(event)
            case Expired():
                self._expired.inc(len(event.messages))
            case NotSettled():
                self._processed.labels(Outcome.DB_ERROR.value).inc()
            case LeasesLost():
                self._lost.labels("message").inc(event.messages)
                self._lost.labels("lane").inc(event.lanes)
            case Handled():
                self._received(event)
            case _:
                self._gauges.listen(event)

    def _phase(self, event: Phase) -> None:
        if not event.messages:  # an idle relay looks again and again, and finds nothing
            return
        self._latency.labels(event.name).observe(event.seconds)
        if event.name == "claim":
            self._claimed.inc(event.messages)
            self._lease_expired.inc(event.taken_over)

    def _settled(self, event: Settled) -> None:
        self._processed.labels(event.outcome.value).inc(len(event.messages))
        if event.outcome is Outcome.RETRY:
            attempt = str(event.attempts) if event.attempts < LAST_ATTEMPT else f"{LAST_ATTEMPT}+"
            self._retry.labels(attempt).inc(len(event.messages))

    def _received(self, event: Handled) -> None:
        self._handled.labels(event.consumer, event.fate).inc(len(event.messages))
        if event.seconds:
            self._handler.labels(event.consumer).observe(event.seconds)
