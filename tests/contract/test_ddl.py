"""The schema as SQL text: that it runs as it is printed, and what the view makes of the rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pymysql
import pytest
from pymysql.constants.CLIENT import MULTI_STATEMENTS
from sqlalchemy import Engine, make_url, text

from postroom.store.schema.ddl import create_statements
from postroom.store.schema.tables import STORAGE
from postroom.store.sql.dialect import DIALECTS
from tests.contract.schema_support import assert_complete, count, engine_for, execute, init, names_for
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.store.sql.names import Names
    from tests.conftest import FreshDatabase

every_database = pytest.mark.parametrize("kind", KINDS)
LATER = "'2999-01-01 00:00:00'"
BEFORE = "'2001-01-01 00:00:00'"


@pytest.fixture
def url(kind: str, fresh_database: FreshDatabase) -> str:
    return fresh_database(kind)


@pytest.fixture
def names(url: str) -> Names:
    return names_for(url)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    with engine_for(url) as engine:
        yield engine


def run_script(url: str, script: str) -> None:
    """Hand the whole text to the server at once, as a command-line client would."""
    place = make_url(url)
    match place.get_backend_name():
        case "sqlite":
            with closing(sqlite3.connect(str(place.database))) as file:
                file.executescript(script)
        case "postgresql":
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(script.encode())
        case _:
            with pymysql.connect(
                host=place.host,
                port=place.port or 0,
                user=place.username,
                database=place.database,
                client_flag=MULTI_STATEMENTS,
            ) as database:
                cursor = database.cursor()
                cursor.execute(script)
                while cursor.nextset():
                    pass
                database.commit()


@every_database
def test_the_text_runs_as_it_is_printed(kind: str, url: str, engine: Engine, names: Names) -> None:
    run_script(url, ";\n".join(create_statements(kind, names)) + ";\n")
    assert_complete(engine, names)
    assert init(engine, names) == (7, 7)


@every_database
def test_two_ways_one_schema(kind: str, engine: Engine, names: Names, fresh_database: FreshDatabase) -> None:
    """What init makes and what the text makes is the same, down to the storage parameters."""
    init(engine, names)
    other = fresh_database(kind)
    run_script(other, ";\n".join(create_statements(kind, names)))
    with engine_for(other) as other_engine:
        assert description(other_engine, names) == description(engine, names)
    assert description(engine, names)


def description(engine: Engine, names: Names) -> list[tuple[object, ...]]:
    queries = {
        "sqlite": ["SELECT type, name, sql FROM sqlite_master ORDER BY name"],
        "mysql": [
            f"SHOW CREATE TABLE {names.table(name)}" for name in ("outbox", "outbox_delivery", "outbox_lane", "inbox")
        ],
        "postgresql": [
            (
                "SELECT relname, relkind, reloptions, pg_get_expr(relpartbound, oid) FROM pg_class "
                "WHERE relnamespace = 'postroom'::regnamespace ORDER BY 1"
            ),
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'postroom' ORDER BY 1",
            (
                "SELECT table_name, column_name, data_type, column_default, is_nullable "
                "FROM information_schema.columns WHERE table_schema = 'postroom' ORDER BY 1, 2"
            ),
        ],
    }
    with engine.connect() as connection:
        return [
            tuple(" ".join(str(value).split()) for value in row)
            for query in queries[names.dialect]
            for row in connection.execute(text(query))
        ]


@pytest.mark.parametrize("kind", ["postgresql"])
def test_the_delivery_table_has_its_storage_parameters(engine: Engine, names: Names) -> None:
    init(engine, names)
    with engine.connect() as connection:
        options = connection.scalar(text("SELECT reloptions FROM pg_class WHERE relname = 'outbox_delivery'"))
    assert options == [f"{name}={value}" for name, value in STORAGE.items()]
    assert "fillfactor=45" in options


@pytest.mark.parametrize("kind", ["mariadb"])
def test_on_mariadb_everything_is_innodb_and_case_counts(engine: Engine, names: Names) -> None:
    init(engine, names)
    with engine.connect() as connection:
        query = "SELECT engine, table_collation, count(*) FROM information_schema.tables "
        query += "WHERE table_schema = database() AND table_type = 'BASE TABLE' GROUP BY 1, 2"
        assert connection.execute(text(query)).all() == [("InnoDB", "utf8mb4_bin", 16)]
    for key in "aA":
        execute(engine, f"INSERT INTO {names.table('inbox')} (consumer, message_id) VALUES ('c', '{key}')")


@every_database
def test_positions_of_deleted_messages_do_not_come_again(engine: Engine, names: Names) -> None:
    init(engine, names)
    outbox = names.table("outbox")
    for position in (1, 2):
        add_message(engine, names, position=None)
        with engine.connect() as connection:
            assert connection.execute(text(f"SELECT position FROM {outbox}")).scalar() == position
        execute(engine, f"DELETE FROM {outbox}")


@every_database
def test_the_clock_of_the_database_dates_messages(engine: Engine, names: Names) -> None:
    init(engine, names)
    add_message(engine, names)
    just_now = f"created_at > {BEFORE} AND created_at <= {DIALECTS[names.dialect].now}"
    assert count(engine, f"{names.table('outbox')} WHERE {just_now}") == 1


def add_message(engine: Engine, names: Names, position: int | None = 1) -> None:
    columns, values = ("position, ", f"{position}, ") if position else ("", "")
    execute(
        engine,
        f"INSERT INTO {names.table('outbox')} ({columns}id, topic, content_type, ordering_key) "
        f"VALUES ({values}'01890000-0000-7000-8000-{position or 0:012}', 'orders', 'application/json', 'k')",
    )


def rows(engine: Engine, names: Names, columns: str) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        select = f"SELECT {columns} FROM {names.table('outbox_status')} ORDER BY position"
        return [tuple(row) for row in connection.execute(text(select))]


# The delivery's columns, its lane's columns (for the one lane that only this delivery is in), and what is seen.
UNSETTLED = [
    ("state = 0", None, "pending"),
    (f"state = 0, leased_until = {LATER}", None, "sending"),
    (f"state = 0, leased_until = {BEFORE}", None, "pending"),
    ("state = 0", "read_to = 0", "pending"),
    ("state = 0", f"leased_until = {LATER}, read_to = 999", "sending"),
    ("state = 0", f"leased_until = {LATER}, read_to = 0", "pending"),
    ("state = 0", f"leased_until = {BEFORE}, read_to = 999", "pending"),
    (f"state = 1, due = {LATER}", None, "waiting"),
    (f"state = 1, due = {BEFORE}", None, "pending"),
    (f"state = 2, due = {LATER}", None, "waiting"),
    (f"state = 2, due = {BEFORE}", None, "pending"),
    (f"state = 2, due = {LATER}", f"leased_until = {LATER}, read_to = 999", "waiting"),
    ("state = 3", None, "dead"),
    (f"state = 3, leased_until = {LATER}", None, "dead"),
]


@every_database
def test_L_1_the_view_names_the_state_of_every_unsettled_message(engine: Engine, names: Names) -> None:
    init(engine, names)
    for position, (delivery, lane, _) in enumerate(UNSETTLED, 1):
        add_message(engine, names, position)
        number = -1 if lane is None else position
        execute(
            engine,
            f"INSERT INTO {names.table('outbox_delivery')} (position, lane) VALUES ({position}, {number})",
            f"UPDATE {names.table('outbox_delivery')} SET {delivery} WHERE position = {position}",
            f"UPDATE {names.table('outbox_lane')} SET {lane or 'token = 1'} WHERE lane = {position}",
        )
    assert [status for (status,) in rows(engine, names, "status")] == [expected for *_, expected in UNSETTLED]


@every_database
def test_L_1_the_view_names_the_state_of_every_settled_message(engine: Engine, names: Names) -> None:
    init(engine, names)
    outcomes = {"sent": "sent", "duplicate": "sent", "expired": "expired"}
    for position, outcome in enumerate(outcomes, 1):
        add_message(engine, names, position)
        receipt = f"VALUES ({position}, '{outcome}', 2)"
        execute(engine, f"INSERT INTO {names.table('outbox_receipt')} (position, outcome, attempts) {receipt}")
    assert rows(engine, names, "status, attempts") == [(status, 2) for status in outcomes.values()]
    assert all(sent_at for (sent_at,) in rows(engine, names, "sent_at"))


@every_database
def test_a_message_with_receipt_and_delivery_is_seen_once_and_as_sent(engine: Engine, names: Names) -> None:
    init(engine, names)
    add_message(engine, names)
    execute(
        engine,
        f"INSERT INTO {names.table('outbox_delivery')} (position) VALUES (1)",
        f"INSERT INTO {names.table('outbox_receipt')} (position, outcome, attempts) VALUES (1, 'sent', 0)",
    )
    assert rows(engine, names, "status") == [("sent",)]


@every_database
def test_what_is_not_set_is_null_in_the_view(engine: Engine, names: Names) -> None:
    init(engine, names)
    add_message(engine, names)
    execute(engine, f"INSERT INTO {names.table('outbox_delivery')} (position) VALUES (1)")
    assert rows(engine, names, "type, due, owner, leased_until, error_code, error_message, sent_at") == [(None,) * 7]
    assert rows(engine, names, f"position, queue, topic, {names.quoted('key')}") == [(1, "default", "orders", "k")]


@every_database
def test_the_view_shows_who_holds_the_lease_on_the_message_or_on_its_lane(engine: Engine, names: Names) -> None:
    init(engine, names)
    for position in (1, 2):
        add_message(engine, names, position)
    execute(
        engine,
        f"INSERT INTO {names.table('outbox_delivery')} (position, owner, leased_until) VALUES (1, 'me', {LATER})",
        f"INSERT INTO {names.table('outbox_delivery')} (position, lane) VALUES (2, 5)",
        f"UPDATE {names.table('outbox_lane')} SET owner = 'you', leased_until = {LATER}, read_to = 2 WHERE lane = 5",
    )
    assert rows(engine, names, "owner") == [("me",), ("you",)]
    moments = rows(engine, names, "leased_until")
    assert moments[0] == moments[1] != (None,)
