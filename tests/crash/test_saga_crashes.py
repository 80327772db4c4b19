"""Sagas whose workers are killed at the worst places: all end, each effect happens once, and each undo too."""

from __future__ import annotations

import random
import signal
from collections import Counter
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Admin
from postroom.rules.lifecycle import Stored
from tests.contract.schema_support import engine_for, execute
from tests.crash import saga_worker
from tests.crash.processes import dismiss, wait_until
from tests.crash.saga_worker import NAME, PACKED, STEPS, Fate, Order
from tests.crash.shop import Shop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.conftest import FreshDatabase
    from tests.crash.processes import Processes, Worker

TABLE = (
    "CREATE TABLE effect (place {identity}, saga VARCHAR(80), step VARCHAR(80), direction VARCHAR(8), "
    "worker VARCHAR(80))"
)
IDENTITY = {
    "sqlite": "INTEGER PRIMARY KEY",
    "postgresql": "INTEGER PRIMARY KEY GENERATED ALWAYS AS IDENTITY",
    "mysql": "INTEGER PRIMARY KEY AUTO_INCREMENT",
    "mariadb": "INTEGER PRIMARY KEY AUTO_INCREMENT",
}
LIVELY = 3.0
"""Seconds of a lease that a worker keeps though the machine is busy: one that lost it often would count as dead."""
EVERYWHERE = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])


class Orders:
    """A service whose orders are sagas, as a test sees it."""

    def __init__(self, url: str, processes: Processes) -> None:
        self.shop = Shop(url)
        self.url = url
        self.directory: Path = processes.directory
        self._processes = processes
        self._saga = saga_worker.saga()
        with engine_for(url) as engine:
            execute(engine, TABLE.format(identity=IDENTITY[engine.dialect.name]))

    def close(self) -> None:
        self.shop.close()

    def start(self, orders: Mapping[str, Order], *, packed: bool = True) -> None:
        """Start sagas, by id; by default, the event that each waits for comes before it waits."""
        with engine_for(self.url) as engine, engine.begin() as connection:
            for one, order in orders.items():
                self._saga.start(connection, order, id=one)
                if packed:
                    self._saga.signal(connection, one, PACKED, {"weight": 7})

    def signal(self, id: str) -> None:
        with engine_for(self.url) as engine, engine.begin() as connection:
            self._saga.signal(connection, id, PACKED, {"weight": 7})

    def worker(self, name: str, fate: Fate = saga_worker.NOTHING, **settings: Any) -> Worker:
        work = partial(saga_worker.run, **settings)
        return self._processes.start(name, work, self.url, self.directory, fate)

    def killed(self, fate: Fate, name: str = "victim") -> None:
        """A worker meets its fate."""
        victim = self.worker(name, fate)
        wait_until(victim.ended, f"it dies: {fate.point}")
        assert victim.killed(), fate

    def outcomes(self) -> dict[str, str]:
        names = {0: "open", 1: "completed", 2: "compensated"}
        return {one: names[outcome] for one, outcome in self.shop.select("SELECT id, outcome FROM {saga}")}

    def state(self, id: str) -> str:
        with Admin(self.url) as admin:
            return str(admin.saga(NAME, id).state)

    def parked(self) -> list[tuple[str, str]]:
        """Why sagas are parked."""
        dead = f"SELECT error_code, error_message FROM {{delivery}} WHERE state = {int(Stored.DEAD)}"
        return [(code, text) for code, text in self.shop.select(dead)]

    def entries(self) -> int:
        """How much the sagas have done."""
        return int(self.shop.select("SELECT count(*) FROM {saga_step}")[0][0])

    def effects(self, id: str) -> list[tuple[str, str]]:
        found = self.shop.select("SELECT step, direction FROM effect WHERE saga = :id ORDER BY place", id=id)
        return [(step, direction) for step, direction in found]


