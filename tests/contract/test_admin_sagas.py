"""Sagas as operators see them: listed, counted and found by state, name, error and age, on every driver."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from postroom.rules.saga_state import SagaState
from postroom.store.admin.saga_filter import SagaFilter
from postroom.store.admin.sagas import Sagas
from tests.contract.saga_support import EVERY, make

if TYPE_CHECKING:
    from tests.contract.store_drivers import Room


def listed(room: Room, which: SagaFilter | None = None, **page: int) -> list[int]:
    found = room.run(Sagas(room.names).listed(which or SagaFilter(), **page))
    return [one.position for one in found]


def test_S_5_every_saga_is_listed_and_counted_by_its_state(room: Room) -> None:
    facts = {make(room, f"saga_{n % 3}", f"id-{n}", one): one for n, one in enumerate(EVERY)}
    newest_first = sorted(facts, reverse=True)
    assert listed(room) == newest_first[:50]
    assert listed(room, limit=1000) == newest_first
    for state in SagaState:
        in_state = [position for position in newest_first if facts[position].state is state]
        assert in_state
        assert listed(room, SagaFilter(states=[state])) == in_state, state
    found = room.run(Sagas(room.names).listed(limit=1000))
    assert {one.position: one.state for one in found} == {position: one.state for position, one in facts.items()}
    names = {one.position: one.name for one in found}
    counts = room.run(Sagas(room.names).counts())
    assert {(one.name, one.state): one.count for one in counts} == Counter(
        (names[position], one.state) for position, one in facts.items()
    )
