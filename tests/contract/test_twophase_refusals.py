"""Code that ends its part of a two-phase commit by itself is refused; what libraries offer besides works."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import Column, String
from sqlalchemy.exc import IntegrityError, InvalidRequestError
from sqlalchemy.orm import declarative_base

from postroom.errors import (
    UnusableConnection,
)
from postroom.store.sql.steps import Query, Steps
from postroom.store.twophase.branches import Ended
from postroom.twophase.openers import opener_of
from tests.contract.twophase_support import new_branch
from tests.contract.twophase_ways import BY_NAME, WAYS, Way, participant
from tests.contract.write_support import business_row

if TYPE_CHECKING:
    from tests.contract.write_support import Databases


class Business(declarative_base()):  # type: ignore[misc]  # its base class is made at run time
    __tablename__ = "business"
    id = Column(String(36), primary_key=True)


ON_SQLALCHEMY = [way for way in WAYS if "sessionmaker" in way.name or "ngine" in way.name]


@pytest.mark.parametrize("way", ON_SQLALCHEMY, ids=str)
@pytest.mark.parametrize("method", ["commit", "rollback", "close"])
def test_sqlalchemy_is_not_let_end_a_branch(way: Way, method: str, databases: Databases) -> None:
    with participant(way, databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        with pytest.raises(UnusableConnection, match=r"participant 'bank' commits and rolls back together"):
            bank.wait(getattr(line.given, method)())
        if method == "close" and "ngine" in way.name:  # it has been closed anyway, and what it did is undone
            with pytest.raises(Ended):
                bank.run(line, branches.prepare(branch))
        else:
            bank.run(line, branches.prepare(branch))  # nothing has happened to it
            bank.run(line, branches.commit_prepared(branch))
        bank.wait(line.release())
        assert database.has_business(row) is not (method == "close" and "ngine" in way.name)


@pytest.mark.parametrize("way", [way for way in ON_SQLALCHEMY if "sessionmaker" in way.name], ids=str)
def test_a_session_is_flushed_and_a_failed_flush_raises_its_own_error(way: Way, databases: Databases) -> None:
    with participant(way, databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        added = str(uuid4())
        line.given.add(Business(id=added))
        bank.wait(line.flush())
        bank.run(line, branches.prepare(branch))
        bank.run(line, branches.commit_prepared(branch))
        bank.wait(line.release())
        assert database.has_business(row, added)
        line, branches, branch, _ = bank.begun()
        line.given.add(Business(id=added))
        with pytest.raises(IntegrityError):
            bank.wait(line.flush())
        with pytest.raises(UnusableConnection, match="a flush of its session failed"):  # if the code caught that error
            bank.wait(line.flush())
        bank.run(line, branches.roll_back(branch))
        bank.wait(line.release())


@pytest.mark.parametrize("way", ON_SQLALCHEMY, ids=str)
def test_savepoints_of_sqlalchemy_work(way: Way, databases: Databases) -> None:
    with participant(way, databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        nested = bank.wait(line.given.begin_nested())
        statement, undone = business_row()
        bank.write(line, statement)
        bank.wait(nested.rollback())
        bank.run(line, branches.prepare(branch))
        bank.run(line, branches.commit_prepared(branch))
        bank.wait(line.release())
        assert database.has_business(row)
        assert not database.has_business(undone)


@pytest.mark.parametrize("name", ["Engine, psycopg", "AsyncEngine, asyncpg"])
def test_the_level_of_isolation_of_an_engine_is_known(name: str, databases: Databases) -> None:
    way = BY_NAME[name]
    with participant(way, databases) as (bank, _):
        given = bank.given.execution_options(isolation_level="SERIALIZABLE")
        opener = opener_of(given, "bank")
        line: Any = bank.wait(opener.aopen()) if way.asynchronous else opener.open()
        branches = bank.branches(line)
        branch = bank.run(line, branches.begin(new_branch(), 30, line.isolation))
        assert bank.run(line, _shown("transaction_isolation")) == "serializable"
        bank.run(line, branches.roll_back(branch))
        bank.wait(line.release())


def _shown(setting: str) -> Steps[str]:
    return str((yield Query(f"SHOW {setting}")).rows[0][0])


def test_beginning_again_is_an_error_of_sqlalchemy(databases: Databases) -> None:
    with participant(BY_NAME["Engine, psycopg"], databases) as (bank, _):
        line = bank.open()
        with pytest.raises(InvalidRequestError, match="already"):
            line.given.begin()
        line.release()


@pytest.mark.parametrize("way", ON_SQLALCHEMY, ids=str)
def test_sqlalchemy_is_not_let_go_on_with_another_connection(way: Way, databases: Databases) -> None:
    """It replaces one that the server has closed, as it does to a branch that was silent for too long."""
    with participant(way, databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        end = "SELECT pg_backend_pid()" if way.database == "postgresql" else "SELECT CONNECTION_ID()"
        [[session]] = bank.run(line, _rows(end))
        database.rows(f"SELECT pg_terminate_backend({session})" if way.database == "postgresql" else f"KILL {session}")
        statement, stray = business_row()
        for _ in range(3):
            with pytest.raises(Exception, match=r"."):
                bank.write(line, statement)
            with suppress(Exception):
                bank.wait(line.given.rollback())
        with pytest.raises(Exception, match=r"."):
            bank.run(line, branches.prepare(branch))
        bank.wait(line.release())
        assert not database.has_business(row)
        assert not database.has_business(stray)


@pytest.mark.parametrize(
    "way", [way for way in WAYS if way in ON_SQLALCHEMY or way.name.startswith(("URL", "Django"))], ids=str
)
@pytest.mark.parametrize("command", ["COMMIT", "ROLLBACK"])
def test_T_1_an_end_as_sql_is_refused(way: Way, command: str, databases: Databases) -> None:
    with participant(way, databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        with pytest.raises(UnusableConnection, match=rf"leave out {command}, and raise an exception"):
            bank.write(line, command)
        bank.write(line, "SAVEPOINT one")
        bank.write(line, "ROLLBACK TO SAVEPOINT one")
        assert not database.has_business(row)
        bank.run(line, branches.prepare(branch))  # nothing has happened to it
        bank.run(line, branches.commit_prepared(branch))
        bank.wait(line.release())
        assert database.has_business(row)


@pytest.mark.parametrize("way", ON_SQLALCHEMY, ids=str)
def test_no_statement_commits_by_itself_after_the_end_of_a_transaction(way: Way, databases: Databases) -> None:
    """MariaDB refuses an end that hides behind another statement. PostgreSQL does not, but refuses what follows."""
    with participant(way, databases) as (bank, database):
        line = bank.open()
        branches = bank.branches(line)
        identity = new_branch().text
        bank.run(line, branches.begin_plain(identity, 30))
        (statement, row), (after, stray) = business_row(), business_row()
        bank.write(line, statement)
        if way.database == "mariadb":
            with pytest.raises(Exception, match="XAER_RMFAIL"):
                bank.run(line, _rows("ROLLBACK"))
            bank.run(line, branches.confirm(identity))
        else:
            bank.run(line, _rows("ROLLBACK"))
            with pytest.raises(Ended):
                bank.write(line, after)
            with pytest.raises(Ended):
                bank.run(line, branches.confirm(identity))
        line.break_off()
        bank.wait(line.release())
        assert not database.has_business(row)
        assert not database.has_business(stray)


def _rows(statement: str) -> Steps[Any]:
    return (yield Query(statement)).rows


def test_savepoints_of_psycopg_work(databases: Databases) -> None:
    with participant(BY_NAME["function, psycopg"], databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        statement, undone = business_row()
        with line.given.transaction(force_rollback=True):
            bank.write(line, statement)
        statement, kept = business_row()
        with line.given.transaction():
            bank.write(line, statement)
        bank.run(line, branches.prepare(branch))
        bank.run(line, branches.commit_prepared(branch))
        bank.wait(line.release())
        assert database.has_business(row, kept)
        assert not database.has_business(undone)


@pytest.mark.filterwarnings("ignore:The 'reconnect' argument is deprecated")
@pytest.mark.parametrize("driver", ["PyMySQL", "asyncmy", "aiomysql"])
def test_T_1_a_driver_is_not_let_connect_again(driver: str, databases: Databases) -> None:
    """The server has rolled the branch back, and in the new session each statement would commit by itself."""
    with participant(BY_NAME[f"function, {driver}"], databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        [[session]] = bank.run(line, _rows("SELECT CONNECTION_ID()"))
        database.rows(f"KILL {session}")
        with pytest.raises(UnusableConnection, match=r"leave out ping\(reconnect=True\)"):
            bank.wait(line.given.ping(reconnect=True))
        with pytest.raises(Exception, match=r"."):
            bank.run(line, branches.prepare(branch))
        line.break_off()
        bank.wait(line.release())
        assert not database.has_business(row)


REFUSING = [way for way in WAYS if way.name.startswith(("function", "pool")) and "asyncpg" not in way.name]


@pytest.mark.parametrize("way", REFUSING, ids=str)
@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_drivers_are_not_let_end_a_branch(way: Way, method: str, databases: Databases) -> None:
    with participant(way, databases) as (bank, database):
        line, branches, branch, row = bank.begun()
        if "psycopg2" in way.name:
            getattr(line.given, method)()  # has no effect in autocommit
        else:
            with pytest.raises(UnusableConnection, match=rf"leave out {method}\(\)"):
                bank.wait(getattr(line.given, method)())
        bank.run(line, branches.prepare(branch))
        bank.run(line, branches.commit_prepared(branch))
        given = line.given
        bank.wait(line.release())
        assert database.has_business(row)
        assert method not in getattr(given, "__dict__", {})


POOLS = [way for way in WAYS if way.name.startswith("pool") and "asyncpg" not in way.name]


@pytest.mark.parametrize("way", POOLS, ids=str)
def test_a_pool_gets_its_connection_back_as_it_was(way: Way, databases: Databases) -> None:
    with participant(way, databases) as (bank, _):
        line, branches, branch, _ = bank.begun()
        assert _autocommits(line.given)
        bank.run(line, branches.roll_back(branch))
        bank.run(line, branches.restore())
        given = line.given
        bank.wait(line.release())
        assert not _autocommits(given)


def _autocommits(connection: Any) -> bool:
    return bool(connection.get_autocommit() if hasattr(connection, "get_autocommit") else connection.autocommit)
