"""A small relay: sends messages in the order of their keys, and stops or dies on demand at the worst places.

Its broker is a file that only grows. It does what a real relay must: it sends in waves, asks before each wave whether
the lease still holds by its own clock, and drops what it has lost.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from postroom.rules.ordering import LANES, NO_LANE, Order, waves
from postroom.store.outbox.leases import Claimed, Dead, Lane, Retry, Sent, Settlement
from postroom.store.outbox.queue_store import QueueStore

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from postroom.store.connections.stores import BlockingStore
    from tests.contract.store_drivers import Driver

RELAYS = 4
LEASE = 1.0  # seconds, for lanes and for messages without a key
SHARE = -(-LANES // RELAYS) + 1
"""Lanes that one relay takes at the most."""
READ = 12
"""Messages of each lane in one read; of those without a key in one claim."""
CLOCK_STEP = 0.001  # seconds: SQLite's clock
IDLE = 0.02  # seconds between two looks into an empty outbox

REFUSED, UNANSWERED = 0.02, 0.03
"""The broker refuses 2 % of all messages; of 1 % it takes the message, but its answer is lost."""

QUEUES = {"default": Order.HOLD, "skipping": Order.SKIP}


class Point(StrEnum):
    """Where a relay can be stopped."""

    BEFORE_CHECK = "before it asks whether the lease still holds"
    BEFORE_WRITE = "between that question and the send"
    IN_WAVE = "in the middle of a wave"
    BEFORE_SETTLE = "between the send and the settle"


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One message as the broker got it."""

    label: str
    queue: str
    key: str | None
    position: int
    lane: int
    since: str
    """When its sender took the lane, by the database's clock."""
    wave: str
    """Which wave of which relay it was sent in."""


@dataclass(frozen=True)
class Places:
    """The files that test and relays share."""

    directory: Path

    @property
    def broker(self) -> Path:
        return self.directory / "broker"

    @property
    def cured(self) -> Path:
        """Once it is there, nothing is poison any more."""
        return self.directory / "cured"

    def fate(self, name: str) -> Path:
        """What a relay has to do to itself, and where: a signal's number and a `Point`."""
        return self.directory / f"{name}.fate"


@dataclass
class Relay:
    """What one process does, for both queues in turn."""

    name: str
    store: BlockingStore
    places: Places
    stopping: bool = False
    sent_waves: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.name)  # noqa: S311 - repeatable, not secret
        self.broker = os.open(self.places.broker, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.desks = [Desk(self, QueueStore(self.store.names, queue, order)) for queue, order in QUEUES.items()]
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_: object) -> None:
        self.stopping = True

    def run(self) -> None:
        while not self.stopping:
            if not sum(desk.work() for desk in self.desks):
                time.sleep(IDLE)
        for desk in self.desks:
            desk.close()

    def meet_fate(self, point: Point) -> None:
        """Stop here, or die, if that is what was asked for."""
        fate = self.places.fate(self.name)
        if fate.exists():
            number, where = fate.read_text().split(maxsplit=1)
            if where == point:
                fate.unlink()
                os.kill(os.getpid(), int(number))

    def publish(self, desk: Desk, one: Claimed) -> Settlement:
        label = one.message.topic
        luck = self.chance.random()
        if label.startswith("poison") and not self.places.cured.exists():
            return Dead(one, "POISON", "nobody can take this")
        if luck < REFUSED:
            return Retry(one, 0.02, "REFUSED", "the broker did not take it")
        wave = f"{self.name} {self.sent_waves}"
        since = desk.since.get(one.lane, "")
        line = Line(label, desk.deliveries.queue, one.message.key, one.position, one.lane, since, wave)
        os.write(self.broker, msgspec.json.encode(line) + b"\n")
        if luck < UNANSWERED:
            return Retry(one, 0.02, "TIMEOUT", "the broker did not answer")
        return Sent(one)


