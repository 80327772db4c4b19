"""Random sagas, and whatever may happen to them: workers, operators, time and services do as Hypothesis says.

In the end every effect is there once, or is undone once, in reverse; and there is an end.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postroom.rules.saga_plan import Kind, PlannedStep
from tests.contract.random_sagas import LEASE, WAIT, Gate, Planned, RandomSaga
from tests.contract.store_drivers import only_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.contract.store_drivers import Room

T = TypeVar("T")

EXAMPLES = {"sqlite": 25, "postgresql": 15, "mariadb": 15}
ACTIONS = 40
MOST_ROUNDS = 80

kinds = st.sampled_from([Kind.STEP, Kind.STEP, Kind.CALL, Kind.CALL, Kind.WAIT])
group_sizes = st.sampled_from([1, 1, 1, 2, 3])
FUNCTIONS = ["ok"] * 6 + ["fail", "reject", "refuse", "time out", "lose the answer", "lose the commit"]
HAPPENINGS = ["open"] * 12 + ["claim"] * 3 + ["advance"] * 3 + ["arrive", "end_thread", "crash", "signal", "operate"]


@st.composite
def sagas(draw: st.DrawFn) -> list[Planned]:
    steps: list[Planned] = []
    pivot = draw(st.sampled_from([None, None, 0, 1, 2]))
    is_past = False
    for place in range(draw(st.integers(1, 4))):
        size = draw(group_sizes)
        for _ in range(size):
            kind = draw(kinds if size == 1 else st.sampled_from([Kind.STEP, Kind.CALL]))
            name = f"s{len(steps)}"
            step = PlannedStep(
                name,
                kind,
                group=f"g{place}" if size > 1 else "",
                pivot=size == 1 and place == pivot and kind is not Kind.WAIT,
                compensated=not is_past and draw(st.sampled_from([True, True, True, False])),
                event=name if kind is Kind.WAIT else "",
            )
            is_past = is_past or step.pivot
            steps.append(Planned(step, continues=draw(st.booleans()), wanted=draw(st.integers(0, 7)) > 0))
    return steps


class Happenings:
    """What may happen to a saga."""

    def __init__(self, saga: RandomSaga, data: st.DataObject) -> None:
        self._saga = saga
        self._data = data

    def happen(self) -> None:
        getattr(self, self.one_of([name for name in HAPPENINGS if self.can(name)]))()

    def can(self, name: str) -> bool:
        saga = self._saga
        needs = {
            "open": saga.gates,
            "arrive": saga.network,
            "end_thread": saga.threads,
            "crash": saga.workers,
            "signal": self.events,
        }
        return bool(needs.get(name, True))

    @property
    def events(self) -> list[str]:
        return [one.step.event for one in self._saga.steps if one.step.event]

    def one_of(self, choices: Sequence[T]) -> T:
        return self._data.draw(st.sampled_from(choices))

    def open(self) -> None:
        gate = self.one_of(self._saga.gates)
        self._saga.open(gate, "ok" if gate.call is None else self.one_of(FUNCTIONS))

    def claim(self) -> None:
        old_code = self._data.draw(st.integers(0, 9)) == 0
        self._saga.claim(self._saga.begin_work(old_code=old_code))

    def advance(self) -> None:
        self._saga.room.advance(self.one_of([11.0, LEASE + 1, WAIT + 1]))

    def arrive(self) -> None:
        headers = self.one_of(self._saga.network)
        self._saga.network.remove(headers)
        self._saga.arrive(headers)

    def end_thread(self) -> None:
        self._saga.threads.pop(0)()

    def crash(self) -> None:
        self._saga.crash(self.one_of(self._saga.workers))

    def signal(self) -> None:
        self._saga.signal(self.one_of(self.events))

    def operate(self) -> None:
        if self._saga.has_ended:
            return
        what = self.one_of(["abort", "resume", "skip"])
        if what == "abort":
            self._saga.abort()
        elif self._saga.is_parked:
            self._saga.resume(skip=what == "skip")


def end(saga: RandomSaga) -> None:
    """From now on nothing fails, and somebody looks after what is parked."""
    for _ in range(MOST_ROUNDS):
        for gate in list[Gate](saga.gates):
            saga.open(gate, "ok")
        if saga.gates:
            continue
        if saga.has_ended:
            break
        if saga.is_parked:
            saga.resume(skip=saga.resumed > 2)
        saga.room.advance(LEASE + 1)
        saga.claim(saga.begin_work())
    assert saga.has_ended, f"it never ends: {saga.row}, {saga.sagas.steps(saga.position)}"


def late(saga: RandomSaga) -> None:
    """What is still under way comes after the end."""
    while saga.gates:
        saga.open(saga.gates[0], "ok")
    for thread in saga.threads:
        thread()
    for headers in saga.network:
        saga.arrive(headers)


def live(room: Room, data: st.DataObject, steps: Sequence[Planned]) -> None:
    deadline = data.draw(st.sampled_from([None, None, 3 * WAIT]))
    lost = data.draw(st.sampled_from([one.step.name for one in steps]))
    room.empty()
    with closing(asyncio.new_event_loop()) as loop, closing(RandomSaga(room, steps, deadline, loop, lost)) as saga:
        happenings = Happenings(saga, data)
        happenings.claim()
        for _ in range(data.draw(st.integers(10, ACTIONS))):
            happenings.happen()
        end(saga)
        assert list(saga.problems()) == []
        late(saga)
        assert list(saga.problems()) == []


@only_on("sqlite3", "psycopg", "pymysql")
def test_S_1_every_effect_is_there_once_or_is_undone_once_in_reverse(room: Room) -> None:
    @settings(
        max_examples=EXAMPLES[room.driver.kind],
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(data=st.data(), steps=sagas())
    def lives(data: st.DataObject, steps: list[Planned]) -> None:
        live(room, data, steps)

    lives()
