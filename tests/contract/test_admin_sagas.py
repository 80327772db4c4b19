"""Sagas as operators see them: listed, counted and found by state, name, error and age, on every driver."""

from __future__ import annotations

import io
import sys
from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from postroom.admin import as_json
from postroom.cli.output import duration
from postroom.cli.saga_timeline import print_saga
from postroom.errors import InvalidSetting, SagaActRefused, SagaNotFound
from postroom.rules.naming import SAGA_FORK_OF, SAGA_TELL
from postroom.rules.saga_plan import Direction, SagaOutcome, StepOutcome
from postroom.rules.saga_state import SagaState
from postroom.store.admin.saga_filter import SagaFilter
from postroom.store.admin.sagas import Sagas
from tests.contract.saga_support import EVERY, Facts, make, record, start
from tests.contract.store_drivers import only_on

if TYPE_CHECKING:
    from tests.contract.store_drivers import Room

BACK = Direction.BACK


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


def test_S_5_sagas_are_found_by_name_id_code_and_age(room: Room) -> None:
    old = start(room, "orders", "old")
    room.execute("UPDATE {delivery} SET state = 3, error_code = 'TIMEOUT' WHERE position = :position", position=old)
    room.execute(
        f"UPDATE {{saga}} SET started = {room.dialect.later(':ago')} WHERE position = :at", ago=-3600.0, at=old
    )
    young = start(room, "orders", "young")
    undone = make(room, "orders", "undone", Facts(Direction.BACK, SagaOutcome.COMPENSATED, None))
    room.execute("UPDATE {saga} SET error_code = 'REFUSED' WHERE position = :position", position=undone)
    other = start(room, "mails", "old")
    assert listed(room, SagaFilter("orders")) == [undone, young, old]
    assert listed(room, SagaFilter("mails")) == [other]
    assert listed(room, SagaFilter("nothing")) == []
    assert listed(room, SagaFilter("orders", ["old", "undone", "absent"])) == [undone, old]
    assert listed(room, SagaFilter(code="TIMEOUT")) == [old]
    assert listed(room, SagaFilter(code="REFUSED")) == [undone]
    assert listed(room, SagaFilter(older_than=timedelta(minutes=50))) == [old]
    assert listed(room, SagaFilter("orders", states=["parked", "compensated"])) == [undone, old]
    assert listed(room, limit=2) == [other, undone]
    assert listed(room, limit=2, before=undone) == [young, old]
    assert room.admin().count_sagas(SagaFilter("orders")).total == 3
    page = room.admin().sagas(limit=3)
    assert [one.id for one in page] == ["old", "undone", "young"]
    assert [one.position for one in room.admin().sagas(limit=3, before=page.next)] == [old]


def test_S_5_signals_are_no_sagas(room: Room) -> None:
    saga = start(room, "orders", "1")
    room.add(3, queue="saga:orders", topic="saga:orders")
    assert listed(room) == [saga]
    assert [one.count for one in room.run(Sagas(room.names).open_counts())] == [1]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"states": ["dead"]}, "'dead' is not valid: use started, running"),
        ({"states": "parked"}, "give a list"),
        ({"ids": ["1"]}, "give its name"),
        ({"name": "orders", "ids": "1"}, "give a list"),
        ({"older_than": timedelta(-1)}, "not negative"),
        ({"as_of": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
    ],
)
def test_S_5_a_filter_that_makes_no_sense_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        SagaFilter(**fields)


def test_S_5_a_saga_that_is_parked_at_its_pivot_may_be_aborted_and_one_behind_it_not(room: Room) -> None:
    at, behind = (start(room, "orders", name, '[["charge","call","",1],["ship"]]') for name in ("at", "behind"))
    record(room, behind, "charge")
    for position in (at, behind):
        room.execute("UPDATE {delivery} SET state = 3, error_code = 'X' WHERE position = :position", position=position)
    told = {name: room.admin().saga("orders", name).explanation for name in ("at", "behind")}
    assert told["at"].endswith(
        "or do it by hand and run `postroom sagas skip orders at`; or make sure that it has not happened and run "
        "`postroom sagas abort orders at`"
    )
    assert told["behind"].endswith("run `postroom sagas skip orders behind`")