@dataclass
class Desk:
    """One queue of a relay: the lanes it holds, and until when it may use them."""

    relay: Relay
    deliveries: QueueStore
    lanes: dict[int, Lane] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    """By this process's clock, counted from before the database was asked: never later than the database's own end."""
    over: dict[int, float] = field(default_factory=dict)
    """Counted from after the database had answered: never earlier than its own end. From then on it must refuse."""
    since: dict[int, str] = field(default_factory=dict)
    """When a lane was taken, by the database's clock; nothing if it was lost before that could be read."""

    def work(self) -> int:
        """Take, read, send and settle once; returns how many messages there were."""
        self._take_lanes()
        ordered = self._read_lanes()
        self._send(ordered)
        free = self._claim_free()
        self._send(free)
        return len(ordered) + len(free)

    def close(self) -> None:
        self.relay.store.run(self.deliveries.lanes.release(list(self.lanes.values())))

    def _take_lanes(self) -> None:
        for number in [number for number in self.lanes if self._ended(number)]:
            del self.lanes[number]
        if len(self.lanes) < SHARE:
            began = time.monotonic()
            taken = self.relay.store.run(self.deliveries.lanes.take(self.relay.name, LEASE, SHARE - len(self.lanes)))
            self.lanes |= {lane.number: lane for lane in taken}
            self._leased([lane.number for lane in taken], began)
            self.since |= self._taken_at(taken)

    def _taken_at(self, lanes: Sequence[Lane]) -> dict[int, str]:
        d = self.deliveries
        since = {lane.number: "" for lane in lanes}
        for lane in lanes:
            found = self.relay.store.run(
                d.sql.statement(
                    f"SELECT leased_until FROM {d.sql.lane} WHERE queue = :queue AND lane = :lane AND token = :token",
                    {"queue": d.queue, "lane": lane.number, "token": lane.token},
                )
            )
            for [ends] in found:
                since[lane.number] = str(d.sql.dialect.read_moment(ends))
        return since

    def _read_lanes(self) -> list[Claimed]:
        lanes = list(self.lanes.values())
        self.relay.store.run(self.deliveries.lanes.promote(lanes))
        began = time.monotonic()
        claim = self.relay.store.run(self.deliveries.lanes.read(lanes, READ, LEASE))
        # The read renews what it reads. Whether it also renewed a lane in which it found nothing, it does not say.
        read = {one.lane for one in claim.messages}
        self._leased(read, began)
        self.lanes = {lane.number: Lane(lane.number, lane.token) for lane in lanes}
        self._renew([lane for lane in lanes if lane.number not in read])
        return claim.messages

    def _renew(self, idle: Sequence[Lane]) -> None:
        began = time.monotonic()
        lost = self.relay.store.run(self.deliveries.renewals.renew([], idle, LEASE)).lost_lanes
        self._leased([lane.number for lane in idle], began)
        for lane in lost:
            del self.lanes[lane.number]

    def _claim_free(self) -> list[Claimed]:
        began = time.monotonic()
        claim = self.relay.store.run(self.deliveries.rows.claim(self.relay.name, READ, LEASE))
        self._leased([NO_LANE], began)
        return claim.messages

    def _leased(self, lanes: Iterable[int], began: float) -> None:
        """Note the term of leases that were given by a call which began then and has just ended."""
        numbers = list(lanes)
        self.ends |= dict.fromkeys(numbers, began + LEASE)
        self.over |= dict.fromkeys(numbers, time.monotonic() + LEASE + CLOCK_STEP)

    def _send(self, claimed: Sequence[Claimed]) -> None:
        settlements: list[Settlement] = []
        stuck: set[str | None] = set()
        for wave in waves(claimed, lambda one: one.message.key):
            self.relay.sent_waves += 1
            self.relay.meet_fate(Point.BEFORE_CHECK)
            usable = [one for one in wave if one.message.key not in stuck and not self._ended(one.lane)]
            self.relay.meet_fate(Point.BEFORE_WRITE)
            for one in usable:
                settlement = self.relay.publish(self, one)
                settlements.append(settlement)
                if one.ordered and self._holds_back(settlement):
                    stuck.add(one.message.key)
                self.relay.meet_fate(Point.IN_WAVE)
        if claimed:
            self.relay.meet_fate(Point.BEFORE_SETTLE)
        self._settle(settlements)

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        began = time.monotonic()
        lost = self.relay.store.run(self.deliveries.settlements.settle(settlements))
        over = {one.claimed.lease for one in settlements if began >= self.over[one.claimed.lane]}
        assert over <= {one.lease for one in lost}, "a lease that was over has settled"
        for one in lost:
            self.lanes.pop(one.lane, None)

    def _holds_back(self, settlement: Settlement) -> bool:
        dead_holds = QUEUES[self.deliveries.queue] is Order.HOLD
        return isinstance(settlement, Retry) or (isinstance(settlement, Dead) and dead_holds)

    def _ended(self, lane: int) -> bool:
        return time.monotonic() >= self.ends[lane]


def relay(name: str, driver: Driver, url: str, places: Places) -> None:
    """Work until SIGTERM."""
    with closing(driver.open(url)) as store:
        Relay(name, store, places).run()
