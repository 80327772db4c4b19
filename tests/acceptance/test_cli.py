"""The command line on real databases. As a program of its own: test_cli_program.py."""

from __future__ import annotations

import json
import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pymysql
import pytest
from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.pool import NullPool

from postroom import Outbox
from postroom.cli import main
from postroom.store.connections import urls
from tests.services.databases import KINDS, SERVERS, need

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase

SECRET = "s3kr3t"  # noqa: S105 - it only has to be recognisable


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("POSTROOM_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


class Commands:
    """`postroom` on one database, in this process."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self._capsys = capsys

    def __call__(self, *arguments: str) -> str:
        code, out, err = self.ended(*arguments)
        assert (code, err) == (0, "")
        return out

    def ended(self, *arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--database", self._url])
        return code, *self._capsys.readouterr()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@contextmanager
def transaction(url: str) -> Iterator[Connection]:
    engine = create_engine(urls.resolve(url), poolclass=NullPool)
    with engine.begin() as connection:
        yield connection


def socket_url(kind: str, url: str) -> str:
    return need(SERVERS[kind]).socket_url(str(make_url(url).database))


def assert_the_commands_work(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    postroom = Commands(url, capsys)
    assert postroom("init") == "created version 7 of Postroom's tables\n"
    assert postroom("init") == "already at version 7: nothing to do\n"
    with transaction(url) as connection:
        Outbox().add(connection, "orders.created", {"secret": "swordfish"}, key="7", type="OrderCreated")
        Outbox().add(connection, "orders.shipped", {"secret": "swordfish"})
    status = postroom.json("status")
    assert status.pop("oldest_pending_seconds") >= 0
    assert [status.pop(name) for name in ("relays", "targets", "sagas", "transactions", "stream")] == [
        *([], [], {}, {}),
        None,
    ]
    assert status == {"pending": 2, "sending": 0, "waiting": 0, "dead": 0, "sent": 0, "expired": 0, "held": 0}
    newest, oldest = postroom.json("messages", "list")
    assert (newest["topic"], oldest["topic"]) == ("orders.shipped", "orders.created")
    assert (oldest["key"], oldest["type"], oldest["status"]) == ("7", "OrderCreated", "pending")
    assert oldest["created_at"].endswith("+00:00")
    listed = postroom("messages", "list")
    assert newest["id"] in listed
    assert "swordfish" not in listed
    assert 'outbox"' in postroom("schema", "--sql") or "postroom_outbox" in postroom("schema", "--sql")


@pytest.mark.parametrize("kind", KINDS)
def test_init_status_and_messages_on_every_database(
    kind: str, fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_the_commands_work(fresh_database(kind), capsys)


@pytest.mark.parametrize("kind", SERVERS)
def test_the_same_through_a_unix_socket(
    kind: str, fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_the_commands_work(socket_url(kind, fresh_database(kind)), capsys)


@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        ("postgresql", "postgres"),
        ("postgresql", "postgresql+asyncpg"),
        ("postgresql", "postgresql+psycopg2"),
        ("mariadb", "mariadb"),
        ("mariadb", "mysql+asyncmy"),
    ],
)
def test_the_same_by_other_names_of_the_database(
    kind: str, scheme: str, fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_the_commands_work(f"{scheme}://{fresh_database(kind).partition('://')[2]}", capsys)


@pytest.mark.parametrize("socket", [False, True])
@pytest.mark.parametrize("kind", SERVERS)
def test_the_same_where_only_an_async_driver_is_installed(
    *,
    kind: str,
    socket: bool,
    fresh_database: FreshDatabase,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = fresh_database(kind)
    monkeypatch.setitem(urls._SYNC, "postgresql", ("psycopg_is_not_there",))
    monkeypatch.setitem(urls._SYNC, "mysql", ("pymysql_is_not_there",))
    postroom = Commands(socket_url(kind, url) if socket else url, capsys)
    assert postroom("init").startswith("created version 7")
    assert postroom.json("status")["pending"] == 0
    assert postroom.json("messages", "list") == []


def test_init_partitions_the_outbox_where_it_can(
    fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    postroom = Commands(fresh_database("postgresql"), capsys)
    assert postroom("init", "--partitions", "day").endswith("tables\npartitioned the outbox\n")
    assert postroom("init", "--partitions", "day").endswith("nothing to do\nthe outbox is partitioned already\n")
    assert postroom.json("cleanup")["messages"] == 0
    assert postroom.ended("init", "--partitions", "week")[0] == 2
    code, _, told = Commands(fresh_database("sqlite"), capsys).ended("init", "--partitions", "day")
    assert code != 0
    assert "partitions need PostgreSQL, and this is sqlite" in told


@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_schema_makes_tables_that_work(
    kind: str, fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fresh_database(kind)
    postroom = Commands(url, capsys)
    for_this_dialect = postroom("schema", "--sql")
    assert main(["schema", "--sql", "--dialect", kind]) == 0
    assert capsys.readouterr().out == for_this_dialect
    run_script(kind, url, for_this_dialect)
    assert postroom("init") == "already at version 7: nothing to do\n"
    with transaction(url) as connection:
        Outbox().add(connection, "orders.created", key="7")
    assert postroom.json("status")["pending"] == 1


def run_script(kind: str, url: str, script: str) -> None:
    """Hand the whole text to the database, as a person would with its own client."""
    engine = create_engine(urls.resolve(url), poolclass=NullPool)
    if kind == "mariadb":
        engine = create_engine(
            urls.resolve(url),
            poolclass=NullPool,
            connect_args={"client_flag": pymysql.constants.CLIENT.MULTI_STATEMENTS},
        )
    with closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        if kind == "sqlite":
            cursor.executescript(script)
        else:
            cursor.execute(script)
            while kind == "mariadb" and cursor.nextset():
                pass
        connection.commit()


@pytest.mark.parametrize("kind", KINDS)
def test_another_schema_or_prefix_is_another_outbox(
    kind: str, fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fresh_database(kind)
    postroom = Commands(url, capsys)
    place = ("--table-prefix", "mail_")
    postroom("init")
    postroom("init", *place)
    with transaction(url) as connection:
        Outbox(table_prefix="mail_").add(connection, "orders.created")
    assert postroom.json("status", *place)["pending"] == 1
    assert postroom.json("status")["pending"] == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", [("status",), ("messages", "list")])
def test_missing_tables_are_one_line_that_names_the_remedy(
    kind: str, command: tuple[str, ...], fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fresh_database(kind)
    if kind == "sqlite":
        with transaction(url) as connection:
            connection.exec_driver_sql("CREATE TABLE orders (id INTEGER)")
    code, out, err = Commands(url, capsys).ended(*command)
    assert (code, out) == (1, "")
    assert err.startswith("postroom: ")
    assert "postroom init" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_tables_of_a_newer_postroom_are_one_line_that_names_the_remedy(
    kind: str, fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    url = fresh_database(kind)
    postroom = Commands(url, capsys)
    postroom("init")
    table = "postroom.schema_version" if kind == "postgresql" else "postroom_schema_version"
    with transaction(url) as connection:
        connection.exec_driver_sql(f"DELETE FROM {table}")
        connection.exec_driver_sql(f"INSERT INTO {table} (version) VALUES (99)")
    for command in (["init"], ["status"], ["messages", "list"]):
        code, out, err = postroom.ended(*command)
        assert (code, out) == (1, "")
        assert "version 99" in err
        assert "upgrade postroom" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("kind", SERVERS)
def test_a_database_that_refuses_is_one_line_without_the_password(
    kind: str, fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_url(fresh_database(kind)).set(username="nobody")
    for given in (
        url.set(password=SECRET).render_as_string(hide_password=False),
        url.update_query_dict({"password": SECRET}).render_as_string(hide_password=False),
        url.update_query_dict({"nosuch": SECRET}).render_as_string(hide_password=False),
        url.set(password=SECRET, database="nowhere", username="root").render_as_string(hide_password=False),
        url.set(password=SECRET, port=1).render_as_string(hide_password=False),
    ):
        code, out, err = Commands(given, capsys).ended("status")
        assert (code, out) == (1, "")
        assert err.startswith("postroom: the database ")
        assert "cannot be reached" in err
        assert err.count("\n") == 1
        assert SECRET not in err


def test_a_right_that_is_missing_is_one_line(fresh_database: FreshDatabase, capsys: pytest.CaptureFixture[str]) -> None:
    url = fresh_database("postgresql")
    Commands(url, capsys)("init")
    role = f"reader_{make_url(url).database}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN")
        connection.execute(f"GRANT USAGE ON SCHEMA postroom TO {role}")
    try:
        as_reader = make_url(url).set(username=role).render_as_string()
        code, out, err = Commands(as_reader, capsys).ended("status")
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role}")
            connection.execute(f"DROP ROLE {role}")
    assert (code, out) == (1, "")
    assert err.startswith('postroom: the database\'s user may not read "postroom"."schema_version"')
    assert "postroom schema --grants ROLE" in err
    assert err.count("\n") == 1