def test_S_5_one_saga_is_told_with_its_plan_steps_and_what_comes_next(room: Room) -> None:
    start(room, "orders", "1/charge")
    position = start(room, "orders", "1", headers={SAGA_TELL: '["parents","p-1","done"]', SAGA_FORK_OF: "0"})
    record(room, position, "reserve", result=b'"seat 7"', data=b'{"seat":7}')
    record(room, position, "charge", StepOutcome.FAILED, code="REFUSED")
    room.execute(
        "UPDATE {saga} SET direction = 1, failed_step = 'charge', error_code = 'REFUSED', error_message = 'no money' "
        "WHERE position = :position",
        position=position,
    )
    room.execute(
        "UPDATE {delivery} SET state = 3, attempts = 15, error_code = 'CONNECTION', error_message = 'bank is away' "
        "WHERE position = :position",
        position=position,
    )
    room.execute(
        "INSERT INTO {saga_event} (position, message_id, name, payload) VALUES (:position, :id, 'parcel', :payload)",
        position=position,
        id="00000000-0000-0000-0000-000000000001",
        payload=b'{"at":"door"}',
    )
    told = room.admin().saga("orders", "1")
    assert (told.state, told.direction, told.failed_step) == (SagaState.PARKED, Direction.BACK, "charge")
    assert [step.name for step in told.plan] == ["reserve", "charge", "ship", "mail"]
    assert [(step.step, step.outcome, step.result_bytes, step.result) for step in told.steps] == [
        ("reserve", StepOutcome.DONE, 8, None),
        ("charge", StepOutcome.FAILED, None, None),
    ]
    [coming] = told.next
    assert (coming.step, coming.direction, coming.attempts, coming.error_code) == ("charge", BACK, 15, "CONNECTION")
    assert told.explanation == (
        "undoing charge failed for good (CONNECTION bank is away). It goes back, because charge failed (REFUSED no "
        "money). Remove the cause and run `postroom sagas resume orders 1`; or do it by hand and run `postroom sagas "
        "skip orders 1`"
    )
    assert told.parent is not None
    assert (*told.parent, told.fork_of) == ("parents", "p-1", "done", "0")
    assert [(one.name, one.id) for one in told.children] == [("orders", "1/charge")]
    assert [(event.name, event.payload) for event in told.events] == [("parcel", None)]
    assert (told.data, told.data_bytes) == (None, 10)
    assert "seat" not in str(as_json(told))
    whole = as_json(room.admin().saga("orders", "1", data=True), payload=True)
    assert (whole["data"], whole["steps"][0]["result"], whole["events"][0]["payload"]) == (
        *({"seat": 7}, "seat 7"),
        {"at": "door"},
    )


def test_S_5_a_saga_that_is_not_there_is_named_with_what_is(room: Room) -> None:
    start(room, "orders", "1")
    for act in (
        lambda: room.admin().saga("order", "1"),
        lambda: room.admin().resume_saga("order", "1", actor="ada"),
        lambda: room.admin().fork_saga("order", "1", step="a", actor="ada"),
    ):
        with pytest.raises(SagaNotFound, match=r"no saga 'order' with the id '1'.*names of open sagas: orders"):
            act()
    with pytest.raises(SagaNotFound, match="no saga 'orders' with the id '2'"):
        room.admin().abort_saga("orders", "2", actor="ada")


@only_on("sqlite3")
def test_S_5_whatever_a_saga_is_it_can_be_shown(room: Room, capsys: pytest.CaptureFixture[str]) -> None:
    for n, facts in enumerate(EVERY):
        make(room, "orders", str(n), facts)
        told = room.admin().saga("orders", str(n))
        assert told.state is facts.state
        assert told.explanation
        print_saga(told)
        assert capsys.readouterr().out.startswith(f"orders {n}   {facts.state}\n{told.explanation}\n")


@only_on("sqlite3")
def test_S_5_a_plan_that_this_version_cannot_read_is_told_and_stops_acts(room: Room) -> None:
    position = start(room, "orders", "1", '{"steps": 3}')
    room.execute("UPDATE {delivery} SET state = 3, error_code = 'X' WHERE position = :at", at=position)
    told = room.admin().saga("orders", "1")
    assert (told.plan, told.next, told.state) == ((), (), SagaState.PARKED)
    assert "cannot read its plan: use the one that wrote it" in told.explanation
    admin = room.admin()
    for act in (admin.skip_saga_step, admin.abort_saga, partial(admin.fork_saga, step="mail")):
        with pytest.raises(SagaActRefused, match="cannot read its plan"):
            act("orders", "1", actor="ada")
    admin.resume_saga("orders", "1", actor="ada")


@only_on("sqlite3")
def test_S_5_a_terminal_without_signs_gets_letters(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    position = start(room, "orders", "1")
    record(room, position, "reserve")
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    print_saga(room.admin().saga("orders", "1"))
    written.seek(0)
    lines = [line.split()[:2] for line in written.read().splitlines()]
    assert ["+", "reserve"] in lines
    assert [".", "charge"] in lines


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.0184, "18 ms"), (2.54, "2.5 s"), (90, "2 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_S_5_durations_are_told_in_a_unit_that_fits(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
