"""Metrics of relays, consumers and the middleware, for Prometheus or OpenTelemetry."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from postroom.errors import DriverMissing
from postroom.rules.lifecycle import OutcomeCode
from postroom.telemetry.events import KEYED, Expired, Handled, Keyed, LeasesLost, NotSettled, Phase, Postponed, Settled
from postroom.telemetry.gauges import GAUGES, Gauges
from postroom.telemetry.meters import SECONDS, Metric, OpenTelemetryMeters, PrometheusMeters
from postroom.telemetry.saga_events import SagaEvent
from postroom.telemetry.saga_metrics import SagaMetrics
from postroom.telemetry.transaction_events import TransactionRecovered

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry

    from postroom.telemetry.events import Event
    from postroom.telemetry.meters import Meters

MESSAGES = "{message}"
CLAIMED = Metric("outbox.claimed", "Messages claimed.", unit=MESSAGES)
PROCESSED = Metric(
    "outbox.processed",
    "Attempts to send a message, by outcome.",
    ("outcome",),
    MESSAGES,
    tuple(outcome.value for outcome in OutcomeCode),
)
POSTPONED = Metric("outbox.postponed", "Messages postponed because their topic takes none, each time.", unit=MESSAGES)
EXPIRED = Metric("outbox.expired", "Messages that expired before they were sent.", unit=MESSAGES)
RETRY = Metric("outbox.retry", "Failed attempts that are retried, by attempt.", ("attempt",), MESSAGES)
LEASE_EXPIRED = Metric(
    "outbox.lock_lease_expired",
    "Claimed messages whose earlier lease ended without a settlement.",
    unit=MESSAGES,
)
LOST = Metric(
    "outbox.leases_lost",
    "Leases lost by relays here, by kind.",
    ("kind",),
    "{lease}",
    known=("message", "lane"),
)
LATENCY = Metric(
    "outbox.latency",
    "Time to claim, send or settle a batch.",
    ("phase",),
    SECONDS,
    known=("claim", "send", "commit"),
)
HANDLED = Metric("postroom.consumer.messages", "Received messages, by outcome.", ("consumer", "fate"), MESSAGES)
HANDLER = Metric(
    "postroom.consumer.handler", "Duration of a handler call, including its transaction.", ("consumer",), SECONDS
)
RECOVERED = Metric(
    "postroom.transactions_recovered",
    "Two-phase commits that recovery took on, by outcome.",
    ("outcome",),
    "{transaction}",
)
KEYED_REQUESTS = Metric(
    "postroom.keyed_requests",
    "HTTP requests with an idempotency key, by outcome.",
    ("outcome",),
    "{request}",
    KEYED,
)
LAST_ATTEMPT = 10
"""Attempts from this number on are counted together."""

_made: WeakKeyDictionary[object, Metrics] = WeakKeyDictionary()
_making = threading.Lock()


def prometheus(registry: CollectorRegistry | None = None) -> Metrics:
    """A hook that counts in a Prometheus registry; default: that of prometheus_client.

    The same registry always gives the same hook, so several relays and consumers of one database can share it. Label
    values come from closed sets or from the configuration. Raises `DriverMissing`.
    """
    try:
        import prometheus_client
    except ImportError:
        raise DriverMissing("metrics need prometheus_client: pip install 'postroom[metrics]'") from None
    place = prometheus_client.REGISTRY if registry is None else registry
    with _making:
        if place not in _made:
            _made[place] = Metrics(PrometheusMeters(place))
        return _made[place]


def opentelemetry(meter_provider: MeterProvider | None = None) -> Metrics:
    """A hook that counts in OpenTelemetry, with a meter of the given provider; default: the current one.

    Names have a dot where Prometheus has the first underscores: ``outbox.claimed``. Raises `DriverMissing`.
    """
    try:
        from opentelemetry import metrics
    except ImportError:
        raise DriverMissing("metrics of OpenTelemetry need its API: pip install 'postroom[traces]'") from None
    place = metrics.get_meter_provider() if meter_provider is None else meter_provider
    with _making:
        if place not in _made:
            _made[place] = Metrics(OpenTelemetryMeters(place.get_meter("postroom")))
        return _made[place]


class Metrics:
    """A hook, made by `prometheus` or `opentelemetry`."""

    wants_counts = True

    def __init__(self, meters: Meters) -> None:
        self._claimed = meters.counter(CLAIMED)
        self._processed = meters.counter(PROCESSED)
        self._expired = meters.counter(EXPIRED)
        self._postponed = meters.counter(POSTPONED)
        self._retry = meters.counter(RETRY)
        self._lease_expired = meters.counter(LEASE_EXPIRED)
        self._lost = meters.counter(LOST)
        self._latency = meters.histogram(LATENCY)
        self._handled = meters.counter(HANDLED)
        self._handler = meters.histogram(HANDLER)
        self._keyed = meters.counter(KEYED_REQUESTS)
        self._sagas = SagaMetrics(meters)
        self._recovered = meters.counter(RECOVERED)
        self._gauges = Gauges()
        meters.gauges(GAUGES, self._gauges.read)

    def __call__(self, event: Event) -> None:  # noqa: C901 - one case for each event
        """Count an event."""
        if isinstance(event, SagaEvent):
            self._sagas.count(event)
            return
        match event:
            case Phase():
                self._phase(event)
            case Settled():
                self._settled(event)
            case Expired():
                self._expired(len(event.messages))
            case Postponed():
                self._postponed(event.messages)
            case NotSettled():
                self._processed(1, event.outcome.value)
            case LeasesLost():
                self._lost(event.messages, "message")
                self._lost(event.lanes, "lane")
            case Handled():
                self._received(event)
            case Keyed():
                self._keyed(1, event.outcome)
            case TransactionRecovered():
                self._recovered(1, event.end.value)
            case _:
                self._gauges.listen(event)

    def _phase(self, event: Phase) -> None:
        if not event.messages:  # an idle relay polls and finds nothing
            return
        self._latency(event.seconds, event.name)
        if event.name == "claim":
            self._claimed(event.messages)
            self._lease_expired(event.taken_over)

    def _settled(self, event: Settled) -> None:
        self._processed(len(event.messages), event.outcome.value)
        if event.outcome is OutcomeCode.RETRY:
            attempt = str(event.attempts) if event.attempts < LAST_ATTEMPT else f"{LAST_ATTEMPT}+"
            self._retry(len(event.messages), attempt)

    def _received(self, event: Handled) -> None:
        self._handled(len(event.messages), event.consumer, event.fate)
        if event.seconds:
            self._handler(event.seconds, event.consumer)
