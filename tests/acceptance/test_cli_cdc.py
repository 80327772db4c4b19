"""What operators do with the stream from the command line, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest
from sqlalchemy import create_engine

from postroom import Admin, AsyncAdmin, Outbox, Relay, schema
from postroom.admin import Filter, Mode, Refusal, WhyNotSent
from postroom.errors import InvalidSetting
from postroom.store.connections.urls import resolve
from tests.acceptance.operator_desk import OperatorDesk
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from sqlalchemy import Connection

    from tests.conftest import FreshDatabase

QUICK: dict[str, Any] = {"poll_interval_sec": 0.02, "lane_lease_sec": 3}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(("POSTROOM_", "OUTBOX_", "INBOX_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


class Desk(OperatorDesk):
    """An operator at an outbox whose producers use CDC."""

    def __exit__(self, *_: object) -> None:
        self.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )
        super().__exit__()

    def __enter__(self) -> Self:
        return self

    def add(self, *keys: str | None) -> list[UUID]:
        """Messages in the stream, if the outbox is in it."""

        def record(connection: Connection) -> list[UUID]:
            added = [Outbox(cdc=True).add(connection, "orders", {"n": 1}, key=key).id for key in keys]
            connection.commit()
            return added

        return self.store.call(record)

    def execute(self, statement: str) -> list[Any]:
        def run(connection: Connection) -> list[Any]:
            found = connection.exec_driver_sql(statement.format(**self.store.names.mapping()))
            rows = list(found) if found.returns_rows else []
            connection.commit()
            return rows

        return self.store.call(run)

    @contextmanager
    def store_transaction(self) -> Iterator[None]:
        """A producer's transaction that does not end."""
        engine = create_engine(resolve(self.url))
        with engine.connect() as connection:
            Outbox().add(connection, "orders", {"n": 0})
            yield
            connection.rollback()
        engine.dispose()

    def relay_once(self) -> None:
        self.ended("relay", "--broker", "stdout:", "--cdc", "--once", "--lane-lease-sec", "3")

    @contextmanager
    def relay(self) -> Iterator[list[str]]:
        """A relay that reads the stream; yields what it sends."""
        sent: list[str] = []
        relay = Relay(self.url, lambda message: sent.append(str(message.id)), cdc=True, worker="reader", **QUICK)
        thread = threading.Thread(target=lambda: asyncio.run(relay.run()))
        thread.start()
        try:
            yield sent
        finally:
            relay.stop()
            thread.join()

    def until(self, condition: Any) -> None:
        asyncio.run(wait_for(condition))


@pytest.fixture
def desk(fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]) -> Iterator[Desk]:
    with Desk(fresh_database("postgresql"), capsys) as desk:
        yield desk


def test_R_7_an_operator_sets_it_up_watches_it_and_takes_it_off_while_it_runs(desk: Desk) -> None:
    assert desk.json("cdc", "status")["mode"] == "table"
    sql = desk("cdc", "setup", "--sql")
    assert "CREATE PUBLICATION" in sql
    assert "pg_create_logical_replication_slot('postroom_" in sql
    with desk.store_transaction():
        code, out, err = desk.ended("cdc", "setup", "--timeout", "0")
        assert (code, "waiting: transactions that have written must end first: process " in out) == (1, True)
        assert ", open for " in err
    made = desk.json("cdc", "setup", "--by", "ada")
    assert made["slot"].startswith("postroom_")
    assert desk("cdc", "setup", "--by", "ada") == "nothing to do: publication and slot are there\n"
    code, out, err = desk.ended("cdc", "status")
    assert code == 0
    assert f"nobody reads the slot {made['slot']}" in err
    assert "`postroom relay --cdc`" in err
    assert "(right)" in out

    with desk.relay() as sent:
        desk.until(lambda: desk.json("cdc", "status")["reader"] == "reader")
        ids = desk.add(None, "a", "a")
        desk.until(lambda: len(sent) == 3)
        status = desk.json("cdc", "status")
        assert (status["mode"], status["slot"]["wal_status"], status["is_published"]) == ("stream", "reserved", True)
        assert "read by" in desk("cdc", "status")
        code, _, err = desk.ended("cdc", "sweep")
        assert (code, "reader reads the stream" in err) == (1, True)
        with desk.store_transaction():
            code, _, err = desk.ended("cdc", "off", "--yes", "--timeout", "5")
            assert (code, "open transactions may have written" in err) == (1, True)
        desk.until(lambda: desk.json("cdc", "status")["mode"] == "table")  # by the relay, which goes on with it
        assert desk.json("cdc", "off", "--yes") == {"was_in_stream": False, "waited_for": []}
        [last] = desk.add("a")
        desk.until(lambda: len(sent) == 4)
        assert sent == [*map(str, ids), str(last)]
    status = desk.json("cdc", "status")
    assert (status["mode"], status["slot"], status["reader"]) == ("table", None, "")
    assert [action for action, _ in desk.audit()] == ["cdc_set_up", "cdc_off"]


