"""Lines: every way to give a participant, the same behaviour."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import sessionmaker

from postroom import Outbox
from postroom.errors import (
    DatabaseUnreachable,
    InvalidSetting,
    UnsupportedConnection,
    WrongMethod,
)
from postroom.store.sql.steps import Query, Steps
from postroom.twophase.errands import Errand
from postroom.twophase.openers import opener_of
from tests.contract.connection_kinds import with_driver
from tests.contract.twophase_support import SCOPE, new_branch
from tests.contract.twophase_ways import WAYS, Way, function, participant, url_text
from tests.contract.waiting import wait_until

if TYPE_CHECKING:
    from postroom.twophase.lines import Line
    from tests.contract.write_support import Database, Databases

every_way = pytest.mark.parametrize("way", WAYS, ids=str)


@every_way
def test_what_the_code_writes_commits_and_rolls_back_with_its_branch(way: Way, databases: Databases) -> None:
    """Several times, as the same connection comes back from its pool."""
    with participant(way, databases) as (bank, database):
        for end in ("commit_prepared", "roll_back_prepared", "roll_back", "commit_prepared"):
            line, branches, branch, row = bank.begun()
            bank.wait(line.flush())
            if end != "roll_back":
                bank.run(line, branches.prepare(branch))
            assert not database.has_business(row)
            bank.run(line, getattr(branches, end)(branch))
            bank.run(line, branches.restore())
            bank.wait(line.release())
            assert database.has_business(row) is (end == "commit_prepared")
        line = bank.open()
        assert bank.run(line, bank.branches(line).listed(SCOPE)) == []
        bank.wait(line.release())


@every_way
def test_a_message_commits_with_its_branch(way: Way, databases: Databases) -> None:
    outbox = Outbox()
    with participant(way, databases) as (bank, database):
        line = bank.open()
        branches = bank.branches(line)
        branch = bank.run(line, branches.begin(new_branch(), 30))
        add = outbox.aadd if way.asynchronous else outbox.add
        message = bank.wait(add(line.given, "orders", {"id": 7}))  # as the first statement
        bank.wait(line.flush())
        bank.run(line, branches.prepare(branch))
        assert database.stored([message]) == 0
        bank.run(line, branches.commit_prepared(branch))
        bank.run(line, branches.restore())
        bank.wait(line.release())
        assert database.stored([message]) == 1


@every_way
def test_T_2_a_relay_can_ask_what_sync_code_uses(way: Way, databases: Databases) -> None:
    def ask(_: Line) -> Steps[int]:
        return len((yield Query("SELECT 1")).rows)

    async def ask_twice() -> list[int]:
        found = [await Errand(bank.opener, ask).arun() for _ in range(2)]
        await bank.opener.aclose()
        return found

    with participant(way, databases) as (bank, _):
        assert (bank.wait(ask_twice()) if way.asynchronous else asyncio.run(ask_twice())) == [1, 1]


@every_way
def test_a_line_that_is_broken_off_never_comes_back(way: Way, databases: Databases) -> None:
    """The server ends what is not prepared, and what is prepared stays."""
    with participant(way, databases) as (bank, database):
        line, branches, branch, prepared_row = bank.begun()
        bank.wait(line.flush())
        bank.run(line, branches.prepare(branch))
        line.break_off()
        bank.wait(line.release())
        line, _, _, lost_row = bank.begun()
        bank.wait(line.flush())
        line.break_off()
        line.break_off()
        with pytest.raises(Exception, match=r"."):
            bank.run(line, _select())
        bank.wait(line.release())
        line = bank.open()

        def commits() -> bool:
            try:
                bank.run(line, branches.commit_prepared(branch))
            except Exception as error:
                if "XAER_NOTA" not in str(error):
                    raise
                return False  # the server has not noticed yet
            return True

        wait_until(commits)
        bank.wait(line.release())
        assert database.has_business(prepared_row)
        statement = f"INSERT INTO business (id) VALUES ('{lost_row}')"
        wait_until(lambda: _succeeds(database, statement))  # its lock is free: the other one is gone


def _succeeds(database: Database, statement: str) -> bool:
    try:
        database.rows(statement)
    except Exception as error:
        if "lock" not in str(error).lower():
            raise
        return False
    return True


def _select() -> Steps[Any]:
    return (yield Query("SELECT 1")).rows


@pytest.mark.parametrize("way", [way for way in WAYS if not way.asynchronous], ids=str)
def test_who_waits_on_a_line_that_is_broken_off_stops_waiting(way: Way, databases: Databases) -> None:
    sleep = "SELECT pg_sleep(60)" if way.database == "postgresql" else "SELECT sleep(60)"
    with participant(way, databases) as (bank, database):
        line, _, _, _ = bank.begun()
        failed: list[Exception] = []

        def wait() -> None:
            try:
                line.execute(Query(sleep))
            except Exception as error:  # noqa: BLE001 - looked at below
                failed.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        running = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)' AND state = 'active'"
            if way.database == "postgresql"
            else "SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%sleep(60)'"
        )
        wait_until(lambda: database.rows(running)[0][0])
        line.break_off()
        thread.join(10)
        assert failed
        line.release()


# ── wrong input


def test_a_function_must_return_a_connection(databases: Databases) -> None:
    url = databases["postgresql"].url
    with pytest.raises(WrongMethod, match="is async: use `async with`"):
        opener_of(function("asyncpg", url), "bank").open()
    with pytest.raises(WrongMethod, match=r"psycopg\.Connection, which is sync"):
        asyncio.run(opener_of(function("psycopg", url), "bank").aopen())
    with pytest.raises(UnsupportedConnection, match="is not a connection that Postroom knows"):
        opener_of(dict, "bank").open()


def test_a_function_may_ask_for_the_running_loop(databases: Databases) -> None:
    def connect() -> Any:
        asyncio.get_running_loop()
        return function("asyncpg", databases["postgresql"].url)()

    async def use() -> None:
        line: Any = await opener_of(connect, "bank").aopen()
        await line.release()

    asyncio.run(use())


def test_what_is_not_a_database_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"'bank' is given as builtins\.int: give the URL"):
        opener_of(7, "bank")
    with pytest.raises(InvalidSetting, match=r"sessionmaker without an engine: give one with bind=engine"):
        opener_of(sessionmaker(), "bank")


def test_sync_and_async_are_told_apart(databases: Databases) -> None:
    url = databases["postgresql"].url
    with pytest.raises(WrongMethod, match="which is async: use `async with`"):
        opener_of(create_async_engine(with_driver(url, "asyncpg")), "bank").open()
    with pytest.raises(WrongMethod, match="which is sync: use `with`"):
        asyncio.run(opener_of(create_engine(with_driver(url, "psycopg")), "bank").aopen())


@pytest.mark.parametrize("opened", ["sync", "async"])
def test_an_unreachable_database_is_named_without_its_secrets(opened: str) -> None:
    opener = opener_of("postgresql://me:secret@127.0.0.1:1/bank", "bank")
    with pytest.raises(DatabaseUnreachable, match=r"me:\*\*\*@127\.0\.0\.1:1/bank cannot be reached") as refused:
        asyncio.run(opener.aopen()) if opened == "async" else opener.open()
    assert "secret" not in str(refused.value)
    opener.close()


def test_a_url_keeps_its_connections_and_closes_them(databases: Databases) -> None:
    opener = opener_of(url_text(databases["postgresql"].url), "bank")
    made: list[object] = []
    line: Any = opener.open()
    event.listen(opener._lines.engine, "connect", lambda *_: made.append(_))  # type: ignore[attr-defined]
    line.release()
    opener.open().release()
    assert made == []
    opener.close()
    opener.close()
