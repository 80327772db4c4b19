"""Meters: where figures are kept, in Prometheus or in OpenTelemetry, behind the same few calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily

    Count = Callable[..., None]
    """Takes an amount, and the labels' values in their order."""
    Reading = tuple[Sequence[str], float]
    """The labels' values, and what is read."""

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SECONDS = "s"


class Figure(NamedTuple):
    """What is counted or measured. Prometheus writes the name with ``_`` for each point, and its unit behind it."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    known: tuple[str, ...] = ()
    """Values of the one label that are there from the beginning."""

    @property
    def flat(self) -> str:
        """The name as Prometheus has it."""
        return self.name.replace(".", "_") + ("_seconds" if self.unit == SECONDS else "")


class Meters(Protocol):
    """Makes what counts."""

    def counter(self, figure: Figure) -> Count:
        """What only grows."""
        ...

    def histogram(self, figure: Figure) -> Count:
        """What is told once for each time that it is measured."""
        ...

    def gauges(self, figures: Sequence[Figure], read: Callable[[], Mapping[str, Iterable[Reading]]]) -> None:
        """What is read when somebody looks: for each figure's name its readings."""
        ...


class PrometheusMeters:
    """Figures in a registry of prometheus_client."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, figure: Figure) -> Count:
        """A counter."""
        from prometheus_client import Counter

        made = Counter(figure.flat, figure.text, figure.labels, registry=self._registry)
        for value in figure.known:
            made.labels(value)

        def count(amount: float, *values: str) -> None:
            (made.labels(*values) if values else made).inc(amount)

        return count

    def histogram(self, figure: Figure) -> Count:
        """A histogram."""
        from prometheus_client import Histogram

        made = Histogram(figure.flat, figure.text, figure.labels, buckets=BUCKETS, registry=self._registry)
        for value in figure.known:
            made.labels(value)

        def observe(amount: float, *values: str) -> None:
            (made.labels(*values) if values else made).observe(amount)

        return observe

    def gauges(self, figures: Sequence[Figure], read: Callable[[], Mapping[str, Iterable[Reading]]]) -> None:
        """A collector of gauges."""
        self._registry.register(_Collector(figures, read))


class _Collector:
    """The gauges, as a registry asks for them."""

    def __init__(self, figures: Sequence[Figure], read: Callable[[], Mapping[str, Iterable[Reading]]]) -> None:
        self._figures = figures
        self._read = read

    def describe(self) -> list[GaugeMetricFamily]:
        """The gauges without values, for the registry to know their names."""
        return self._families({})

    def collect(self) -> list[GaugeMetricFamily]:
        """The gauges as they stand."""
        return self._families(self._read())

    def _families(self, readings: Mapping[str, Iterable[Reading]]) -> list[GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily

        families = []
        for figure in self._figures:
            family = GaugeMetricFamily(figure.flat, figure.text, labels=figure.labels)
            for values, value in readings.get(figure.name, ()):
                family.add_metric(values, value)
            families.append(family)
        return families


class OpenTelemetryMeters:
    """Figures of a meter of OpenTelemetry."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def counter(self, figure: Figure) -> Count:
        """A counter."""
        made = self._meter.create_counter(figure.name, figure.unit, figure.text)

        def count(amount: float, *values: str) -> None:
            made.add(amount, dict(zip(figure.labels, values, strict=True)))

        for value in figure.known:
            count(0, value)
        return count

    def histogram(self, figure: Figure) -> Count:
        """A histogram, whose buckets a view of the application's may change."""
        made = self._meter.create_histogram(
            figure.name, figure.unit, figure.text, explicit_bucket_boundaries_advisory=BUCKETS
        )

        def observe(amount: float, *values: str) -> None:
            made.record(amount, dict(zip(figure.labels, values, strict=True)))

        return observe

    def gauges(self, figures: Sequence[Figure], read: Callable[[], Mapping[str, Iterable[Reading]]]) -> None:
        """Gauges that are observed when they are exported."""
        for figure in figures:
            self._meter.create_observable_gauge(figure.name, [_observer(figure, read)], figure.unit, figure.text)


def _observer(
    figure: Figure, read: Callable[[], Mapping[str, Iterable[Reading]]]
) -> Callable[[CallbackOptions], list[Observation]]:
    def observe(_options: CallbackOptions) -> list[Observation]:
        from opentelemetry.metrics import Observation

        readings = read().get(figure.name, ())
        return [Observation(value, dict(zip(figure.labels, values, strict=True))) for values, value in readings]

    return observe