def check(state: str, effects: list[tuple[str, str]]) -> None:
    """Completed: each effect once. Compensated: what was done is undone once, in reverse order."""
    assert max(Counter(effects).values(), default=1) == 1, effects
    done = [step for step, direction in effects if direction == "do"]
    undone = [step for step, direction in effects if direction == "undo"]
    if state == "completed":
        assert (sorted(done, key=STEPS.index), undone) == (list(STEPS), []), effects
    else:
        assert state == "compensated", effects
        assert set(done) == set(undone), effects
        assert undone == sorted(done, key=STEPS.index, reverse=True), effects


def end(orders: Orders, id: str, expected: str) -> None:
    """Another worker carries on by itself, exactly where it was."""
    survivor = orders.worker("survivor")
    wait_until(lambda: orders.state(id) == expected, f"it is {expected}")
    dismiss(survivor)
    check(expected, orders.effects(id))


@pytest.fixture
def orders(kind: str, ready_database: FreshDatabase, processes: Processes) -> Iterator[Orders]:
    with closing(Orders(ready_database(kind), processes)) as orders:
        yield orders


FORWARD = [
    "do reserve",
    "in do reserve",
    "log begins do reserve",
    "log ended do reserve",  # and not committed
    "do charge",  # the step before it is committed
    "in do charge",  # the bank has done it, and nobody has written that down
    "log_many begins",
    "log_many ended",
    "wait begins",
    "wait ended",
    "receive begins",
    "receive ended",
    "in do pack",
    "in do invoice",
    "log ended do label",
    "in do ship",
    "log ended do ship",  # the end of the saga is written, and not committed
]
BACK = [
    "turn begins",
    "turn ended",
    "undo label",
    "in undo label",
    "log ended undo invoice",
    "in undo pack",
    "undo charge",
    "in undo charge",
    "in undo reserve",
    "log ended undo reserve",
]


@EVERYWHERE
def test_S_1_wherever_workers_are_killed_a_saga_goes_on_where_it_was_and_each_effect_happens_once(
    orders: Orders,
) -> None:
    deaths = [
        *((Fate(point), Order()) for point in FORWARD),
        *((Fate(point), Order(fails_at="ship")) for point in BACK),
        *((Fate(point), Order(fails_at="charge")) for point in ("turn ended", "undo charge")),
    ]
    for number, (fate, order) in enumerate(deaths):
        orders.start({str(number): order})
        orders.killed(fate, f"victim-{number}")
    expected = {
        str(number): "compensated" if order.fails_at else "completed" for number, (_, order) in enumerate(deaths)
    }
    survivor = orders.worker("survivor", lock_lease_sec=LIVELY)
    wait_until(lambda: "open" not in orders.outcomes().values(), "all have ended", orders.entries)
    assert orders.outcomes() == expected
    dismiss(survivor)
    for one, state in expected.items():
        check(state, orders.effects(one))
    assert orders.shop.unsent() == 0


@pytest.mark.parametrize("kind", ["postgresql"])
def test_S_1_a_saga_that_kills_its_workers_is_undone_and_none_that_was_claimed_with_it(orders: Orders) -> None:
    innocent = {str(number): Order() for number in range(1, 11)}
    orders.start({"poison": Order(kills_at="reserve"), **innocent})
    deaths = 0
    while orders.state("poison") != "compensated":
        worker = orders.worker(f"worker-{deaths}")
        wait_until(lambda: worker.ended() or orders.state("poison") == "compensated", "it dies, or turns")  # noqa: B023 - called at once
        deaths += worker.killed()
    wait_until(lambda: not orders.shop.unsent(), "all have ended")
    assert deaths == 6
    assert orders.outcomes() == {"poison": "compensated", **dict.fromkeys(innocent, "completed")}
    assert orders.effects("poison") == []


