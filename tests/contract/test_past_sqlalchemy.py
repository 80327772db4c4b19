"""Statements that are given to the driver below an SQLAlchemy connection: only their cost differs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from postroom.idempotency import Ledger, Run
from postroom.store.connections import past_sqlalchemy
from postroom.store.connections.past_sqlalchemy import ASYNC, BLOCKING, aexecute, execute, is_open_below
from tests.contract.connection_kinds import with_driver

if TYPE_CHECKING:
    from sqlalchemy import URL

    from tests.contract.write_support import Databases

FAILING = "SELECT 1 / 0"
ENDING_THE_SESSION = "SELECT pg_terminate_backend(pg_backend_pid())"


@pytest.fixture
def url(databases: Databases) -> URL:
    return databases["postgresql"].url


@pytest.mark.parametrize("driver", sorted(BLOCKING))
def test_errors_and_lost_connections_are_those_of_sqlalchemy(url: URL, driver: str) -> None:
    engine = create_engine(with_driver(url, driver))
    with engine.connect() as connection:
        assert not is_open_below(connection, BLOCKING)
        for statement, is_lost in ((FAILING, False), (ENDING_THE_SESSION, True)):
            connection.begin()
            assert is_open_below(connection, BLOCKING)
            with pytest.raises(DBAPIError) as raised:
                execute(connection, statement, ())
            assert (raised.value.connection_invalidated, connection.invalidated) == (is_lost, is_lost)
            connection.rollback()
        connection.begin()
        assert execute(connection, "SELECT %s", (7,)) == [(7,)]
    engine.dispose()


async def test_errors_lost_connections_and_cancellation_are_those_of_sqlalchemy(url: URL) -> None:
    engine = create_async_engine(with_driver(url, "asyncpg"))
    async with engine.connect() as connection:
        for statement, is_lost in ((FAILING, False), (ENDING_THE_SESSION, True)):
            await connection.begin()
            with pytest.raises(DBAPIError) as raised:
                await aexecute(connection, statement, ())
            assert (raised.value.connection_invalidated, connection.invalidated) == (is_lost, is_lost)
            await connection.rollback()
        await connection.begin()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(aexecute(connection, "SELECT pg_sleep(60)", ()), 0.05)
        assert connection.invalidated
        await connection.rollback()
        await connection.begin()
        assert [tuple(row) for row in await aexecute(connection, "SELECT $1::int", (7,))] == [(7,)]
    await engine.dispose()


async def test_those_who_listen_to_a_connection_see_every_statement(url: URL, monkeypatch: pytest.MonkeyPatch) -> None:
    given, seen, ledger = [], [], Ledger()

    async def noted(connection: object, text: str, params: tuple[object, ...]) -> list[object]:
        given.append(text)
        return await aexecute(connection, text, params)

    monkeypatch.setattr(past_sqlalchemy, "aexecute", noted)
    engine = create_async_engine(with_driver(url, "asyncpg"))
    async with engine.begin() as connection:
        assert connection.sync_connection is not None
        assert is_open_below(connection.sync_connection, ASYNC)
        assert isinstance(await ledger.abegin(connection, "heard by nobody", "0" * 64), Run)
    assert len(given) == 1

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def hear(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    async with engine.begin() as connection:
        assert isinstance(await ledger.abegin(connection, "heard", "0" * 64), Run)
    assert (len(given), seen) == (1, given)
    await engine.dispose()


def test_a_release_of_sqlalchemy_that_nobody_has_tried_executes_its_statements_itself(
    url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = create_engine(with_driver(url, "psycopg"))
    with engine.begin() as connection:
        assert is_open_below(connection, BLOCKING)
        monkeypatch.setattr("sqlalchemy.__version__", "2.2.0")
        past_sqlalchemy.is_known.cache_clear()
        assert not is_open_below(connection, BLOCKING)
    past_sqlalchemy.is_known.cache_clear()
    engine.dispose()
