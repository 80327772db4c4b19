"""What a database must offer to take part in a two-phase commit, and how long it lets a branch wait."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest

from postroom.errors import TwoPhaseUnavailable
from postroom.store.connections.stores import Store
from postroom.store.schema.migrations import upgrade
from postroom.store.twophase.branch_kinds import BRANCHES
from tests.contract.twophase_support import (
    KINDS,
    MARIADB,
    Wire,
    begun_with_a_row,
    new_branch,
    on_each_database,
    swept,
    wires,
)
from tests.contract.waiting import wait_until
from tests.contract.write_support import Database, business_row
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import FreshDatabase
    from tests.contract.write_support import Databases


@pytest.fixture
def database(driver: str, databases: Databases) -> Iterator[Database]:
    with swept(driver, databases) as database:
        yield database


# ── limits of time


@on_each_database
def test_the_server_ends_a_silent_branch(driver: str, database: Database) -> None:
    """A frozen coordinator would keep its locks, and recovery waiting, for ever."""
    with wires(driver, database, 2) as [silent, other]:
        silent.run(silent.branches.begin(new_branch(), 0.5))
        statement, row = business_row()
        silent.sql(statement)

        def is_free() -> bool:
            try:
                other.sql(statement)
            except Exception as error:  # on MariaDB, waiting for the lock takes longer than its own limit
                if "lock" not in str(error).lower():
                    raise
                return False
            return True

        wait_until(is_free)
        assert database.has_business(row)
        with pytest.raises(Exception, match=r"."):
            silent.sql("SELECT 1")


@on_each_database
def test_a_wait_for_a_lock_ends_with_the_branch(driver: str, database: Database) -> None:
    with wires(driver, database, 2) as [one, other]:
        branch, row = begun_with_a_row(one)
        waiting = other.run(other.branches.begin(new_branch(), 0.5))
        with pytest.raises(Exception, match=r"(?i)lock"):
            other.sql(f"INSERT INTO business (id) VALUES ('{row}')")
        other.run(other.branches.roll_back(waiting))
        one.run(one.branches.roll_back(branch))


@pytest.mark.parametrize("driver", ["psycopg"])
def test_shorter_limits_of_the_database_stay(driver: str, databases: Databases, database: Database) -> None:
    name = database.url.database
    with closing(Wire(driver, database)) as wire:
        wire.sql(f"ALTER DATABASE \"{name}\" SET lock_timeout = '3s'")
        try:
            with closing(Wire(driver, databases["postgresql"])) as limited:
                branch = limited.run(limited.branches.begin(new_branch(), 30))
                limited.sql("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")  # still possible: there is no snapshot yet
                assert limited.sql("SHOW lock_timeout") == [("3s",)]
                assert limited.sql("SHOW idle_in_transaction_session_timeout") == [("30s",)]
                limited.run(limited.branches.roll_back(branch))
                assert limited.sql("SHOW idle_in_transaction_session_timeout") == [("0",)]
        finally:
            wire.sql(f'ALTER DATABASE "{name}" RESET lock_timeout')


@pytest.mark.parametrize("driver", MARIADB)
def test_a_mariadb_session_is_left_as_it_was(driver: str, database: Database) -> None:
    read = "SELECT @@wait_timeout, @@innodb_lock_wait_timeout, @@idle_write_transaction_timeout"
    with wires(driver, database, 1) as [wire]:
        wire.sql("SET SESSION innodb_lock_wait_timeout = 7", script=True)
        before = wire.sql(read)
        branch = wire.run(wire.branches.begin(new_branch(), 9))
        assert wire.sql(read) == [(9, 7, 9)]
        wire.run(wire.branches.roll_back(branch))
        wire.run(wire.branches.restore())
        assert wire.sql(read) == before


# ── what a database must offer


class Unprepared(PostgreSQL):
    """A server with PostgreSQL's default."""

    def command(self) -> list[str | Path]:
        return [*super().command(), "-c", "max_prepared_transactions=0"]


def test_postgresql_must_allow_prepared_transactions() -> None:
    server = need(PostgreSQL, Unprepared())
    try:
        with closing(Store(server.url("postgres"))) as store:
            check = BRANCHES["postgresql"].check
            with pytest.raises(TwoPhaseUnavailable, match=r"set max_prepared_transactions in postgresql\.conf"):
                store.run(check(store.names))
            assert store.run(check(store.names, prepares=False)).witness is False
    finally:
        server.close()


def test_sqlite_can_only_hold_the_log(fresh_database: FreshDatabase) -> None:
    with closing(Store(fresh_database("sqlite"))) as store:
        store.call(lambda connection: upgrade(connection, store.names))
        with pytest.raises(TwoPhaseUnavailable, match="make this database the log's"):
            store.run(BRANCHES["sqlite"].check(store.names))
        branches = store.run(BRANCHES["sqlite"].check(store.names, prepares=False))
        assert not branches.can_prepare


@on_each_database
def test_a_database_without_our_tables_has_no_witness(driver: str, fresh_database: FreshDatabase) -> None:
    bare = Database.__new__(Database)
    with closing(Store(fresh_database(KINDS[driver]))) as bare.store:
        bare.url = bare.store.connector.url.for_sqlalchemy()  # with a driver, which the wire's own replaces
        with wires(driver, bare, 1) as [wire]:
            assert not wire.branches.witness
            branch = wire.run(wire.branches.begin(new_branch(), 30))
            wire.sql("SELECT 1")
            wire.run(wire.branches.prepare(branch))
            wire.run(wire.branches.commit_prepared(branch))


def test_a_user_without_privileges_on_the_inbox_has_no_witness(databases: Databases) -> None:
    database = databases["postgresql"]
    database.rows("CREATE ROLE twophase_stranger LOGIN")
    try:
        url = database.url.set(username="twophase_stranger").render_as_string(hide_password=False)
        with closing(Store(url)) as store:
            assert not store.run(BRANCHES["postgresql"].check(store.names)).witness
    finally:
        with psycopg.connect(database.url.render_as_string(hide_password=False), autocommit=True) as admin:
            admin.execute("DROP ROLE twophase_stranger")
