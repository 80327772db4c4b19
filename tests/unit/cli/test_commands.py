"""The commands on SQLite, in this process. On the other databases: tests/acceptance/test_cli.py."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from postroom import Outbox
from postroom.cli import init, output
from postroom.store.schema import migrations, versions

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Command

DATABASE = ("--database", "sqlite:///app.db")


def add(topic: str, payload: object = None, **fields: str) -> None:
    with closing(sqlite3.connect("app.db")) as connection, connection:
        Outbox().add(connection, topic, payload, **fields)  # type: ignore[arg-type]  # fields that are text


def test_init_says_what_it_did(postroom: Command) -> None:
    assert postroom("init", *DATABASE) == (0, "created version 7 of Postroom's tables\n", "")
    assert postroom("init", *DATABASE) == (0, "already at version 7: nothing to do\n", "")
    assert json.loads(postroom("init", *DATABASE, "--json").out) == {"before": 7, "version": 7}


def test_init_tells_an_upgrade_from_a_creation() -> None:
    assert init._told(1, 2) == "upgraded Postroom's tables from version 1 to version 2"


def test_the_database_may_come_from_the_environment_and_from_a_file(
    postroom: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("postroom.toml").write_text('database = "sqlite:///file.db"\ntable_prefix = "mail_"\n')
    assert postroom("init").code == 0
    assert Path("file.db").exists()
    monkeypatch.setenv("POSTROOM_DATABASE", "sqlite:///environment.db")
    assert postroom("init").code == 0
    with closing(sqlite3.connect("environment.db")) as connection:
        assert connection.execute("SELECT count(*) FROM mail_outbox").fetchone() == (0,)


@pytest.mark.parametrize("command", [("status",), ("messages", "list")])
def test_a_command_that_reads_makes_no_file(command: tuple[str, ...], postroom: Command) -> None:
    ended = postroom(*command, *DATABASE)
    assert ended.code == 1
    assert "no database file app.db" in ended.err
    assert "postroom init" in ended.err
    assert not Path("app.db").exists()


@pytest.mark.parametrize("command", [("status",), ("messages", "list")])
def test_tables_of_another_version_are_a_clear_error(
    command: tuple[str, ...], postroom: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("app.db").touch()
    missing = postroom(*command, *DATABASE)
    postroom("init", *DATABASE)
    with monkeypatch.context() as newer_postroom:
        newer_postroom.setattr(versions, "VERSION", versions.VERSION + 1)
        outdated = postroom(*command, *DATABASE)
    with closing(sqlite3.connect("app.db")) as connection, connection:
        connection.execute("DELETE FROM postroom_schema_version")
        connection.execute("INSERT INTO postroom_schema_version (version) VALUES (99)")
    newer = postroom(*command, *DATABASE)
    assert [missing.code, outdated.code, newer.code] == [1, 1, 1]
    assert "run `postroom init`" in missing.err
    assert "run `postroom init`" in outdated.err
    assert "version 99" in newer.err
    assert "upgrade postroom" in newer.err
    assert all(ended.err.count("\n") == 1 for ended in (missing, outdated, newer))


def test_init_on_tables_of_a_newer_postroom_changes_nothing(postroom: Command) -> None:
    postroom("init", *DATABASE)
    with closing(sqlite3.connect("app.db")) as connection, connection:
        connection.execute("DELETE FROM postroom_schema_version")
        connection.execute("INSERT INTO postroom_schema_version (version) VALUES (99)")
    ended = postroom("init", *DATABASE)
    assert ended.code == 1
    assert "upgrade postroom" in ended.err


def test_status_counts_for_people_and_for_programs(postroom: Command) -> None:
    postroom("init", *DATABASE)
    add("orders.created")
    add("orders.created", key="7")
    found = json.loads(postroom("status", *DATABASE, "--json").out)
    assert set(found) == {
        *("pending", "sending", "waiting", "dead", "sent", "expired", "held", "oldest_pending_seconds", "relays"),
        *("targets", "sagas", "transactions", "stream"),
    }
    assert (found["pending"], found["sent"]) == (2, 0)
    assert found["oldest_pending_seconds"] >= 0
    lines = [line.split() for line in postroom("status", *DATABASE).out.splitlines()]
    assert ["pending", "2"] in [line[:2] for line in lines]
    assert ["dead", "0"] in [line[:2] for line in lines]


def test_messages_are_listed_newest_first_and_by_page(postroom: Command) -> None:
    postroom("init", *DATABASE)
    for number in range(5):
        add(f"topic-{number}")
    page = json.loads(postroom("messages", "list", *DATABASE, "--limit", "2", "--json").out)
    assert [message["topic"] for message in page] == ["topic-4", "topic-3"]
    rest = json.loads(
        postroom("messages", "list", *DATABASE, "--before", str(page[-1]["position"]), "--json").out,
    )
    assert [message["topic"] for message in rest] == ["topic-2", "topic-1", "topic-0"]
    assert postroom("messages", "list", *DATABASE, "--status", "dead").out == "no messages\n"
    assert len(postroom("messages", "list", *DATABASE, "--status", "pending").out.splitlines()) == 6


def test_a_person_is_told_how_to_see_older_messages(postroom: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    postroom("init", *DATABASE)
    add("one")
    add("two")
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setattr("postroom.cli.pages.on_terminal", lambda: True)
    assert "Older ones: --before 2" in postroom("messages", "list", *DATABASE, "--limit", "1").out


def test_a_list_never_shows_payloads_or_headers(postroom: Command) -> None:
    postroom("init", *DATABASE)
    with closing(sqlite3.connect("app.db")) as connection, connection:
        Outbox().add(connection, "topic", {"card": "4711"}, headers={"authorization": "4712"})
    for ended in (postroom("messages", "list", *DATABASE), postroom("messages", "list", *DATABASE, "--json")):
        assert "4711" not in ended.out
        assert "4712" not in ended.out


def test_schema_takes_the_dialect_from_the_database_unless_told(postroom: Command) -> None:
    assert "WITHOUT ROWID" in postroom("schema", "--sql", *DATABASE).out
    assert 'CREATE SCHEMA IF NOT EXISTS "mail"' in postroom("schema", "--dialect", "postgresql", "--schema", "mail").out
    mysql = postroom("schema", "--database", "mariadb://host/name", "--table-prefix", "mail_").out
    assert "CREATE TABLE mail_outbox" in mysql
    assert mysql == postroom("schema", "--dialect", "mariadb", "--table-prefix", "mail_").out
    assert not Path("app.db").exists()


def test_schema_prints_what_to_grant(postroom: Command) -> None:
    command = ("schema", "--dialect", "mariadb", "--grants", "o'shop@10.%", "--json")
    [outbox, delivery, saga] = json.loads(postroom(*command, "--for", "producer").out)
    assert outbox.startswith("GRANT SELECT (id, ")
    assert delivery.endswith(" ON `postroom_outbox_delivery` TO 'o''shop'@'10.%'")
    assert saga == "GRANT INSERT (position, name, id, deadline) ON `postroom_saga` TO 'o''shop'@'10.%'"
    everything = json.loads(postroom(*command).out)
    assert len(everything) == 17
    function = postroom("schema", "--dialect", "postgresql", "--grants", 'a"b', "--for", "sql-producer").out
    assert function.splitlines()[0] == 'GRANT USAGE ON SCHEMA "postroom" TO "a""b";'
    assert [line for line in function.splitlines() if "TABLE" in line or "INSERT" in line] == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (("--dialect", "sqlite", "--grants", "app"), "SQLite has no roles"),
        (("--dialect", "postgresql", "--for", "relay"), "--for is given without --grants ROLE"),
        (("--dialect", "postgresql", "--grants", ""), "is not the name of a role"),
        (("--dialect", "postgresql", "--grants", "app", "--for", "reader"), "reader"),
    ],
)
def test_grants_that_make_no_sense_are_a_clear_error(postroom: Command, wrong: tuple[str, ...], problem: str) -> None:
    refused = postroom("schema", *wrong)
    assert refused.code != 0
    assert problem in refused.err


def test_schema_as_json_is_the_list_of_statements(postroom: Command) -> None:
    statements = json.loads(postroom("schema", "--dialect", "sqlite", "--json").out)
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        newest = connection.execute("SELECT max(version) FROM postroom_schema_version").fetchall()
        assert newest == [(migrations.LATEST,)]
