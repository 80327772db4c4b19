"""Order by key (L-16) with four relays that are paused past their leases, killed and let down by the broker.

A relay asks its own clock before each wave whether its lease still holds. One that is paused between this question
and the send still sends that wave when it wakes, after others have taken its lane over. This cannot be prevented
from here, and does no harm to the order that a consumer sees who drops repeats: all that stands before these messages
on their keys was sent before, by this relay itself, and nothing that stands behind them is sent by the new holder
until it has sent them too. So either they are repeats, or they come in the place that is theirs. One exception: under
`skip`, if the new holder found such a message dead and went on, the late one comes behind its successors; dead
messages have no place in the order there. What a relay does after that one wave is another matter: see `too_late`.
"""

from __future__ import annotations

import logging
import signal
from collections import Counter, defaultdict
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import pytest

from postroom.rules.ordering import LANES
from postroom.store.admin.dead_letters import DeadLetters
from postroom.store.admin.message_filter import Filter
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from tests.contract.schema_support import engine_for
from tests.contract.store_drivers import DRIVERS, Room
from tests.crash.order_worker import QUEUES, RELAYS, SHARE, Line, Places, Point, relay
from tests.crash.processes import dismiss, wait_until
from tests.crash.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase
    from tests.contract.store_drivers import Driver
    from tests.crash.processes import Processes, Worker

MESSAGES = 6_000
LEFT_TO_ZOMBIE = (LANES - (RELAYS - 1) * SHARE) * len(QUEUES)
"""Lanes that nobody takes over while one relay is paused, because each takes only its share."""
_log = logging.getLogger(__name__)

ROUNDS: list[tuple[Point | None, Point | None]] = [
    (Point.BEFORE_CHECK, Point.IN_WAVE),
    (Point.BEFORE_WRITE, Point.BEFORE_SETTLE),
    (Point.IN_WAVE, Point.BEFORE_WRITE),
    (Point.BEFORE_SETTLE, Point.BEFORE_CHECK),
    (None, None),
    (Point.BEFORE_WRITE, Point.IN_WAVE),
    (None, None),
    (Point.IN_WAVE, Point.BEFORE_SETTLE),
]
"""Where one relay is paused and where another is killed; None: wherever it happens to be."""


