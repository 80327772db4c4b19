"""`postroom init` with other drivers, isolation levels and transaction modes than the usual ones."""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Connection, Engine, event, inspect
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from postroom.errors import SchemaMissing
from postroom.store.schema.migrations import upgrade
from postroom.store.schema.versions import check
from postroom.store.sql.names import Names
from tests.contract.schema_support import (
    ASYNC,
    assert_complete,
    checked,
    cut_off,
    engine_for,
    execute,
    init,
    list_only,
    names_for,
    with_driver,
)
from tests.crash.processes import wait_until
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

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
async def test_async_drivers_run_it_through_run_sync(url: str, engine: Engine, names: Names) -> None:
    async_engine = create_async_engine(with_driver(url, ASYNC))
    async with async_engine.connect() as connection:
        assert await connection.run_sync(upgrade, names) == (None, 7)
        await connection.run_sync(check, names)
    await async_engine.dispose()
    assert_complete(engine, names)


@every_database
@pytest.mark.parametrize("isolation", ["AUTOCOMMIT", "SERIALIZABLE"])
def test_the_engine_may_have_another_isolation(url: str, engine: Engine, names: Names, isolation: str) -> None:
    with engine_for(url, isolation_level=isolation) as other:
        with pytest.raises(SchemaMissing):
            checked(other, names)
        assert cut_off(other, names, after=5)
        assert init(other, names) == (None, 7)
    assert_complete(engine, names)


def begin_by_event(engine: Engine) -> None:
    """SQLAlchemy's recipe for full transactions on SQLite."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")


def begin_by_driver(engine: Engine) -> None:
    """What the standard library recommends since 3.12."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _record: object) -> None:
        connection.autocommit = False


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize(
    "mode",
    [
        begin_by_event,
        pytest.param(begin_by_driver, marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="new in 3.12")),
    ],
)
def test_sqlite_works_in_every_transaction_mode_of_the_driver(engine: Engine, names: Names, mode: Any) -> None:
    mode(engine)
    assert cut_off(engine, names, after=5)
    with engine.connect() as connection:
        assert not inspect(connection).get_table_names()
    assert init(engine, names) == (None, 7)
    assert_complete(engine, names)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_sqlite_file_is_in_wal_mode_afterwards(engine: Engine, names: Names) -> None:
    init(engine, names)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.fixture
def reader(engine: Engine) -> Iterator[sqlite3.Connection]:
    """One who reads a file that is not yet in WAL mode, and so keeps it from getting there."""
    execute(engine, "CREATE TABLE other (id INTEGER)", "INSERT INTO other VALUES (1)")
    reader = sqlite3.connect(str(engine.url.database), isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM other").fetchall()
    yield reader
    reader.close()


@pytest.mark.parametrize("kind", ["sqlite"])
def test_init_tries_again_when_wal_mode_cannot_be_had_at_once(
    url: str, names: Names, reader: sqlite3.Connection
) -> None:
    with engine_for(url, connect_args={"timeout": 0}) as engine:

        @event.listens_for(engine, "before_cursor_execute")
        def end_reading(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
            if statement == "BEGIN IMMEDIATE" and reader.in_transaction:
                reader.execute("ROLLBACK")

        assert init(engine, names) == (None, 7)
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.usefixtures("reader")
def test_init_fails_when_wal_mode_cannot_be_had_at_all(url: str, names: Names) -> None:
    with engine_for(url, connect_args={"timeout": 0}) as engine:
        with pytest.raises(OperationalError, match="locked"):
            init(engine, names)
        with pytest.raises(SchemaMissing):
            checked(engine, names)


def test_a_database_in_memory_works() -> None:
    with engine_for("sqlite://") as engine, engine.connect() as connection:
        assert upgrade(connection, Names.of("sqlite")) == (None, 7)
        check(connection, Names.of("sqlite"))


@pytest.mark.parametrize("kind", ["postgresql"])
def test_an_upgrade_of_tables_that_are_in_use_neither_deadlocks_nor_keeps_relays_waiting(
    url: str, engine: Engine, names: Names
) -> None:
    """† A relay that waits for the messages has locked the deliveries, for which the upgrade would wait in turn."""
    init(engine, names)
    execute(engine, *list_only(names, 6))
    outbox, delivery = names.table("outbox"), names.table("outbox_delivery")
    hasty = {"connect_args": {"options": "-c deadlock_timeout=10ms"}}  # the upgrade would be the one to fail
    with engine_for(url, **hasty) as upgrading, ThreadPoolExecutor(2) as threads, engine.connect() as producer:
        producer.exec_driver_sql(f"LOCK TABLE {outbox} IN ROW EXCLUSIVE MODE")
        upgraded = threads.submit(init, upgrading, names)
        wait_until(lambda: _waits_for_a_lock(engine), "the upgrade")
        relay = threads.submit(execute, engine, f"SELECT 1 FROM {delivery} d LEFT JOIN {outbox} m USING (position)")
        relay.result(timeout=10)
        producer.rollback()
        assert upgraded.result(timeout=10) == (6, 7)


def _waits_for_a_lock(engine: Engine) -> bool:
    with engine.connect() as connection:
        return bool(connection.exec_driver_sql("SELECT 1 FROM pg_locks WHERE NOT granted AND relation > 0").all())
