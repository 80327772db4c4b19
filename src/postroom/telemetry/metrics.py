"""Metrics of relays, consumers and the middleware, for Prometheus or OpenTelemetry."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from postroom.errors import DriverMissing
from postroom.rules.lifecycle import OutcomeCode
from postroom.telemetry.events import (
    KEYED,
    STREAM_CHANGES,
    Added,
    Beat,
    Expired,
    Handled,
    Keyed,
    LeasesLost,
    NotSettled,
    Phase,
    Postponed,
    Settled,
    StreamChanged,
)
from postroom.telemetry.gauges import GAUGES, Gauges
from postroom.telemetry.meters import BUCKETS, SECONDS, Metric, OpenTelemetryMeters, PrometheusMeters
from postroom.telemetry.saga_events import SagaEvent
from postroom.telemetry.saga_metrics import SagaMetrics
from postroom.telemetry.topic_labels import TopicLabels
from postroom.telemetry.transaction_events import TransactionRecovered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.metrics import MeterProvider
    from prometheus_client import CollectorRegistry

    from postroom.message import Message
    from postroom.telemetry.events import Event
    from postroom.telemetry.meters import Meters

MESSAGES = "{message}"
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
DELIVERY_BUCKETS = (*BUCKETS[2:], _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 6 * _HOUR, _DAY)
"""For messages, which may be scheduled or retried for hours."""
ADDED = Metric("outbox.added", "Messages written by outboxes here, rolled back or not.", ("queue", "topic"), MESSAGES)
CLAIMED = Metric("outbox.claimed", "Messages claimed.", ("queue",), MESSAGES)
PROCESSED = Metric(
    "outbox.processed", "Attempts to send a message, by outcome.", ("queue", "topic", "outcome"), MESSAGES
)
DELIVERY = Metric(
    "outbox.delivery",
    "Time from when a message was added to when it was recorded as sent.",
    ("queue", "topic"),
    SECONDS,
    buckets=DELIVERY_BUCKETS,
)
POSTPONED = Metric(
    "outbox.postponed", "Messages postponed because their topic takes none, each time.", ("queue",), MESSAGES
)
EXPIRED = Metric("outbox.expired", "Messages that expired before they were sent.", ("queue", "topic"), MESSAGES)
RETRY = Metric("outbox.retry", "Failed attempts that are retried, by attempt.", ("queue", "attempt"), MESSAGES)
LEASE_EXPIRED = Metric(
    "outbox.lock_lease_expired",
    "Claimed messages whose earlier lease ended without a settlement.",
    ("queue",),
    MESSAGES,
)
LOST = Metric("outbox.leases_lost", "Leases lost by relays here, by kind.", ("queue", "kind"), "{lease}")
LATENCY = Metric("outbox.latency", "Time to claim, send or settle a batch.", ("queue", "phase"), SECONDS)
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
STREAM = Metric(
    "outbox.stream_changes",
    "What happened to the stream, as relays of this process saw it.",
    ("what",),
    "{change}",
    tuple(what.replace(" ", "_") for what in STREAM_CHANGES),
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
    values come from closed sets or from the configuration, except for topics: see
    `postroom.telemetry.topic_labels`. Raises `DriverMissing`.
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
        self._added = meters.counter(ADDED)
        self._claimed = meters.counter(CLAIMED)
        self._processed = meters.counter(PROCESSED)
        self._delivery = meters.batch_histogram(DELIVERY)
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
        self._stream = meters.counter(STREAM)
        self._topics = TopicLabels()
        self._shown: set[tuple[str, ...]] = set()
        """Queues, and topics in them, whose counters are shown, from zero on."""
        self._gauges = Gauges()
        meters.gauges(GAUGES, self._gauges.read)

    def __call__(self, event: Event) -> None:  # noqa: C901, PLR0912 - one case for each event
        """Count an event."""
        if isinstance(event, SagaEvent):
            self._sagas.count(event)
            return
        match event:
            case Phase():
                self._phase(event)
            case Settled():
                self._settled(event)
            case Added():
                for topic, count in self._topics.counted(event.messages).items():
                    self._added(count, event.queue, topic)
            case Expired():
                for topic, count in self._topics.counted(event.messages).items():
                    self._show_topic(event.queue, topic)
                    self._expired(count, event.queue, topic)
            case Postponed():
                self._postponed(event.messages, event.queue)
            case NotSettled():
                self._count_outcome(event.outcome, [event.message], event.queue)
            case LeasesLost():
                self._lost(event.messages, event.queue, "message")
                self._lost(event.lanes, event.queue, "lane")
            case Handled():
                self._received(event)
            case Keyed():
                self._keyed(1, event.outcome)
            case TransactionRecovered():
                self._recovered(1, event.end.value)
            case StreamChanged():
                self._stream(1, event.what.replace(" ", "_"))
                self._gauges.listen(event)
            case _:
                if isinstance(event, Beat) and event.broker:
                    self._show_queue(event.queue)
                self._gauges.listen(event)

    def _phase(self, event: Phase) -> None:
        if not event.messages:  # an idle relay polls and finds nothing
            return
        self._latency(event.seconds, event.queue, event.name)
        if event.name == "claim":
            self._claimed(event.messages, event.queue)
            self._lease_expired(event.taken_over, event.queue)

    def _settled(self, event: Settled) -> None:
        self._count_outcome(event.outcome, event.messages, event.queue)
        if event.outcome is OutcomeCode.SUCCESS:
            self._sent(event)
        if event.outcome is OutcomeCode.RETRY:
            attempt = str(event.attempts) if event.attempts < LAST_ATTEMPT else f"{LAST_ATTEMPT}+"
            self._retry(len(event.messages), event.queue, attempt)

    def _count_outcome(self, outcome: OutcomeCode, messages: Sequence[Message], queue: str) -> None:
        for topic, count in self._topics.counted(messages).items():
            self._show_topic(queue, topic)
            self._processed(count, queue, topic, outcome.value)

    def _sent(self, event: Settled) -> None:
        now, label = time.time(), self._topics.of
        ages: dict[str, list[float]] = {}
        for message in event.messages:
            if message.created_at is not None:
                age = now - message.created_at.timestamp()
                of_topic = ages.get(message.topic)
                if of_topic is None:
                    of_topic = ages[message.topic] = []
                of_topic.append(age if age > 0 else 0.0)  # the database has its own clock
        for topic, values in ages.items():
            self._delivery(values, event.queue, label(topic))

    def _show_queue(self, queue: str) -> None:
        """Begin a queue's counters at zero: what is not there cannot be seen to rise."""
        if (queue,) in self._shown:
            return
        self._shown.add((queue,))
        for count in (self._claimed, self._lease_expired, self._postponed):
            count(0, queue)
        self._lost(0, queue, "message")
        self._lost(0, queue, "lane")

    def _show_topic(self, queue: str, topic: str) -> None:
        if (queue, topic) in self._shown:
            return
        self._shown.add((queue, topic))
        for outcome in OutcomeCode:
            self._processed(0, queue, topic, outcome.value)
        self._expired(0, queue, topic)

    def _received(self, event: Handled) -> None:
        self._handled(len(event.messages), event.consumer, event.fate)
        if event.seconds:
            self._handler(event.seconds, event.consumer)
