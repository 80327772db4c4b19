"""What draining messages costs on a PostgreSQL server of its own: processor time of both sides, write-ahead log."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg

from benchmarks.rounds import note
from benchmarks.server_costs import Spent, spent
from postroom.bench.drains import discard, discard_in_order
from postroom.bench.scratch import scratch
from postroom.relay import Relay
from postroom.telemetry.events import Lifecycle, Settled
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from postroom.bench.scratch import Scratch
    from postroom.telemetry.events import Event

HELD = ("", "a snapshot held", "a writer held")
"""What another session may do meanwhile."""


class Costs:
    """What was measured, by name: the medians of all rounds."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))

    def note(self, name: str, **values: float) -> None:
        """Note one round's."""
        for what, value in values.items():
            self._found[name][what].append(value)

    def medians(self, name: str) -> dict[str, float]:
        """What was measured under this name."""
        return {what: median(found) for what, found in self._found[name].items()}

    def show(self, title: str = "") -> None:
        """Print all; figures are noted under the title."""
        for name in self._found:
            medians = {what.replace("_", " "): value for what, value in self.medians(name).items()}
            print(f"{name:<44} " + "   ".join(f"{what} {value:,.1f}" for what, value in medians.items()))
            note({f"{title + ', ' if title else ''}{name}, {what}": value for what, value in medians.items()})


class Drained(NamedTuple):
    """What a message took."""

    per_second: float
    python_us: float
    server_us: float
    wal_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One relay's work, in a process of its own."""

    url: str
    schema: str | None
    most: int
    """It stops when it has sent this many, or when nothing is left."""
    settings: dict[str, Any]
    keeps_order: bool = False
    """Whether the broker keeps the order of what it gets, so that one key's messages may follow each other closely."""


class Took(NamedTuple):
    """What one relay did."""

    sent: int
    started: float
    ended: float
    processor: float


def relay_share(share: Share) -> Took:
    """Send messages to a broker that accepts everything, from when the relay's connections are open.

    It ends with its last receipt, as for `postroom.bench`: not when it has found that nothing is left.
    """
    started = ended = processor = 0.0

    def listen(event: Event) -> None:
        nonlocal started, ended, processor
        if isinstance(event, Lifecycle) and event.what == "started":
            started, processor = time.monotonic(), time.process_time()
        if isinstance(event, Settled):
            ended = time.monotonic()
        if relay.report.sent >= share.most:
            relay.stop()

    broker = discard_in_order if share.keeps_order else discard
    relay = Relay(share.url, broker, schema=share.schema, hook=listen, brokers={}, **share.settings)
    gc.collect()
    gc.freeze()
    asyncio.run(relay.run_until_empty())
    return Took(relay.report.sent, started, ended, time.process_time() - processor)


class Ground:
    """A server with fsync, tables to drain, and relays."""

    def __init__(self, server: PostgreSQL, place: Scratch) -> None:
        self.server = server
        self.place = place

    def drain(self, most: int, *, relays: int = 1, keeps_order: bool = False, **settings: Any) -> Drained:
        """Have relays send messages that are there: one this many, several all.

        If each stopped after its share, the others would have to find that out, and take over its lanes.
        """
        share = Share(
            url=self.place.url,
            schema=self.place.schema,
            most=most,
            settings=settings,
            keeps_order=keeps_order,
        )
        return self.measure(relay_share, share, relays)

    def measure(self, work: Callable[[Share], Took], share: Share, processes: int = 1) -> Drained:
        """Have this done in so many new processes at once."""
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            list(pool.map(abs, range(processes)))  # they are there before anything is measured
            before = spent(self.server, self.place.url)
            took = list(pool.map(work, [share] * processes))
            cost = spent(self.server, self.place.url).since(before)
        return _each(took, cost)


def _each(took: list[Took], cost: Spent) -> Drained:
    sent = sum(one.sent for one in took)
    seconds = max(one.ended for one in took) - min(one.started for one in took)
    own = sum(one.processor for one in took)
    return Drained(sent / seconds, own / sent * 1e6, cost.processor / sent * 1e6, cost.wal / sent)


@contextmanager
def ground() -> Iterator[Ground]:
    """A server of its own with empty tables, and one of a business."""
    with closing(PostgreSQL(durable=True)) as server:
        server.start()
        server.create_database("shop")
        with scratch(server.url("shop")) as place:
            with psycopg.connect(place.url) as connection:
                connection.execute(
                    "CREATE TABLE business (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, what text)"
                )
            yield Ground(server, place)


@contextmanager
def holding(url: str, what: str) -> Iterator[None]:
    """Another session holds a snapshot, or an open transaction that has written (see `HELD`)."""
    if not what:
        yield
        return
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        if "writer" in what:
            connection.execute("INSERT INTO business (what) VALUES ('held')")
        else:
            connection.execute("SELECT count(*) FROM business")
        yield
        connection.rollback()
