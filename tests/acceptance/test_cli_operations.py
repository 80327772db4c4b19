"""What operators do from the command line, on real databases: look, requeue, discard, free, clean up."""

from __future__ import annotations

import getpass
import json
import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest

from postroom import Outbox
from postroom.store.outbox.leases import Dead, Sent
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers
from tests.acceptance.operator_desk import OperatorDesk
from tests.contract import clock
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase

DAY = 86_400
PATIENCE = 60


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("POSTROOM_", "OUTBOX_", "INBOX_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


class Desk(OperatorDesk):
    """An operator at a database, and what a relay did there before."""

    def add(self, *topics: str, key: str | None = None) -> list[UUID]:
        def record(connection: object) -> list[UUID]:
            added = [Outbox().add(connection, topic, {"card": "4711"}, key=key).id for topic in topics]
            connection.commit()  # type: ignore[attr-defined]  # SQLAlchemy's
            return added

        return self.store.call(record)

    def bury(self, *topics: str, code: str = "REJECTED") -> list[UUID]:
        """Messages that have died."""
        added = self.add(*topics)
        protocol = QueueStore(self.store.names)
        claimed = self.store.run(protocol.rows.claim("relay", 1000, 30)).messages
        dead = [Dead(one, code, "not wanted") for one in claimed if one.message.id in added]
        assert self.store.run(protocol.settlements.settle(dead)) == []
        assert len(dead) == len(added)
        return added

    def execute(self, statement: str) -> None:
        """What a program in plain SQL does; `{outbox}` and `{delivery}` are the tables."""

        def run(connection: Any) -> None:
            connection.exec_driver_sql(statement.format(**self.store.names.mapping()))
            connection.commit()

        self.store.call(run)

    def dead(self) -> list[str]:
        return [letter["id"] for letter in self.json("dead", "list")]


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


def test_L_10_a_day_with_dead_letters(desk: Desk) -> None:
    first, second, third = desk.bury("orders", "orders", "mails")
    [timed_out] = desk.bury("orders", code="TIMEOUT")
    assert desk.dead() == [str(one) for one in (timed_out, third, second, first)]
    [listed] = desk.json("dead", "list", "--topic", "mails")
    assert (listed["id"], listed["error_code"], listed["error_message"], listed["attempts"]) == (
        *(str(third), "REJECTED", "not wanted"),
        1,
    )
    assert desk.json("dead", "list", "--limit", "1", "--before", str(listed["position"]))[0]["id"] == str(second)
    assert "not wanted" in desk("dead", "list", "--code", "TIMEOUT", "--older-than", "0")
    assert desk("dead", "list", "--key", "7") == "no dead letters\n"
    assert str(first) in desk("dead", "show", str(first))
    assert desk("dead", "requeue", str(first), "--by", "ada") == "requeued 1 dead letter\n"
    assert desk.json("messages", "show", str(first))["history"][0]["actor"] == "ada"
    assert desk.json("dead", "requeue", "--code", "TIMEOUT", "--yes") == {"requeued": 1, "not_done": {}}
    assert desk.json("dead", "discard", "--all", "--yes", "--by", "eve") == {"discarded": 2, "not_done": {}}
    assert desk.dead() == []
    user = getpass.getuser()
    assert desk.audit() == [("requeue", "ada"), ("requeue", user), ("discard", "eve"), ("discard", "eve")]
    status = desk.json("status")
    assert (status["pending"], status["dead"]) == (2, 0)


def test_L_10_of_several_ids_those_that_are_dead_are_done_and_the_others_named(desk: Desk) -> None:
    dead, also_dead = desk.bury("orders", "orders")
    [pending] = desk.add("orders")
    missing = uuid4()
    code, out, err = desk.ended("dead", "requeue", str(dead), str(pending), str(missing), "--json")
    assert code == 1
    assert json.loads(out) == {"requeued": 1, "not_done": {str(pending): "pending", str(missing): "not there"}}
    assert err.count("\n") == 1
    assert f"{pending} is pending" in err
    assert f"{missing} is not there" in err
    assert desk.dead() == [str(also_dead)]
    code, out, err = desk.ended("dead", "show", str(pending))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "it is pending" in err


def test_L_17_messages_are_cancelled_unless_they_are_sent_or_dead(desk: Desk) -> None:
    [dead] = desk.bury("orders")
    first, second, third, fourth = desk.add("orders", "orders", "mails", "mails", key="7")
    assert desk("messages", "cancel", str(first), "--by", "ada") == "cancelled 1 message\n"
    code, out, err = desk.ended("messages", "cancel", str(second), str(dead), str(first), "--json")
    assert code == 1
    assert json.loads(out) == {"cancelled": 1, "not_done": {str(dead): "dead", str(first): "not there"}}
    assert f"{dead} is dead" in err
    protocol = QueueStore(desk.store.names)
    lanes = desk.store.run(protocol.lanes.take("relay", 30))
    [claimed] = desk.store.run(protocol.lanes.read(lanes, 1, 30)).messages
    assert claimed.message.id == third
    code, out, err = desk.ended("messages", "cancel", "--topic", "mails", "--yes")
    assert (code, out) == (1, "cancelled 1 message\n")
    assert f"{third} is being sent" in err
    assert desk.audit() == [("cancel", "ada"), ("cancel", getpass.getuser()), ("cancel", getpass.getuser())]
    code, out, err = desk.ended("messages", "cancel")
    assert (code, "give ids, or a filter" in err) == (2, True)
    assert str(fourth) not in desk("messages", "list")


def test_V_5_a_message_says_why_it_has_not_left(desk: Desk) -> None:
    [first] = desk.add("orders")
    assert desk.json("messages", "show", str(first))["reason"] == "no_relay"
    desk.store.run(Workers(desk.store.names).beat("relay 1", 16, 2, "connection refused"))
    told = desk("messages", "show", str(first))
    assert "relay 1: connection refused" in told
    assert "4711" not in told
    assert "4711" in desk("messages", "show", str(first), "--payload")
    assert desk.json("messages", "show", str(first), "--payload")["payload"] == '{"card":"4711"}'
    [relay] = desk.json("status")["relays"]
    assert (relay["worker"], relay["broker_down"], relay["in_flight"]) == ("relay 1", "connection refused", 2)
    assert "down: connection refused" in desk("status")
    missing = uuid4()
    code, out, err = desk.ended("messages", "show", str(missing))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert str(missing) in err


def test_V_5_what_waits_for_a_handler_asks_for_its_consumer_and_for_no_relay(small_desk: Desk) -> None:
    desk = small_desk
    [parked] = desk.add("orders")
    desk.execute("UPDATE {delivery} SET queue = 'handler:billing'")
    told = desk.json("messages", "show", str(parked))
    assert told["reason"] == "no_relay"
    assert told["explanation"] == "no consumer is alive for handler:billing: start it with `postroom consume`"
    desk.store.run(Workers(desk.store.names, "handler:billing").beat("consumer 1", 16, 0))
    assert "a consumer takes it next" in desk.json("messages", "show", str(parked))["explanation"]


def test_R_9_what_was_written_by_half_is_listed_and_can_be_cancelled(desk: Desk) -> None:
    half = uuid4()
    first, second = desk.add("orders", "orders")
    desk.execute(
        f"INSERT INTO {{outbox}} (id, topic, ordering_key, content_type) VALUES ('{half}', 'mails', '7', 'text/plain')"
    )
    rows = desk.json("messages", "list")
    assert [(row["id"], row["status"], row["key"]) for row in rows] == [
        (str(half), None, "7"),
        (str(second), "pending", None),
        (str(first), "pending", None),
    ]
    assert rows[0]["created_at"]
    assert "incomplete" in desk("messages", "list")
    assert f"`postroom messages cancel {half}`" in desk("messages", "show", str(half))
    assert desk.ended("messages", "cancel", str(half), "--topic", "orders", "--yes")[0] != 0
    assert desk("messages", "cancel", str(half), str(first)) == "cancelled 2 messages\n"
    assert desk.audit() == [("cancel", getpass.getuser())] * 2
    assert [row["id"] for row in desk.json("messages", "list")] == [str(second)]


def test_R_9_what_waits_for_its_topic_is_told_and_can_be_cancelled(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second, _ = desk.add("orphans", "orphans", "orders")
    (tmp_path / "targets.py").write_text(
        "from postroom.brokers.port import TargetUnavailable\n\n"
        "def deliver(message):\n"
        "    return TargetUnavailable('no such queue') if message.topic == 'orphans' else None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = desk.ended("relay", "--once", "--broker", "python:targets:deliver", "--json")
    report = json.loads(out)
    assert (code, report["sent"], report["postponed"], report["dead"]) == (1, 1, 2, 0)
    assert "orphans: no such queue" in err.splitlines()[-1]
    [target] = desk.json("status")["targets"]
    assert (target["topic"], target["waiting"], target["reason"]) == ("orphans", 2, "no such queue")
    assert target["since"]
    assert "no such queue" in desk("status")
    told = desk.json("messages", "show", str(first))
    assert (told["reason"], told["attempts"], told["status"]) in {
        ("target_down", 0, "waiting"),
        ("no_relay", 0, "pending"),  # its time to try has come
    }
    assert desk("messages", "cancel", str(first), str(second)) == "cancelled 2 messages\n"
    assert desk.json("status")["targets"] == []


def test_L_16_what_is_held_names_its_blocker_but_skip_holds_none(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    blocker, behind = desk.add("orders", "orders", key="7")
    protocol = QueueStore(desk.store.names)
    lanes = desk.store.run(protocol.lanes.take("relay", 30))
    one, _ = desk.store.run(protocol.lanes.read(lanes, 2, 30)).messages
    desk.store.run(protocol.settlements.settle([Dead(one, "REJECTED", "not wanted")]))
    desk.store.run(protocol.lanes.release(lanes))
    told = desk.json("messages", "show", str(behind))
    assert (told["reason"], told["blocker"]["id"], told["blocker"]["status"]) == ("held", str(blocker), "dead")
    assert desk.json("status")["held"] == 1
    monkeypatch.setenv("OUTBOX_ORDER", "skip")
    assert desk.json("messages", "show", str(behind))["reason"] == "no_relay"
    assert desk.json("status")["held"] == 0


def test_V_5_leases_that_have_ended_are_freed(desk: Desk) -> None:
    desk.add("orders", "orders")
    protocol = QueueStore(desk.store.names)
    desk.store.run(protocol.rows.claim("gone", 1, 30))
    desk.store.run(protocol.lanes.take("gone", 30, 2))
    assert desk.json("messages", "release", "--expired") == {"messages": 0, "lanes": 0}
    clock.advance(desk.store, 31)
    desk.store.run(protocol.rows.claim("alive", 1, 30, after=1, due=False))
    assert desk("messages", "release", "--expired") == "freed 1 lease on messages and 2 on lanes\n"
    assert desk.json("status")["sending"] == 1


NOTHING_REMOVED = {"messages": 0, "marks": 0, "entries": 0, "transactions": 0, "audit": 0, "counters": 0}


def test_L_15_clean_up_removes_what_was_settled_long_ago(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    [dead] = desk.bury("orders")
    desk.add("orders", "orders")
    protocol = QueueStore(desk.store.names)
    claimed = desk.store.run(protocol.rows.claim("relay", 10, 30)).messages
    desk.store.run(protocol.settlements.settle([Sent(one) for one in claimed]))
    [unsent] = desk.add("orders")
    clock.advance(desk.store, 3 * DAY)
    assert desk.json("cleanup") == NOTHING_REMOVED
    monkeypatch.setenv("OUTBOX_RETENTION_DAYS", "4")
    assert desk.json("cleanup") == NOTHING_REMOVED
    told = desk("cleanup", "--days", "2")
    assert told.startswith(
        "removed 2 messages and 0 two-phase commits settled more than 2 days ago, 0 inbox marks older than 7 days, "
        "0 expired idempotency keys, and 0 audit records older than 365 days"
    )
    assert {one["id"] for one in desk.json("messages", "list")} == {str(dead), str(unsent)}


def test_to_requeue_what_is_older_than_the_inbox_remembers_is_warned_of(small_desk: Desk) -> None:
    small_desk.bury("orders")
    clock.advance(small_desk.store, 8 * DAY)
    small_desk.bury("orders")
    code, out, err = small_desk.ended("dead", "requeue", "--all", "--yes")
    assert (code, out) == (0, "requeued 2 dead letters\n")
    assert err.startswith("postroom: warning: 1 of 2 were recorded more than 7 days ago")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["messages", "release"], "--expired"),
        (["messages", "show", "seven"], "'seven' is not a message id"),
        (["dead", "show", "seven"], "'seven' is not a message id"),
        (["dead", "requeue"], "--all"),
        (["dead", "discard", "--all", "--topic", "orders", "--yes"], "say in one way only what to discard"),
        (["dead", "requeue", "--all"], "--yes"),
        (["dead", "discard", "--code", "REJECTED"], "--yes"),
        (["dead", "requeue", "--all", "--yes", "--by", ""], "--by"),
        (["dead", "list", "--older-than", "-1"], "--older-than"),
        (["cleanup", "--days", "-1"], "--days"),
        (["cleanup", "--days", "soon"], "--days"),
        (["cleanup", "--audit-days", "-1"], "--audit-days"),
        (["cleanup", "--load", "0"], "--load"),
    ],
)
def test_a_wrong_call_is_one_line_that_names_the_remedy_and_does_nothing(
    small_desk: Desk, arguments: list[str], remedy: str
) -> None:
    dead = small_desk.bury("orders")
    code, out, err = small_desk.ended(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert remedy in err
    assert small_desk.dead() == [str(one) for one in dead]


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 1, 3), ("\x04", 130, 3)])
def test_on_a_terminal_many_at_once_are_asked_for(small_desk: Desk, answer: str, code: int, left: int) -> None:
    small_desk.bury("orders", "orders", "orders")
    command = [sys.executable, "-m", "postroom", "dead", "discard", "--all", "--database", small_desk.url]
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        seen = b""
        while b"?" not in seen:
            seen += os.read(ours, 4096)
        assert b"Discard 3 dead letters" in seen
        os.write(ours, answer.encode())
        try:
            while chunk := os.read(ours, 4096):
                seen += chunk
        except OSError:  # Linux's way to say that the other side has closed
            pass
        os.close(ours)
        assert process.wait(PATIENCE) == code
    assert b"Traceback" not in seen
    assert len(small_desk.dead()) == left


def test_a_payload_that_is_no_text_is_shown_in_base64(small_desk: Desk) -> None:
    def record(connection: Any) -> UUID:
        identifier = Outbox().add(connection, "orders", b"\xff\x00").id
        connection.commit()
        return identifier

    identifier = small_desk.store.call(record)
    assert small_desk.json("messages", "show", str(identifier), "--payload")["payload_base64"] == "/wA="
    assert "/wA=" in small_desk("messages", "show", str(identifier), "--payload")
