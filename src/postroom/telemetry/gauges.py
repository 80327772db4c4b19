"""Gauges: current values, taken from events. Reading them runs no query."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from postroom.telemetry.events import (
    DATABASE,
    Backlog,
    Beat,
    Counted,
    Lifecycle,
    Reachability,
    StreamChanged,
    StreamRead,
    adapter,
)
from postroom.telemetry.meters import SECONDS, Metric
from postroom.telemetry.transaction_events import TransactionsInDoubt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from postroom.telemetry.events import Event
    from postroom.telemetry.meters import Reading

BACKLOG = Metric("outbox.backlog", "Unsent messages.", ("queue", "state"), "{message}")
OLDEST = Metric(
    "outbox.oldest_pending",
    "How long the oldest message that could be sent has been waiting.",
    ("queue",),
    SECONDS,
)
DEAD = Metric("outbox.dead", "Dead letters.", ("queue",), "{message}")
HELD = Metric("outbox.held_keys", "Keys that a dead letter holds back.", ("queue",), "{key}")
SAGAS = Metric("postroom.sagas", "Sagas that have not ended.", ("saga", "state"), "{saga}")
IN_DOUBT = Metric(
    "postroom.transactions_in_doubt",
    "Two-phase commits past their deadline that are not settled.",
    unit="{transaction}",
)
OLDEST_IN_DOUBT = Metric(
    "postroom.transactions_oldest_in_doubt", "Time since the deadline of the oldest of them.", unit=SECONDS
)
COUNTED_AT = Metric("outbox.counted_timestamp", "When backlog and dead letters were last counted.", unit=SECONDS)
IN_FLIGHT = Metric("outbox.in_flight", "Messages that relays of this process are sending.", ("queue",), "{message}")
ALIVE = Metric(
    "outbox.relay_alive",
    "Relays alive for the queue, as seen from here; 0 if that is unknown.",
    ("queue",),
)
BROKER = Metric("outbox.broker_up", "Whether the broker can be reached.", ("adapter", "queue"))
TARGETS = Metric("outbox.targets_down", "Topics that take no messages, while others may.", ("queue",), "{topic}")
READER = Metric("outbox.stream_reader", "Whether a relay of this process reads the write-ahead log.")
HELD_LOG = Metric(
    "outbox.stream_held_bytes",
    "Write-ahead log that the server keeps for the slot of the reader, or of Debezium.",
    unit="By",
)
BEHIND = Metric(
    "outbox.stream_behind",
    "How long ago that was committed which the reader is sending; 0 if it has sent all.",
    unit=SECONDS,
)
DATABASE_UP = Metric("outbox.database_up", "Whether the database can be reached.")
GAUGES = (
    BACKLOG,
    OLDEST,
    DEAD,
    HELD,
    SAGAS,
    IN_DOUBT,
    OLDEST_IN_DOUBT,
    COUNTED_AT,
    IN_FLIGHT,
    ALIVE,
    BROKER,
    TARGETS,
    READER,
    HELD_LOG,
    BEHIND,
    DATABASE_UP,
)
SILENT = 7.0
"""Seconds after which a heartbeat no longer counts: the time that other relays allow, too."""


class Gauges:
    """The latest values reported by each relay, broker and queue."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beats: dict[tuple[str, str], tuple[float, Beat]] = {}
        self._brokers: dict[tuple[str, str], bool] = {}
        self._database: bool | None = None
        self._backlog: dict[str, Backlog] = {}
        self._sagas: dict[tuple[str, str], int] = {}
        self._in_doubt: TransactionsInDoubt | None = None
        self._counted_at: float | None = None
        self._held_for_debezium: int | None = None
        self._streams: dict[str, tuple[float, StreamRead | None]] = {}
        """When each relay that ever read the stream last said how far it is; nothing if it does not read any more."""

    def listen(self, event: Event) -> None:
        """Record an event."""
        match event:
            case Beat():
                self._beat(event)
            case Counted():
                empty = dict.fromkeys(self._backlog, Backlog())
                self._backlog = {**empty, **event.queues}
                none = dict.fromkeys(self._sagas, 0)
                found = {(saga, state): count for saga, by in event.sagas.items() for state, count in by.items()}
                self._sagas = {**none, **found}
                self._held_for_debezium = event.held_for_debezium
                self._counted_at = time.time()
            case StreamRead():
                self._streams[event.worker] = self._clock(), event
            case StreamChanged(what="left" | "lost" | "gave up"):
                self._streams[event.worker] = self._clock(), None
            case StreamChanged(what="closes"):  # nobody is to read it any more
                self._streams.pop(event.worker, None)
            case TransactionsInDoubt():
                self._in_doubt = event
            case Reachability(what=what) if what == DATABASE:
                self._database = event.reachable
            case Reachability():
                self._brokers[adapter(event.what), event.queue] = event.reachable
            case Lifecycle(what="stopped"):
                self._beats = {name: beat for name, beat in self._beats.items() if name[0] != event.worker}
                self._streams.pop(event.worker, None)
            case _:
                pass

    def _beat(self, beat: Beat) -> None:
        self._beats[beat.worker, beat.queue] = self._clock(), beat
        self._database = beat.reached
        self._backlog.setdefault(beat.queue, Backlog())
        if beat.broker:
            self._brokers[adapter(beat.broker), beat.queue] = beat.broker_reachable

    def read(self) -> Mapping[str, list[Reading]]:
        """The current values."""
        read: dict[str, list[Reading]] = {metric.name: [] for metric in GAUGES}
        in_flight: dict[str, int] = {}
        alive: dict[str, int] = {}
        targets: dict[str, int] = {}
        for (_, queue), (at, beat) in list(self._beats.items()):
            in_flight[queue] = in_flight.get(queue, 0) + beat.in_flight
            targets[queue] = max(targets.get(queue, 0), beat.targets_down)
            lately = self._clock() - at < SILENT
            alive[queue] = max(alive.get(queue, 0), beat.alive if lately else 0)
        for queue, relays in alive.items():
            read[IN_FLIGHT.name].append(((queue,), in_flight[queue]))
            read[ALIVE.name].append(((queue,), relays))
            read[TARGETS.name].append(((queue,), targets[queue]))
        for (broker, queue), reachable in list(self._brokers.items()):
            read[BROKER.name].append(((broker, queue), int(reachable)))
        self._read_streams(read)
        if self._database is not None:
            read[DATABASE_UP.name].append(((), int(self._database)))
        if self._in_doubt is not None:
            read[IN_DOUBT.name].append(((), self._in_doubt.count))
            read[OLDEST_IN_DOUBT.name].append(((), self._in_doubt.oldest))
        if self._counted_at is not None:
            read[COUNTED_AT.name].append(((), self._counted_at))
            read[SAGAS.name].extend(list(self._sagas.items()))
            for queue, backlog in list(self._backlog.items()):
                read[BACKLOG.name].append(((queue, "pending"), backlog.pending))
                read[BACKLOG.name].append(((queue, "waiting"), backlog.waiting))
                read[DEAD.name].append(((queue,), backlog.dead))
                read[HELD.name].append(((queue,), backlog.held_keys))
                read[OLDEST.name].append(((queue,), backlog.oldest_pending_seconds))
        return read

    def _read_streams(self, read: Mapping[str, list[Reading]]) -> None:
        """Figures only of who reads now: what another relay saw before it lost the stream is not how it stands."""
        streams = list(self._streams.values())
        latest = [told for at, told in streams if told is not None and self._clock() - at < SILENT]
        if streams:
            read[READER.name].append(((), int(bool(latest))))
        if not latest and self._held_for_debezium is not None:
            read[HELD_LOG.name].append(((), self._held_for_debezium))
        if latest:
            read[HELD_LOG.name].append(((), latest[-1].held_bytes))
            read[BEHIND.name].append(((), latest[-1].behind))