def test_R_7_messages_in_the_stream_are_told_from_lost_ones_and_swept(desk: Desk) -> None:
    desk.relay_once()
    [one, other] = desk.add("a", None)
    code, _, err = desk.ended("cdc", "status")
    assert (code, "nobody reads: start `postroom relay --cdc`" in err) == (0, True)
    code, out, err = desk.ended("status")
    assert (code, "stream: stream, read by nobody" in out, "nobody reads the stream" in err) == (0, True, True)
    assert desk.json("status")["stream"] == {"mode": "stream", "reader": ""}
    assert "pending: in the stream, which no relay reads" in desk("messages", "show", str(one))
    assert {row["status"] for row in desk.json("messages", "list")} == {"pending"}
    assert len(desk.json("messages", "list", "--status", "pending")) == 2
    code, _, err = desk.ended("messages", "cancel", str(one), "--yes")
    assert (code, f"{one} is in the stream" in err) == (1, True)
    desk("cleanup", "--days", "0")
    with Admin(desk.url) as admin:
        assert admin.message(one).why.reason is WhyNotSent.NO_READER
        [refused] = admin.discard(Filter(ids=[one]), actor="ada").refused
        assert refused.status is Refusal.IN_STREAM
    assert desk.json("cdc", "sweep") == {"swept": 2}
    assert desk.json("cdc", "sweep") == {"swept": 0}
    assert desk.json("messages", "show", str(other))["status"] == "pending"
    assert desk("cdc", "off", "--yes").endswith("the outbox is back in the table\n")
    _, out, _ = desk.ended("relay", "--broker", "stdout:", "--once")
    assert {str(one), str(other)} == {json.loads(line)["id"] for line in out.splitlines()}


def test_R_7_an_outbox_in_the_stream_becomes_partitioned_and_no_message_is_missed(desk: Desk) -> None:
    with desk.relay() as sent:
        desk.until(lambda: desk.json("cdc", "status")["reader"] == "reader")
        first = desk.add("a", "a")
        desk.until(lambda: len(sent) == 2)
        desk("init", "--partitions", "day")
        assert desk.json("cdc", "status")["is_published"]
        second = desk.add("a", None, "a")
        desk.until(lambda: len(sent) == 5)
        assert {*sent} == {*map(str, first), *map(str, second)}
    assert desk.execute("SELECT count(*) FROM {receipt}") == [(5,)]
    assert desk.execute("SELECT count(*) FROM {delivery}") == [(0,)]


def test_R_7_several_processes_read_in_turns_until_all_is_sent(desk: Desk) -> None:
    desk.relay_once()
    desk.add("a", "a", None)
    options = ("--cdc", "--cdc-max-wal-bytes", "1000000000", "--processes", "2", "--until-empty")
    code, _, _ = desk.ended("relay", "--broker", "stdout:", *options)
    assert code == 0
    assert desk.execute("SELECT count(*) FROM {receipt}") == [(3,)]
    assert desk.execute("SELECT count(*) FROM {delivery}") == [(0,)]


async def test_async_code_operates_the_stream_too(fresh_database: FreshDatabase) -> None:
    url = fresh_database("postgresql")
    schema.create(url)
    async with AsyncAdmin(url) as admin:
        made = await admin.set_up_cdc(actor="ada")
        status = await admin.cdc_status()
        assert (status.mode, status.slot_name, status.slot is not None) == (Mode.TABLE, made.slot, True)
        assert any("PUBLICATION" in statement for statement in await admin.cdc_sql())
        assert await admin.sweep_cdc(actor="ada") == 0
        assert not await admin.switch_cdc_off(actor="ada")
        assert (await admin.cdc_status()).slot is None
        assert [one.action for one in await admin.audit()] == ["cdc_swept", "cdc_set_up"]


def test_other_databases_have_no_stream(fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    with OperatorDesk(fresh_database("sqlite"), capsys) as desk:
        for command in (("status",), ("setup",), ("off", "--yes"), ("sweep",)):
            code, _, err = desk.ended("cdc", *command)
            assert (code, "this database is sqlite: `postroom relay` without --cdc" in err) == (2, True)
        code, _, err = desk.ended("relay", "--cdc", "--broker", "stdout:", "--once")
        assert (code, "this is sqlite: leave it out" in err) == (2, True)
        with Admin(desk.url) as admin, pytest.raises(InvalidSetting, match="write-ahead log"):
            admin.cdc_status()


def test_R_7_an_outbox_that_debezium_reads_is_taken_back_by_its_own_command(desk: Desk) -> None:
    assert "mode = 'debezium'" in desk("cdc", "debezium", "on", "--sql")
    assert "postroom_debezium" in desk("cdc", "debezium", "on", "--by", "ada")
    assert desk.json("cdc", "status")["mode"] == "debezium"
    code, out, err = desk.ended("cdc", "status")
    assert (code, "Debezium reads" in out, "is read by no connector" in err) == (0, True, True)
    for command in (("off", "--yes"), ("sweep",), ("setup",)):
        code, _, err = desk.ended("cdc", *command)
        assert (code, "postroom cdc debezium off" in err) == (1, True)
    desk.add("a", None)
    assert desk("cdc", "debezium", "off", "--no-wait").endswith("the outbox is back in the table\n")
    assert desk.json("cdc", "status")["mode"] == "table"
    assert desk.json("status")["pending"] == 2
