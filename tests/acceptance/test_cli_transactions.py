"""What operators do with two-phase commits from the command line, on real databases."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from postroom.rules.twophase_ids import transaction_id
from postroom.rules.twophase_plan import Decision
from postroom.store.twophase.log import TwoPhaseLog
from tests.acceptance.operator_desk import OperatorDesk
from tests.contract import clock
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("POSTROOM_", "OUTBOX_", "INBOX_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


class Desk(OperatorDesk):
    """An operator at a log, and what coordinators left there."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(url, capsys)
        self.log = TwoPhaseLog(self.store.names)

    def left(self, seconds: float, decision: Decision = Decision.COMMIT, problem: str = "") -> str:
        """A transaction whose deadline is in so many seconds."""
        run = self.store.run
        deadline = run(self.log.clock()) + int(seconds * 1000)
        tx = transaction_id(deadline, "00000000000f")
        run(self.log.open(tx, {"shop": "", "bank": f"pr1:0a0b0c0d:{tx}:bank"}, deadline))
        if decision is not Decision.OPEN:
            run(self.log.resolve_open(tx, decision))
        if problem:
            run(self.log.note_problem(tx, problem))
        return tx


@pytest.fixture(params=KINDS)
def desk(
    request: pytest.FixtureRequest, ready_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    with Desk(ready_database(request.param), capsys) as desk:
        yield desk


def test_T_2_an_operator_lists_shows_and_forgets(desk: Desk) -> None:
    assert desk("transactions", "list") == "no two-phase commits that are not settled\n"
    assert desk.json("transactions", "list") == []
    committing = desk.left(60)
    stuck = desk.left(-60, problem="damaged: participant 'bank' ended its branch against the decision")
    done = desk.left(-90)
    desk.store.run(desk.log.settle(done))

    titles, first, second = desk("transactions", "list").splitlines()
    assert titles.split() == ["id", "state", "age", "participants", "problem"]
    assert first.startswith(committing)
    assert "shop, bank" in first
    assert second.startswith(stuck)
    assert "damaged: participant 'bank'" in second
    assert [one["id"] for one in desk.json("transactions", "list", "--all")] == [committing, stuck, done]
    [listed] = desk.json("transactions", "list", "--state", "stuck")
    assert (listed["decision"], listed["missing"], listed["settled_at"]) == ("commit", ["bank"], None)
    assert desk.json("transactions", "list", "--before", stuck) == []

    shown = desk("transactions", "show", stuck)
    assert shown.startswith("stuck: damaged: participant 'bank'")
    assert f"pr1:0a0b0c0d:{stuck}:bank  missing" in shown
    assert "shop         does not prepare" in shown
    assert desk.json("transactions", "show", committing)["explanation"].startswith("commit is decided")

    code, out, err = desk.ended("status")
    assert (code, "stuck" in out) == (0, True)
    assert err == "postroom: warning: 1 two-phase commit is stuck: see `postroom transactions list --state stuck`\n"
    assert desk.json("status")["transactions"]["committing"]["count"] == 1

    assert desk("transactions", "forget", stuck, "--yes", "--by", "ada", "--reason", "corrected the books") == (
        "forgotten: 1 two-phase commit\n"
    )
    assert "corrected the books" in desk("transactions", "show", stuck)
    assert desk.audit() == [("transaction_forgotten", "ada")]
    assert [one["state"] for one in desk.json("transactions", "list", "--all")] == [
        *("committing", "forgotten", "committed")
    ]


def test_T_2_what_cannot_be_done_is_a_clear_error(desk: Desk) -> None:
    stuck, running = desk.left(-60, problem="denied"), desk.left(60)
    for arguments, problem in (
        (("show", "unknown"), "there is no two-phase commit 'unknown' on record"),
        (("forget", stuck), "this would forget 1 two-phase commit: confirm it with --yes"),
        (("decide", stuck, "abort", "--yes"), f"cannot decide transaction {stuck}: commit is decided already"),
        (("decide", running, "abort"), f"this would abort the two-phase commit {running}: confirm it with --yes"),
        (("list", "--all", "--state", "stuck"), "--all means all states"),
    ):
        code, out, err = desk.ended("transactions", *arguments)
        assert code != 0
        assert not out
        assert problem in err
        assert err.count("\n") == 1
    code, out, err = desk.ended("transactions", "forget", running, stuck, "unknown", "--yes", "--json")
    assert code == 1
    assert f'"forgotten": [\n    "{stuck}"\n  ]' in out
    assert "its deadline has not passed" in err
    assert "'unknown' on record" in err


def test_T_2_an_operator_decides_what_only_a_person_can_know(desk: Desk) -> None:
    undecided, other = desk.left(-60, Decision.OPEN), desk.left(-61, Decision.OPEN)
    assert "undecided: its coordinator did not decide it in time" in desk("transactions", "show", undecided)
    assert desk("transactions", "decide", undecided, "commit", "--yes") == "decided: commit. Recovery finishes it\n"
    assert desk.json("transactions", "decide", other, "abort", "--yes") == {"decided": other, "decision": "abort"}
    assert [one["state"] for one in desk.json("transactions", "list")] == ["committing", "aborting"]


APP = """
from pathlib import Path

from postroom import TwoPhaseCommit


class Files:
    def prepare(self, id): ...
    def commit(self, id):
        Path("committed").write_text(id)
    def abort(self, id):
        Path("aborted").write_text(id)


transfers = TwoPhaseCommit(log={url!r}, participants={{"shop": {url!r}, "files": Files()}})
away = TwoPhaseCommit(log={url!r}, participants={{"shop": {url!r}, "bank": "postgresql://127.0.0.1:1/bank"}})
nothing = []
"""


def test_T_2_an_operator_recovers_what_a_crash_left_behind(desk: Desk, tmp_path: Path) -> None:
    (name := tmp_path / f"app_{uuid4().hex}.py").write_text(APP.format(url=desk.url))
    app = f"--app={name.stem}:transfers"

    def recover(*arguments: str) -> tuple[int, str, str]:
        return desk.ran("transactions", "recover", *arguments)

    def leave(decision: Decision, name: str = "files") -> str:
        deadline = desk.store.run(desk.log.clock()) - 60_000
        tx = transaction_id(deadline, f"{len(desk.json('transactions', 'list', '--all')):012x}")
        desk.store.run(desk.log.open(tx, {"shop": "", name: f"pr1:0a0b0c0d:{tx}:{name}"}, deadline))
        if decision is Decision.COMMIT:
            desk.store.run(desk.log.resolve_open(tx, decision))
        return tx

    assert recover(app) == (0, "committed 0, rolled back 0, to be tried again 0\n", "")
    crashed, undecided = leave(Decision.COMMIT), leave(Decision.OPEN)
    clock.advance(desk.store, 60)  # its coordinator has had its time to settle it
    assert recover(app) == (0, "committed 1, rolled back 1, to be tried again 0\n", "")
    assert (crashed in (tmp_path / "committed").read_text(), undecided in (tmp_path / "aborted").read_text()) == (
        True,
    ) * 2
    assert desk.json("transactions", "list") == []

    unknown = leave(Decision.COMMIT, "bank")
    clock.advance(desk.store, 60)
    code, out, err = recover(app, "--json")
    assert (code, json.loads(out)["committed"]) == (1, [])
    assert f"1 two-phase commit cannot be finished: {unknown}: participant 'bank' is not known here" in err
    assert desk.json("transactions", "list")[0]["state"] == "stuck"

    code, out, err = recover(f"--app={name.stem}:away", "--json")
    assert (code, list(json.loads(out)["unreachable"])) == (1, ["bank"])
    assert "warning: bank could not be asked" in err

    code, _, err = recover(f"--app={name.stem}:nothing")
    assert (code, "is a list: give a TwoPhaseCommit" in err) == (2, True)
