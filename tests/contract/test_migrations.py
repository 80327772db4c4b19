"""`postroom init` at the level of the store: creating, upgrading and adopting tables, and checking them."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import DBAPIError, InvalidRequestError, ProgrammingError

from postroom.errors import SchemaError, SchemaMissing, SchemaNewer, SchemaOutdated
from postroom.store.schema import ddl, migrations, versions
from postroom.store.schema.ddl import schema_statements
from postroom.store.schema.guards import FORMER_CHECKS, triggers
from postroom.store.schema.migrations import upgrade
from postroom.store.schema.tables import metadata
from postroom.store.schema.upgrades import SAGA_TABLES, TWOPHASE_TABLES, WATCHING_TABLES
from postroom.store.schema.versions import current_version
from tests.contract.schema_support import (
    assert_complete,
    assert_guarded,
    catalogue,
    checked,
    checks_of,
    count,
    cut_off,
    engine_for,
    execute,
    init,
    list_only,
    listed,
    names_for,
    take_guards,
)
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from postroom.store.sql.names import Names
    from tests.conftest import FreshDatabase

every_database = pytest.mark.parametrize("kind", KINDS)


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


@every_database
def test_init_creates_everything(engine: Engine, names: Names) -> None:
    assert init(engine, names) == (None, 7)
    assert_complete(engine, names)


@every_database
def test_init_again_changes_nothing(engine: Engine, names: Names) -> None:
    init(engine, names)
    execute(engine, f"DELETE FROM {names.table('outbox_lane')} WHERE lane = 3")
    assert init(engine, names) == (7, 7)
    assert count(engine, names.table("outbox_lane")) == 15


PROCESS = """
import sys
from postroom.store.schema.migrations import upgrade
from tests.contract.schema_support import engine_for, names_for
with engine_for(sys.argv[1]) as engine, engine.connect() as connection:
    print("ready", flush=True)
    while sys.stdin.readline():
        print(upgrade(connection, names_for(sys.argv[1])), flush=True)
