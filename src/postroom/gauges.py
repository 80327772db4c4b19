"""Gauges: how things stand, as a collector for Prometheus. Nothing is asked for at a scrape: it shows what was told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.telemetry import DATABASE, Backlog, Beat, Counted, Lifecycle, Reachability, adapter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import GaugeMetricFamily

    from postroom.telemetry import Event

SILENT = 7.0
"""Seconds after which what a heart said does not count any more: as long as other relays take it to be alive."""


class Gauges:
    """The last of what was told by each heart, of each broker, and of each queue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beats: dict[tuple[str, str], tuple[float, Beat]] = {}
        self._brokers: dict[tuple[str, str], bool] = {}
        self._database: bool | None = None
        self._backlog: dict[str, Backlog] = {}
        self._counted_at: float | None = None

    def listen(self, event: Event) -> None:
        """Take note."""
        match event:
            case Beat():
                self._beat(event)
            case Counted():
                empty = dict.fromkeys(self._backlog, Backlog())
                self._backlog = {**empty, **event.queues}
                self._counted_at = time.time()
            case Reachability(what=what) if what == DATABASE:
                self._database = event.reachable
            case Reachability():
                self._brokers[adapter(event.what), event.queue] = event.reachable
            case Lifecycle(what="stopped"):
                self._beats = {name: beat for name, beat in self._beats.items() if name[0] != event.worker}
            case _:
                pass

    def _beat(self, beat: Beat) -> None:
        self._beats[beat.worker, beat.queue] = self._clock(), beat
        self._database = beat.reached
        self._backlog.setdefault(beat.queue, Backlog())
        if beat.broker:
            self._brokers[adapter(beat.broker), beat.queue] = beat.broker_reachable

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The gauges without values, for the registry to know their names."""
        return iter(self._families().values())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges as they stand."""
        families = self._families()
        in_flight: dict[str, int] = {}
        alive: dict[str, int] = {}
        for (_, queue), (at, beat) in list(self._beats.items()):
            in_flight[queue] = in_flight.get(queue, 0) + beat.in_flight
            lately = self._clock() - at < SILENT
            alive[queue] = max(alive.get(queue, 0), beat.alive if lately else 0)
        for queue, relays in alive.items():
            families["in_flight"].add_metric([queue], in_flight[queue])
            families["alive"].add_metric([queue], relays)
        for (broker, queue), reachable in list(self._brokers.items()):
            families["broker"].add_metric([broker, queue], reachable)
        if self._database is not None:
            families["database"].add_metric([], self._database)
        if self._counted_at is not None:
            families["counted_at"].add_metric([], self._counted_at)
            for queue, backlog in self._backlog.items():
                families["backlog"].add_metric([queue, "pending"], backlog.pending)
                families["backlog"].add_metric([queue, "waiting"], backlog.waiting)
                families["dead"].add_metric([queue], backlog.dead)
                families["oldest"].add_metric([queue], backlog.oldest_pending_seconds)
        return iter(families.values())

    @staticmethod
    def _families() -> dict[str, GaugeMetricFamily]:
        from prometheus_client.core import GaugeMetricFamily as Gauge

        return {
            "backlog": Gauge("outbox_backlog", "Messages that are not sent.", labels=["queue", "state"]),
            "oldest": Gauge(
                "outbox_oldest_pending_seconds",
                "For how long the oldest has waited that could leave and is not sent.",
                labels=["queue"],
            ),
            "dead": Gauge("outbox_dead", "Dead letters.", labels=["queue"]),
            "counted_at": Gauge("outbox_counted_timestamp_seconds", "When backlog and dead letters were counted."),
            "in_flight": Gauge("outbox_in_flight", "Messages that relays here have in hand.", labels=["queue"]),
            "alive": Gauge(
                "outbox_relay_alive",
                "Relays of the queue that are alive, as seen from here; 0 where the heart here cannot tell.",
                labels=["queue"],
            ),
            "broker": Gauge("outbox_broker_up", "Whether the broker can be reached.", labels=["adapter", "queue"]),
            "database": Gauge("outbox_database_up", "Whether the database can be reached."),
        }
