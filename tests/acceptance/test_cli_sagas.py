"""What operators do with sagas from the command line, on real databases."""

from __future__ import annotations

import getpass
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Saga
from postroom.rules.saga_failures import STEP_RETRY
from postroom.rules.saga_plan import Direction, StepOutcome
from postroom.store.outbox.leases import Retry
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.saga.saga_store import SagaStore
from postroom.store.saga.values import Entry
from tests.acceptance.operator_desk import OperatorDesk
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from postroom.store.outbox.leases import Claimed
    from tests.conftest import FreshDatabase

FORWARD, BACK = Direction.FORWARD, Direction.BACK
CARD = "4711"

place_order = Saga("place_order")


@place_order.step
def reserve(saga: Any) -> None: ...


@reserve.compensation
def release(saga: Any) -> None: ...


@place_order.call
def charge(saga: Any) -> None: ...


@charge.compensation
def refund(saga: Any) -> None: ...


@place_order.step(pivot=True)
def ship(saga: Any) -> None: ...


@place_order.wait("parcel", timeout=86_400)
def delivered(saga: Any, event: Any) -> None: ...


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("POSTROOM_", "OUTBOX_", "INBOX_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


class Desk(OperatorDesk):
    """An operator at a database, and what workers did there before."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.sagas = SagaStore(self.store.names, "place_order")

    def start(self, *ids: str) -> None:
        def record(connection: Any) -> None:
            for one in ids:
                place_order.start(connection, {"card": CARD}, id=one)
            connection.commit()

        self.store.call(record)

    def claim(self) -> Claimed:
        queue = QueueStore(self.store.names, "saga:place_order")
        [claimed] = self.store.run(queue.rows.claim("web1:4711", 1, 30)).messages
        return claimed

    def log(self, claimed: Claimed, *entries: Entry) -> None:
        sql = self.sagas.sql
        self.store.run(sql.transaction(self.sagas.log, claimed, entries))

    def retry(self, claimed: Claimed, code: str, text: str) -> None:
        """What came next has failed, and is tried again in an hour."""
        queue = QueueStore(self.store.names, "saga:place_order")
        assert self.store.run(queue.settlements.settle([Retry(claimed, 3600, code, text)])) == []

    def park(self, *ids: str) -> None:
        """Sagas whose charge was refused, and whose refund failed for good."""
        for one in ids:
            self.start(one)
            claimed = self.claim()
            self.log(claimed, Entry(FORWARD, "reserve", StepOutcome.DONE, 0.018, result=b'"seat 7"'))
            failed = Entry(FORWARD, "charge", StepOutcome.FAILED, error_code="TIMEOUT", error_message="no answer")
            assert self.store.run(
                self.sagas.turn(claimed, [failed], "charge", "TIMEOUT", "no answer", token=claimed.token)
            )
            assert self.store.run(self.sagas.park(claimed, "charge", "CONNECTION", "bank is away", attempted=True))


@pytest.fixture(params=KINDS)
def desk(
    request: pytest.FixtureRequest, ready_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    with Desk(ready_database(request.param), capsys) as opened:
        yield opened


@pytest.fixture
def small_desk(ready_database: FreshDatabase, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    """On SQLite: for what does not depend on the database."""
    with Desk(ready_database("sqlite"), capsys) as opened:
        yield opened


def test_S_5_a_day_with_parked_sagas(desk: Desk) -> None:
    desk.park("order-7", "order-8", "order-9")
    desk.start("order-10")
    states = {saga["id"]: saga["state"] for saga in desk.json("sagas", "list")}
    assert states == {"order-10": "started", "order-9": "parked", "order-8": "parked", "order-7": "parked"}
    [_, listed, _] = desk.json("sagas", "list", "--name", "place_order", "--state", "parked", "--code", "CONNECTION")
    assert (listed["id"], listed["failed_step"], listed["error_message"]) == ("order-8", "charge", "bank is away")
    assert [one["id"] for one in desk.json("sagas", "list", "--limit", "1", "--before", str(listed["position"]))] == [
        "order-7"
    ]
    assert desk("sagas", "list", "--older-than", "0.5") == desk("sagas", "list", "--name", "x") == "no sagas\n"

    shown = desk("sagas", "show", "place_order", "order-7")
    assert "place_order order-7   parked\n" in shown
    assert "undoing charge failed for good (CONNECTION bank is away)" in shown
    assert "`postroom sagas resume place_order order-7`" in shown
    assert CARD not in shown
    assert "seat 7" not in shown
    assert CARD in desk("sagas", "show", "place_order", "order-7", "--data")
    told = desk.json("sagas", "show", "place_order", "order-7")
    assert CARD not in str(told)
    assert [(step["step"], step["direction"], step["outcome"]) for step in told["steps"]] == [
        ("reserve", "forward", "done"),
        ("charge", "forward", "failed"),
    ]
    assert told["next"][0] | {"due": None} == {
        "step": "charge",
        "direction": "back",
        "kind": "call",
        "event": None,
        "attempts": 1,
        "max_attempts": 15,
        "due": None,
        "error_code": "CONNECTION",
        "error_message": "bank is away",
    }
    assert desk.json("sagas", "show", "place_order", "order-7", "--data")["data"] == {"card": CARD}

    assert desk("sagas", "resume", "place_order", "order-7", "--by", "ada") == "resumed 1 saga\n"
    assert desk.json("sagas", "skip", "place_order", "order-8", "--reason", "paid back by hand") == {
        "skipped": 1,
        "not_done": {},
    }
    assert desk.json("sagas", "abort", "place_order", "order-10", "--by", "eve") == {"aborted": 1, "not_done": {}}
    made = desk.json("sagas", "fork", "place_order", "order-9", "--from", "charge", "--id", "order-9b", "--by", "eve")
    assert made == {"name": "place_order", "id": "order-9b", "fork_of": "order-9", "kept": ["reserve"]}
    assert [one["state"] for one in desk.json("sagas", "list")] == [
        "running",
        "compensating",
        "parked",
        *["compensating"] * 2,
    ]
    user = getpass.getuser()
    assert [act for act in desk.audit() if act[0] != "saga_parked"] == [
        ("saga_resumed", "ada"),
        ("saga_skipped", user),
        ("saga_aborted", "eve"),
        ("saga_forked", "eve"),
        ("saga_forked", "eve"),
    ]
    history = desk.json("sagas", "show", "place_order", "order-8")["history"]
    assert [(act["action"], act["reason"]) for act in history] == [
        ("saga_parked", ""),
        ("saga_skipped", "paid back by hand"),
    ]


def test_S_5_a_saga_shows_what_it_waits_for_and_when_it_is_tried_again(desk: Desk) -> None:
    desk.start("order-7")
    claimed = desk.claim()
    assert "held by web1:4711" in desk("sagas", "show", "place_order", "order-7")
    desk.retry(claimed, "TIMEOUT", "no answer")
    shown = desk("sagas", "show", "place_order", "order-7")
    assert "place_order order-7   retrying\n" in shown
    assert f"reserve failed (TIMEOUT no answer); attempt 2 of {STEP_RETRY.max_attempts} is at " in shown
    assert f"attempt 2 of {STEP_RETRY.max_attempts} at " in shown.splitlines()[4]
    desk.start("order-8")
    claimed = desk.claim()
    done = [Entry(FORWARD, step, StepOutcome.DONE) for step in ("reserve", "charge", "ship")]
    desk.log(claimed, *done)
    assert desk.store.run(desk.sagas.wait(claimed, "delivered", "parcel", 600.0)) is None
    shown = desk("sagas", "show", "place_order", "order-8")
    assert "waits for event 'parcel' until " in shown
    assert "delivered" in shown
    [told] = desk.json("sagas", "show", "place_order", "order-8")["next"]
    assert (told["step"], told["event"], told["kind"]) == ("delivered", "parcel", "wait")


def test_S_5_status_tells_of_sagas_and_warns_of_those_that_are_stuck(desk: Desk) -> None:
    assert desk.json("status")["sagas"] == {}
    desk.park("order-7", "order-8")
    desk.start("order-9")
    found = json.loads(desk.ended("status", "--json")[1])
    assert found["sagas"] == {"place_order": {"started": 1, "parked": 2}}
    code, out, err = desk.ended("status")
    assert (code, err) == (0, "postroom: warning: 2 sagas are parked: see `postroom sagas list --state parked`\n")
    assert "place_order        1       2\n" in out


def test_S_5_commands_on_messages_point_to_those_on_sagas(small_desk: Desk) -> None:
    small_desk.park("order-7")
    assert "postroom sagas" in small_desk("dead", "list").splitlines()[-1]
    [letter] = small_desk.json("dead", "list")
    assert "see `postroom sagas show place_order order-7`" in small_desk("dead", "show", letter["id"])
    code, _, err = small_desk.ended("dead", "discard", letter["id"])
    assert (code, "postroom sagas" in err) == (1, True)
    assert [one["state"] for one in small_desk.json("sagas", "list")] == ["parked"]


def test_S_5_many_at_once_want_a_yes(small_desk: Desk) -> None:
    small_desk.park("order-7", "order-8")
    code, out, err = small_desk.ended("sagas", "resume", "place_order", "--code", "CONNECTION")
    assert (code, out) == (2, "")
    assert err == "postroom: this would resume 2 sagas: confirm it with --yes\n"
    assert small_desk("sagas", "resume", "place_order", "--code", "NOTHING") == "resumed 0 sagas\n"
    assert small_desk("sagas", "resume", "--all", "--yes") == "resumed 2 sagas\n"
    assert small_desk("sagas", "resume", "--all") == "resumed 0 sagas\n"


@pytest.mark.parametrize(
    ("arguments", "code", "problem"),
    [
        (["show", "place_order", "x"], 1, "there is no saga 'place_order' with the id 'x': check both"),
        (["show", "place_ordr", "order-7"], 1, "(names of open sagas: place_order)"),
        (["resume"], 2, "say what to resume: give a name and ids"),
        (["resume", "place_order", "order-7", "--code", "X"], 2, "say in one way only what to resume"),
        (["skip", "place_order", "--all"], 2, "--all means sagas of all names"),
        (
            ["resume", "place_order", "order-7", "x"],
            1,
            "2 not resumed: place_order order-7 (it is started:",
        ),
        (["skip", "place_order", "order-7"], 1, "1 not skipped: place_order order-7 (it is started"),
        (
            ["fork", "place_order", "order-7", "--from", "ship"],
            1,
            "fork saga place_order order-7: it is started",
        ),
        (["fork", "place_order", "order-7"], 2, "Missing option '--from'"),
        (["list", "--state", "dead"], 2, "'dead' is not one of"),
        (["abort", "place_order", "order-7", "--by", ""], 2, "--by has 0 characters"),
    ],
)
def test_S_5_a_wrong_command_says_what_is_wrong(
    small_desk: Desk, arguments: list[str], code: int, problem: str
) -> None:
    small_desk.start("order-7")
    ended, _, err = small_desk.ended("sagas", *arguments)
    assert ended == code
    assert problem in err
    assert [one["state"] for one in small_desk.json("sagas", "list")] == ["started"]