@EVERYWHERE
@pytest.mark.parametrize("point", ["start", "started"])
def test_S_1_a_saga_is_started_with_the_order_or_not_at_all(orders: Orders, processes: Processes, point: str) -> None:
    web = processes.start("web", saga_worker.begin, orders.url, Fate(point))
    wait_until(web.killed, f"it dies: {point}")
    if point == "start":
        assert (orders.outcomes(), orders.effects("1")) == ({}, [])
        return
    orders.signal("1")
    survivor = orders.worker("survivor")
    wait_until(lambda: orders.state("1") == "completed", "it is completed")
    dismiss(survivor)
    assert Counter(step for step, _ in orders.effects("1")) == Counter(["order", *STEPS])


@EVERYWHERE
def test_S_2_a_saga_that_is_parked_or_resumed_by_a_process_that_dies_is_parked_or_resumed_once(
    orders: Orders, processes: Processes
) -> None:
    orders.start({"1": Order(fails_at="ship", parks_at="reserve")})
    orders.killed(Fate("park begins"), "before")
    orders.killed(Fate("park ended"), "after")
    assert orders.state("1") == "parked"
    assert orders.shop.select("SELECT count(*) FROM {audit} WHERE action = 'saga_parked'") == [(1,)]
    (orders.directory / "mended").touch()
    for point, state in (("resume begins", "parked"), ("resume ended", "compensating")):
        operator = processes.start(point.replace(" ", "-"), saga_worker.resume, orders.url, Fate(point))
        wait_until(operator.killed, f"it dies: {point}")
        assert orders.state("1") == state
    end(orders, "1", "compensated")


@pytest.mark.parametrize("kind", ["postgresql"])  # elsewhere the paused process may hold locks in mid-transaction
def test_S_1_a_worker_that_wakes_after_another_has_its_saga_cannot_commit_its_step(orders: Orders) -> None:
    points = ["do reserve", "in do reserve", "log begins do reserve", "in do charge", "log_many begins", "in do ship"]
    for number, point in enumerate(points):
        one = str(number)
        waits = point == "in do ship"
        orders.start({one: Order()}, packed=waits)
        zombie = orders.worker(f"zombie-{number}", Fate(point, signal=signal.SIGSTOP))
        wait_until(zombie.stopped, f"it is paused: {point}")
        if not waits:  # it would be paused in the middle of receiving the event, and keep a lock on the saga
            orders.signal(one)
        other = orders.worker(f"other-{number}")
        wait_until(lambda: orders.state(one) == "completed", "the other completes it")  # noqa: B023 - called at once
        zombie.signal(signal.SIGCONT)
        dismiss(zombie, other)
        check(orders.state(one), orders.effects(one))


@pytest.mark.parametrize(("kind", "number"), [("postgresql", 300), ("mariadb", 60), ("sqlite", 60)])
def test_S_1_of_hundreds_of_sagas_all_end_and_every_invariant_holds_though_workers_are_killed_at_random(
    orders: Orders, number: int
) -> None:
    chance = random.Random(7)  # noqa: S311 - repeatable, not secret
    orders.start({str(one): Order(fails_at=chance.choice(["", "", *STEPS])) for one in range(number)})
    kills = 0
    workers = [orders.worker(f"worker-{n}", lock_lease_sec=LIVELY) for n in range(3)]
    while orders.shop.unsent() > number // 10:
        victim = chance.randrange(len(workers))
        seen = orders.shop.unsent()
        fewer = max(seen - number // 10, 0)
        wait_until(lambda: orders.shop.unsent() <= fewer, "they get on", orders.entries)  # noqa: B023 - called at once
        workers[victim].signal(signal.SIGKILL)
        wait_until(workers[victim].ended, "it dies")
        kills += 1
        workers[victim] = orders.worker(f"worker-{len(workers) + kills}", lock_lease_sec=LIVELY)
    wait_until(lambda: orders.shop.unsent() == len(orders.parked()), "all have ended", orders.entries)
    assert orders.parked() == []
    dismiss(*workers)
    assert kills >= 8
    outcomes = orders.outcomes()
    assert len(outcomes) == number
    for one, state in outcomes.items():
        check(state, orders.effects(one))
