"""Meters: create counters, histograms and gauges in Prometheus or OpenTelemetry behind one interface."""

from __future__ import annotations

import threading
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

    Count = Callable[..., None]
    """Takes an amount and the label values in order."""
    Observe = Callable[..., None]
    """Takes a list of values and the label values in order."""
    Reading = tuple[Sequence[str], float]
    """Label values and the current value."""

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SECONDS = "s"


class Metric(NamedTuple):
    """A metric. In Prometheus, dots in its name become ``_``, and the unit is appended."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    known: tuple[str, ...] = ()
    """Values of the only label that exist from the start."""
    buckets: tuple[float, ...] = BUCKETS
    """Of a histogram."""

    @property
    def flat(self) -> str:
        """The name in Prometheus."""
        return self.name.replace(".", "_") + ("_seconds" if self.unit == SECONDS else "")


class Meters(Protocol):
    """Creates metrics."""

    def counter(self, metric: Metric) -> Count:
        """Create a counter."""
        ...

    def histogram(self, metric: Metric) -> Count:
        """Create a histogram."""
        ...

    def batch_histogram(self, metric: Metric) -> Observe:
        """Create a histogram that takes many values at a time."""
        ...

    def gauges(self, metrics: Sequence[Metric], read: Callable[[], Mapping[str, Iterable[Reading]]]) -> None:
        """Create gauges, whose values `read` returns by metric name."""
        ...


class PrometheusMeters:
    """Metrics in a registry of prometheus_client."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, metric: Metric) -> Count:
        """A counter."""
        from prometheus_client import Counter

        made = Counter(metric.flat, metric.text, metric.labels, registry=self._registry)
        for value in metric.known:
            made.labels(value)

        def count(amount: float, *values: str) -> None:
            (made.labels(*values) if values else made).inc(amount)

        return count

    def histogram(self, metric: Metric) -> Count:
        """A histogram."""
        from prometheus_client import Histogram

        made = Histogram(metric.flat, metric.text, metric.labels, buckets=metric.buckets, registry=self._registry)
        for value in metric.known:
            made.labels(value)

        def observe(amount: float, *values: str) -> None:
            (made.labels(*values) if values else made).observe(amount)

        return observe

    def batch_histogram(self, metric: Metric) -> Observe:
        """A collector that counts by itself: prometheus_client's histogram takes a lock for each value."""
        made = _BatchHistogram(metric)
        self._registry.register(made)
        return made.observe

    def gauges(self, metrics: Sequence[Metric], read: Callable[[], Mapping[str, Iterable[Reading]]]) -> None:
        """A collector of gauges."""
        self._registry.register(_Collector(metrics, read))


class _BatchHistogram:
    """A histogram for a registry, filled by the batch."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], list[int]] = {}
        """For each combination of labels: how many values fell into each bucket, and above the last."""
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, values: Sequence[float], *labels: str) -> None:
        """Count values."""
        buckets = self._metric.buckets
        with self._lock:
            counts = self._counts.setdefault(labels, [0] * (len(buckets) + 1))
            for value in values:
                counts[bisect_left(buckets, value)] += 1
            self._sums[labels] = self._sums.get(labels, 0.0) + sum(values)

    def describe(self) -> list[HistogramMetricFamily]:
        """The histogram without values, to register its name."""
        return [self._family()]

    def collect(self) -> list[HistogramMetricFamily]:
        """The histogram with what was counted."""
        from prometheus_client.utils import floatToGoString

        family = self._family()
        bounds = [*map(floatToGoString, self._metric.buckets), "+Inf"]
        with self._lock:
            for labels, counts in self._counts.items():
                family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), self._sums[labels])
        return [family]

    def _family(self) -> HistogramMetricFamily:
        from prometheus_client.core import HistogramMetricFamily

        return HistogramMetricFamily(self._metric.flat, self._metric.text, labels=self._metric.labels)


class _Collector:
    """Collects gauges for a registry."""

    def __init__(self, metrics: Sequence[Metric], read: Callable[[], Mapping[str, Iterable[Reading]]]) -> None:
        self._figures = metrics
        self._read = read

    def describe(self) -> list[GaugeMetricFamily]:
        """The gauges without values, to register their names."""
        return self._families({})

    def collect(self) -> list[GaugeMetricFamily]:
        """The gauges with their current values."""
        return self._families(self._read())

    def _families(self, readings: Mapping[str, Iterable[Reading]]) -> list[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        families = []
        for metric in self._figures:
            family = GaugeMetricFamily(metric.flat, metric.text, labels=metric.labels)
            for values, value in readings.get(metric.name, ()):
                family.add_metric(values, value)
            families.append(family)
        return families


class OpenTelemetryMeters:
    """Metrics of an OpenTelemetry meter."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def counter(self, metric: Metric) -> Count:
        """A counter."""
        made = self._meter.create_counter(metric.name, metric.unit, metric.text)

        def count(amount: float, *values: str) -> None:
            made.add(amount, dict(zip(metric.labels, values, strict=True)))

        for value in metric.known:
            count(0, value)
        return count

    def histogram(self, metric: Metric) -> Count:
        """A histogram; a view of the application may change its buckets."""
        made = self._meter.create_histogram(
            metric.name, metric.unit, metric.text, explicit_bucket_boundaries_advisory=metric.buckets
        )

        def observe(amount: float, *values: str) -> None:
            made.record(amount, dict(zip(metric.labels, values, strict=True)))

        return observe

    def batch_histogram(self, metric: Metric) -> Observe:
        """A histogram: its interface takes one value at a time."""
        observe = self.histogram(metric)

        def observe_all(values: Sequence[float], *labels: str) -> None:
            for value in values:
                observe(value, *labels)

        return observe_all

    def gauges(self, metrics: Sequence[Metric], read: Callable[[], Mapping[str, Iterable[Reading]]]) -> None:
        """Gauges that are read when they are exported."""
        for metric in metrics:
            self._meter.create_observable_gauge(metric.name, [_observer(metric, read)], metric.unit, metric.text)


def _observer(
    metric: Metric, read: Callable[[], Mapping[str, Iterable[Reading]]]
) -> Callable[[CallbackOptions], list[Observation]]:
    def observe(_options: CallbackOptions) -> list[Observation]:
        from opentelemetry.metrics import Observation

        readings = read().get(metric.name, ())
        return [Observation(value, dict(zip(metric.labels, values, strict=True))) for values, value in readings]

    return observe