class Company:
    """Four relays at work: who they are, what they hold, and what is done to them."""

    def __init__(self, processes: Processes, driver: Driver, url: str, room: Room) -> None:
        self.places = Places(processes.directory)
        self.relays: list[Worker] = []
        self._processes = processes
        self._room = room
        self._reach = (driver, url)
        self._hired = 0
        for _ in range(RELAYS):
            self.hire()

    def hire(self) -> None:
        self._hired += 1
        name = f"relay-{self._hired}"
        self.relays.append(self._processes.start(name, relay, *self._reach, self.places))

    def busiest(self, count: int) -> list[Worker]:
        """The relays that hold the most lanes."""

        def holding() -> list[Worker]:
            return sorted(filter(self.lanes_of, self.relays), key=self.lanes_of)

        self.wait_until(lambda: len(holding()) >= count, f"{count} relays hold lanes")
        return holding()[-count:]

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for the condition, as long as no relay fails."""

        def holds() -> object:
            for one in self.relays:
                one.check()
            return condition()

        wait_until(holds, what)

    def pause(self, zombie: Worker, point: Point | None) -> None:
        self._let(zombie, signal.SIGSTOP, point)

    def kill(self, victim: Worker, point: Point | None) -> None:
        self._let(victim, signal.SIGKILL, point)
        self.relays.remove(victim)

    def outlived(self, zombie: Worker) -> bool:
        """Say whether all its leases have ended."""
        now = self._room.dialect.now
        live = f"owner = :owner AND leased_until > {now}"
        leases = [f"SELECT count(*) FROM {{{table}}} WHERE {live}" for table in ("lane", "delivery")]
        return not any(self._room.select(lease, owner=zombie.name)[0][0] for lease in leases)

    def lanes_of(self, worker: Worker) -> int:
        return int(self._room.select("SELECT count(*) FROM {lane} WHERE owner = :owner", owner=worker.name)[0][0])

    def dismiss(self) -> None:
        dismiss(*self.relays)

    def _let(self, worker: Worker, number: signal.Signals, point: Point | None) -> None:
        if point is None:
            worker.signal(number)
        else:
            draft = self.places.directory / "fate"
            draft.write_text(f"{int(number)} {point}")
            draft.rename(self.places.fate(worker.name))


@pytest.fixture
def reached(driver: Driver, fresh_database: FreshDatabase) -> Iterator[tuple[Room, str]]:
    url = fresh_database(driver.kind)
    with closing(driver.open(url)) as store, closing(Store(url)) as neighbour:
        neighbour.call(lambda connection: upgrade(connection, neighbour.names))
        yield Room(store, driver, neighbour), url


@pytest.mark.parametrize(
    "driver",
    [driver for driver in DRIVERS if driver.name in {"sqlite3", "asyncpg", "pymysql"}],
    ids=lambda driver: driver.name,
)
def test_L_16_no_message_overtakes_another_of_its_key(
    driver: Driver, reached: tuple[Room, str], processes: Processes
) -> None:
    room, url = reached
    patience = {"timeout": 30} if driver.kind == "sqlite" else {}
    with engine_for(url, connect_args=patience) as engine, engine.connect() as connection:
        producer = Producer(connection, room.names)
        company = Company(processes, driver, url, room)
        for pause_at, die_at in ROUNDS:
            one_round(company, producer, pause_at, die_at)
    company.wait_until(lambda: sendable(room) == 0, "all is sent that can be")
    dead, held = labels(room, "d.state = 3"), behind_dead(room)
    assert dead == {label for label in producer.committed if label.startswith("poison")} - held
    assert {line.label for line in read(company.places.broker)} == producer.committed - dead - held
    assert len(room.receipts()) == MESSAGES - len(dead) - len(held)
    company.places.cured.touch()
    for queue in QUEUES:
        room.run(DeadLetters(room.names).requeue(Filter(queue=queue)))
    company.wait_until(lambda: not room.positions(), "what was dead is sent too")
    company.dismiss()
    lines = read(company.places.broker)
    assert len(producer.committed) == MESSAGES
    assert {line.label for line in lines} == producer.committed
    assert list(room.receipts().values()) == ["sent"] * MESSAGES
    assert out_of_order(line for line in lines if line.queue == "default" or line.label not in dead) == []
    late = too_late(lines)
    waves = Counter(lease for lease, _ in {((line.queue, line.lane, line.since), line.wave) for line in late})
    assert set(waves.values()) <= {1}, "a relay went on sending after it had lost a lane"
    _log.info(
        "%d dead, %d held, %d repeats, %d too late, of those %d not sent before",
        *(len(dead), len(held), len(lines) - MESSAGES, len(late), len(set(late) & set(without_repeats(lines)))),
    )


def one_round(company: Company, producer: Producer, pause_at: Point | None, die_at: Point | None) -> None:
    """Pause one relay until all its leases have ended and kill another, while messages are added."""
    zombie, victim = company.busiest(2)
    half = MESSAGES // len(ROUNDS) // 2
    if pause_at is None:
        producer.add(half)
    company.pause(zombie, pause_at)
    company.kill(victim, die_at)
    if pause_at is not None:
        producer.add(half)
    company.wait_until(zombie.stopped, f"{zombie.name} is paused")
    company.wait_until(victim.ended, f"{victim.name} is dead")
    company.hire()
    company.wait_until(lambda: company.outlived(zombie), "the leases of who is paused end")
    if pause_at is not None:  # else it may have been paused in a transaction, and hold up everybody on SQLite
        company.wait_until(lambda: company.lanes_of(zombie) <= LEFT_TO_ZOMBIE, "others take over")
        producer.add(half)
    zombie.signal(signal.SIGCONT)
    if pause_at is None:
        producer.add(half)


def sendable(room: Room) -> int:
    """How many messages are left that nothing dead stands before."""
    [[everything]] = room.select("SELECT count(*) FROM {delivery} WHERE state <> 3")
    return int(everything) - len(behind_dead(room))


def behind_dead(room: Room) -> set[str]:
    """What a dead message of its key holds back."""
    return labels(
        room,
        "d.queue = 'default' AND d.state <> 3 AND EXISTS (SELECT 1 FROM {delivery} b WHERE b.queue = d.queue "
        "AND b.key_hash = d.key_hash AND b.position < d.position AND b.state = 3)",
    )


def labels(room: Room, which: str) -> set[str]:
    joined = "SELECT m.topic FROM {delivery} d JOIN {outbox} m ON m.position = d.position"
    return {label for [label] in room.select(f"{joined} WHERE {which}")}


def read(broker: Path) -> list[Line]:
    return [msgspec.json.decode(line, type=Line) for line in broker.read_bytes().splitlines()]


def without_repeats(lines: Iterable[Line]) -> list[Line]:
    """What a consumer with an inbox sees: the first of each."""
    first: dict[str, Line] = {}
    for line in lines:
        first.setdefault(line.label, line)
    return list(first.values())


def out_of_order(lines: Iterable[Line]) -> list[tuple[Line, Line]]:
    """Neighbours on one key of which the later one was added first."""
    by_key = defaultdict(list)
    for line in without_repeats(lines):
        if line.key is not None:
            by_key[line.queue, line.key].append(line)
    return [pair for of_key in by_key.values() for pair in pairwise(of_key) if pair[0].position > pair[1].position]


def too_late(lines: Iterable[Line]) -> list[Line]:
    """What was sent in a lane after its next holder had begun to send."""
    newest: dict[tuple[str, int], str] = defaultdict(str)
    found = []
    for line in lines:
        lane = line.queue, line.lane
        newest[lane] = max(newest[lane], line.since)
        if line.since < newest[lane]:
            found.append(line)
    return found