"""


def start(url: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", PROCESS, url]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline().strip()


@every_database
def test_two_processes_may_run_init_at_once(url: str, engine: Engine, names: Names) -> None:
    processes = [start(url), start(url)]
    try:
        for process in processes:
            assert answer(process, "") == "ready"
        for _ in range(3):
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            assert sorted(answer(process, "") for process in processes) == ["(7, 7)", "(None, 7)"]
            assert_complete(engine, names)
            drop_everything(engine, names)
    finally:
        for process in processes:
            process.communicate()


@every_database
def test_an_init_that_was_cut_off_anywhere_is_made_good_by_the_next(engine: Engine, names: Names) -> None:
    """On MySQL, where each DDL statement commits, it goes on; elsewhere nothing was left behind."""

    def made_good() -> None:
        assert init(engine, names) == (None, 7)
        assert_complete(engine, names)
        drop_everything(engine, names)

    for _ in cut_offs(engine, names, lambda: None, made_good):
        with pytest.raises(SchemaMissing, match="run `postroom init`"):
            checked(engine, names)
    assert_complete(engine, names)


def cut_offs(
    engine: Engine, names: Names, made: Callable[[], None], made_good: Callable[[], None]
) -> Iterator[int | None]:
    """Cut off init on what `made` makes, after each of its statements in turn; at last let it come to its end.

    Gives the version that each cut leaves behind, and stops early once a later version is on record: what comes then
    is cut off by another test. Where each DDL statement commits, `made_good` must mend what was left, and remove it;
    elsewhere nothing may be left.
    """
    ddl_commits = names.dialect == "mysql"
    made()
    before, version = catalogue(engine, names), version_of(engine, names)
    # Mending takes a second or so: of the many statements of a new database, every third is enough.
    step = 3 if ddl_commits and version is None else 1
    for statements in itertools.count(step=step):
        if not cut_off(engine, names, after=statements):
            break
        left = version_of(engine, names)
        yield left
        if not ddl_commits:
            assert catalogue(engine, names) == before
            continue
        made_good()
        made()
        if version is not None and left != version:
            init(engine, names)
            break
    assert statements > 2


def version_of(engine: Engine, names: Names) -> int | None:
    with engine.connect() as connection:
        return current_version(connection, names)


def drop_everything(engine: Engine, names: Names) -> None:
    execute(engine, f"DROP VIEW {names.table('outbox_status')}")
    metadata(names).drop_all(engine)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_init_that_failed_leaves_nothing_behind(engine: Engine, names: Names) -> None:
    assert cut_off(engine, names, after=12)
    with engine.connect() as connection:
        assert not inspect(connection).get_table_names(schema=names.schema)


def make_tables_as_alembic_does(engine: Engine, names: Names) -> None:
    execute(engine, *schema_statements(names))
    metadata(names).create_all(engine)


@every_database
def test_tables_made_by_alembic_are_adopted(engine: Engine, names: Names) -> None:
    make_tables_as_alembic_does(engine, names)
    checked(engine, names)
    assert init(engine, names) == (None, 7)
    assert_complete(engine, names)


@every_database
def test_incomplete_tables_without_a_version_are_refused_by_name(engine: Engine, names: Names) -> None:
    make_tables_as_alembic_does(engine, names)
    execute(
        engine,
        f"DROP TABLE {names.table('inbox')}",
        f"ALTER TABLE {names.table('outbox')} DROP COLUMN digest",
    )
    outbox, inbox = (metadata(names).tables[name] for name in full_names(names, "outbox", "inbox"))
    with pytest.raises(SchemaError, match="not all of them") as refusal:
        init(engine, names)
    assert f"column {outbox.fullname}.digest" in str(refusal.value)
    assert f"table {inbox.fullname}" in str(refusal.value)
    with engine.connect() as connection:
        assert current_version(connection, names) is None


def full_names(names: Names, *tables: str) -> list[str]:
    return [f"{names.schema}.{names.bare(table)}" if names.schema else names.bare(table) for table in tables]


@every_database
def test_a_database_without_the_tables_says_so_in_one_line(engine: Engine, names: Names) -> None:
    with pytest.raises(SchemaMissing, match="run `postroom init`") as refusal:
        checked(engine, names)
    [outbox] = full_names(names, "outbox")
    assert outbox in str(refusal.value)
    assert f"the database {engine.url.database}" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@every_database
def test_a_newer_schema_is_left_alone(engine: Engine, names: Names) -> None:
    init(engine, names)
    execute(engine, *list_only(names, 98, 99))
    for act in (checked, init):
        with pytest.raises(SchemaNewer, match=r"version 99 .*knows versions up to 7: upgrade postroom"):
            act(engine, names)


@every_database
def test_a_newer_schema_that_lists_this_version_is_used_as_it_is(engine: Engine, names: Names) -> None:
    init(engine, names)
    execute(engine, *list_only(names, migrations.LATEST, 98, 99))
    checked(engine, names)
    assert init(engine, names) == (99, 99)
    assert listed(engine, names) == {migrations.LATEST, 98, 99}


@every_database
def test_an_upgrade_that_breaks_older_code_takes_it_off_the_list_even_if_it_was_cut_off(
    engine: Engine, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(engine, names)
    before = listed(engine, names)
    release_version_9(monkeypatch, lambda *_: None, lambda *_: None)
    monkeypatch.setattr(migrations, "COMPATIBLE_FROM", 9)
    monkeypatch.setattr(ddl, "COMPATIBLE_FROM", 9)
    assert init(engine, names)[1] == 9
    assert listed(engine, names) == {9}
    execute(engine, *list_only(names, *before, 9))  # as if it had been interrupted before the last statement
    assert init(engine, names) == (9, 9)
    assert listed(engine, names) == {9}


@every_database
def test_an_older_schema_is_upgraded_step_by_step(
    engine: Engine, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(engine, names)
    steps: list[int] = []
    release_version_9(monkeypatch, lambda *_: steps.append(8), lambda *_: steps.append(9))
    with pytest.raises(SchemaOutdated, match=r"at version 7 .*needs version 9: run `postroom init`"):
        checked(engine, names)
    assert init(engine, names) == (7, 9)
    assert steps == [8, 9]
    checked(engine, names)
    assert init(engine, names) == (9, 9)
    assert steps == [8, 9]


@every_database
def test_an_upgrade_that_was_cut_off_anywhere_is_made_good_by_the_next(
    engine: Engine, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    init(engine, names)
    release_version_9(monkeypatch, lambda *_: None, lambda *_: None)
    for statements in itertools.count():
        execute(engine, f"DELETE FROM {names.table('schema_version')} WHERE version > 7")
        execute(engine, f"DROP VIEW {names.table('outbox_status')}")
        if not cut_off(engine, names, after=statements):
            break
        with pytest.raises(SchemaOutdated):
            checked(engine, names)
        init(engine, names)
        assert count(engine, names.table("outbox_status")) == 0
    assert statements > 3


def release_version_9(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[Connection, Names], None]) -> None:
    monkeypatch.setattr(migrations, "UPGRADES", [*migrations.UPGRADES, *steps])
    monkeypatch.setattr(migrations, "LATEST", 9)
    for module in (ddl, versions):
        monkeypatch.setattr(module, "VERSION", 9)


def made_by_version_1(engine: Engine, names: Names) -> None:
    """Tables as they were before they refused anything."""
    init(engine, names)
    take_guards(engine, names)
    execute(engine, *list_only(names, 1))


@every_database
def test_version_2_refuses_bad_rows_and_keeps_those_that_are_there(engine: Engine, names: Names) -> None:
    made_by_version_1(engine, names)
    outbox, delivery = names.table("outbox"), names.table("outbox_delivery")
    bad = f"INSERT INTO {outbox} (id, topic, content_type) VALUES ('{{}}', '', 'text/plain')"
    worse = f"INSERT INTO {delivery} (state, lane, key_hash, position, size) VALUES (0, 99, {{}}, {{}}, -7)"
    execute(engine, bad.format(uuid4()), worse.format("NULL", 1), worse.format(21, 2))
    assert init(engine, names) == (1, 7)
    assert_guarded(engine, names)
    assert count(engine, outbox) == 1
    with engine.connect() as connection:
        repaired = connection.execute(text(f"SELECT lane, size FROM {delivery} ORDER BY position")).all()
    assert list(map(tuple, repaired)) == [(-1, 0), (5, 0)]
    execute(engine, f"UPDATE {delivery} SET claims = claims + 1")
    for statement in (bad.format(uuid4()), worse.format("NULL", 3)):
        with pytest.raises(DBAPIError, match=r"check|postroom: (topic|lane)|CONSTRAINT"):
            execute(engine, statement)


@every_database
def test_a_version_2_that_was_cut_off_anywhere_is_made_good_by_the_next(engine: Engine, names: Names) -> None:
    def made_good() -> None:
        assert init(engine, names) in ((1, 7), (4, 7), (5, 7), (6, 7))
        assert_guarded(engine, names)
        drop_everything(engine, names)

    for version in cut_offs(engine, names, lambda: made_by_version_1(engine, names), made_good):
        assert version in (
            1,
            4,
            5,
            6,
        )  # the tables of the versions between are there, so that no DDL commits in between
    assert_guarded(engine, names)


def made_by_version_2(engine: Engine, names: Names) -> None:
    """Tables as they were before there were sagas."""
    init(engine, names)
    execute(
        engine,
        *(f"DROP TABLE {names.table(table)}" for table in (*SAGA_TABLES, *TWOPHASE_TABLES, *WATCHING_TABLES)),
        *list_only(names, 2),
    )


@every_database
def test_version_3_adds_sagas_and_a_cut_off_one_is_made_good_by_the_next(engine: Engine, names: Names) -> None:
    def made() -> None:
        made_by_version_2(engine, names)
        add = f"INSERT INTO {names.table('outbox')} (id, topic, content_type) VALUES ('{uuid4()}', 'a', 'text/plain')"
        execute(engine, add)

    def complete() -> None:
        assert_complete(engine, names)
        assert count(engine, names.table("outbox")) == 1

    def made_good() -> None:
        assert init(engine, names) in ((2, 7), (3, 7))
        complete()
        drop_everything(engine, names)

    for version in cut_offs(engine, names, made, made_good):
        assert version in (2, 3)
    complete()


def made_by_version_3(engine: Engine, names: Names) -> None:
    """Tables as they were before there were two-phase commits."""
    init(engine, names)
    execute(
        engine,
        *(f"DROP TABLE {names.table(table)}" for table in (*TWOPHASE_TABLES, *WATCHING_TABLES)),
        *list_only(names, 3),
    )


@every_database
def test_version_4_adds_two_phase_commits_and_a_cut_off_one_is_made_good_by_the_next(
    engine: Engine, names: Names
) -> None:
    def made() -> None:
        made_by_version_3(engine, names)
        execute(engine, f"INSERT INTO {names.table('saga')} (position, name, id) VALUES (1, 'a', 'b')")

    def complete() -> None:
        assert_complete(engine, names)
        assert count(engine, names.table("saga")) == 1

    def made_good() -> None:
        assert init(engine, names) in ((3, 7), (4, 7))
        complete()
        drop_everything(engine, names)

    for version in cut_offs(engine, names, made, made_good):
        assert version in (3, 4)
    complete()


def made_by_version_4(engine: Engine, names: Names) -> None:
    """Tables as they were before there were counters by the minute and attempts on record."""
    init(engine, names)
    execute(
        engine,
        *(f"DROP TABLE {names.table(table)}" for table in WATCHING_TABLES),
        *list_only(names, 4),
    )


@every_database
def test_version_5_adds_counters_and_attempts_and_a_cut_off_one_is_made_good_by_the_next(
    engine: Engine, names: Names
) -> None:
    def made_good() -> None:
        assert init(engine, names) in ((4, 7), (5, 7), (6, 7))
        assert_complete(engine, names)
        drop_everything(engine, names)

    for version in cut_offs(engine, names, lambda: made_by_version_4(engine, names), made_good):
        assert version in (4, 5, 6)
    assert_complete(engine, names)


@pytest.mark.parametrize("kind", ["postgresql"])
def test_version_6_adds_the_stream_and_a_cut_off_one_is_made_good_by_the_next(engine: Engine, names: Names) -> None:
    outbox, stream = names.table("outbox"), names.table("outbox_stream")

    def made() -> None:
        init(engine, names)
        execute(engine, f"DROP TABLE {stream}", f"ALTER TABLE {outbox} DROP COLUMN streamed", *list_only(names, 5))

    for version in cut_offs(engine, names, made, lambda: None):
        assert version == 5
    assert_complete(engine, names)
    assert count(engine, stream) == 1


@pytest.mark.parametrize("kind", ["postgresql"])
def test_version_7_refuses_by_triggers_what_check_constraints_refused(engine: Engine, names: Names) -> None:
    init(engine, names)
    outbox, delivery = names.table("outbox"), names.table("outbox_delivery")
    execute(
        engine,
        *(statement for statement in triggers(names) if statement.startswith("DROP")),
        *(f"ALTER TABLE {outbox} ADD CONSTRAINT {name} CHECK (position > 0)" for name in FORMER_CHECKS["outbox"]),
        f"ALTER TABLE {delivery} ADD CONSTRAINT outbox_delivery_check CHECK (size >= 0)",
        *list_only(names, 6),
    )
    assert init(engine, names) == (6, 7)
    assert checks_of(engine, names, "outbox") == checks_of(engine, names, "outbox_delivery") == set()
    assert_guarded(engine, names)
    for column, bad, problem in [
        ("aggregate_id", "''", "aggregate_id is empty"),
        ("headers", "'[1]'", "headers are not a JSON object"),
        ("headers", """'{"n": 1}'""", "headers are not a JSON object of strings"),
        ("expires_at", "'infinity'", "expires_at is outside the years"),
    ]:
        values = f"(id, topic, content_type, {column}) VALUES ('{uuid4()}', 'orders', 'text/plain', {bad})"
        with pytest.raises(DBAPIError, match=f"postroom: {problem}"):
            execute(engine, f"INSERT INTO {outbox} {values}")
    for columns, bad in [("lane, size", "16, 9"), ("state, size", "4, 9"), ("state, size, due", "1, 9, 'infinity'")]:
        with pytest.raises(DBAPIError, match=r"postroom: (lane|state|due) is"):
            execute(engine, f"INSERT INTO {delivery} (position, {columns}) VALUES (1, {bad})")
    execute(engine, f"INSERT INTO {outbox} (id, topic, content_type) VALUES ('{uuid4()}', 'orders', 'text/plain')")


@every_database
def test_the_log_of_two_phase_commits_refuses_a_decision_without_a_meaning(engine: Engine, names: Names) -> None:
    init(engine, names)
    row = f"INSERT INTO {names.table('twophase')} (id, decision, participants, deadline_ms) VALUES ('a', {{}}, '', 1)"
    for bad in (-1, 3):
        with pytest.raises(DBAPIError, match=r"twophase_check|decision is not"):
            execute(engine, row.format(bad))
    execute(engine, row.format(2))


@every_database
def test_the_tables_of_sagas_refuse_numbers_without_a_meaning(engine: Engine, names: Names) -> None:
    init(engine, names)
    saga = (
        f"INSERT INTO {names.table('saga')} (position, name, id, direction, outcome) VALUES (1, 'a', 'b', {{}}, {{}})"
    )
    step = f"INSERT INTO {names.table('saga_step')} (position, step, direction, outcome) VALUES (1, 'a', {{}}, {{}})"
    for bad in (saga.format(2, 0), saga.format(0, 3), step.format(-1, 1), step.format(0, 0), step.format(1, 5)):
        with pytest.raises(DBAPIError, match=r"saga_check|saga_step_check|direction is not|outcome is not"):
            execute(engine, bad)
    execute(engine, saga.format(1, 2), step.format(1, 4))


@every_database
def test_names_may_be_keywords_and_in_mixed_case(engine: Engine, url: str) -> None:
    names = names_for(url, "Order" if url.startswith("postgresql") else None, "Select_")
    assert init(engine, names) == (None, 7)
    assert_complete(engine, names)


@every_database
def test_one_database_holds_several_sets_of_tables(engine: Engine, url: str) -> None:
    schema = "public" if url.startswith("postgresql") else None
    several = [names_for(url), names_for(url, schema, "a_"), names_for(url, schema, "b_")]
    for names in several:
        assert init(engine, names) == (None, 7)
    for names in several:
        assert_complete(engine, names)


@every_database
def test_a_connection_in_a_transaction_is_refused_and_not_committed(engine: Engine, names: Names) -> None:
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        with pytest.raises(InvalidRequestError):
            upgrade(connection, names)
    with pytest.raises(SchemaMissing):
        checked(engine, names)


@pytest.mark.parametrize("kind", ["mariadb"])
def test_init_gives_up_when_another_is_at_it_for_too_long(
    engine: Engine, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "_LOCK_SECONDS", 0)
    with engine.connect() as other:
        other.execute(text("SELECT get_lock(concat('postroom init ', md5(database())), 0)"))
        with pytest.raises(SchemaError, match="another process"):
            init(engine, names)
    assert init(engine, names) == (None, 7)


@pytest.mark.parametrize("kind", ["postgresql"])
def test_a_role_that_owns_the_schema_needs_no_right_on_the_database(engine: Engine, names: Names) -> None:
    role = f"role_{os.getpid()}"
    execute(engine, f"CREATE ROLE {role}", f"CREATE SCHEMA postroom AUTHORIZATION {role}")
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"SET ROLE {role}")
            connection.commit()
            with pytest.raises(ProgrammingError, match="permission denied"):
                connection.exec_driver_sql("CREATE SCHEMA IF NOT EXISTS postroom")
            connection.rollback()
            assert upgrade(connection, names) == (None, 7)
        assert_complete(engine, names)
    finally:
        execute(engine, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")
