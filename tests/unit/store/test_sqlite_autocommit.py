"""SQLite's ways to autocommit, which depend on the Python; so this runs on every one of them, and needs no server."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import Any

import aiosqlite
import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from postroom.errors import NotInTransaction
from postroom.store.connections.kinds import async_kind, sync_kind

needs_autocommit = pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has `autocommit` since Python 3.12")

ACCEPTED: list[Any] = [
    pytest.param({}, id="default"),
    pytest.param({"isolation_level": "IMMEDIATE"}, id="immediate"),
    pytest.param({"autocommit": False}, id="autocommit=False", marks=needs_autocommit),
    pytest.param({"autocommit": False, "isolation_level": None}, id="autocommit=False wins", marks=needs_autocommit),
]
REFUSED: list[Any] = [
    pytest.param({"isolation_level": None}, id="isolation_level=None"),
    pytest.param({"autocommit": True}, id="autocommit=True", marks=needs_autocommit),
    pytest.param(
        {"autocommit": True, "isolation_level": "IMMEDIATE"}, id="autocommit=True wins", marks=needs_autocommit
    ),
]


@pytest.mark.parametrize("options", ACCEPTED)
def test_O_1_what_begins_by_itself_is_accepted(options: dict[str, Any]) -> None:
    with closing(sqlite3.connect(":memory:", **options)) as connection:
        assert sync_kind(connection, "outbox.add").connection is connection


@pytest.mark.parametrize("options", REFUSED)
def test_O_1_what_does_not_is_refused_until_there_is_a_transaction(options: dict[str, Any]) -> None:
    with closing(sqlite3.connect(":memory:", **options)) as connection:
        with pytest.raises(NotInTransaction, match="execute BEGIN first, or leave isolation_level at its default"):
            sync_kind(connection, "outbox.add")
        connection.execute("BEGIN")
        sync_kind(connection, "outbox.add")


@pytest.mark.parametrize("options", ACCEPTED)
async def test_O_1_aiosqlite_that_begins_by_itself_is_accepted(options: dict[str, Any]) -> None:
    async with aiosqlite.connect(":memory:", **options) as connection:
        assert (await async_kind(connection, "outbox.aadd")).connection is connection


@pytest.mark.parametrize("options", REFUSED)
async def test_O_1_aiosqlite_that_does_not_is_refused_until_there_is_a_transaction(options: dict[str, Any]) -> None:
    async with aiosqlite.connect(":memory:", **options) as connection:
        with pytest.raises(NotInTransaction, match="execute BEGIN first"):
            await async_kind(connection, "outbox.aadd")
        await connection.execute("BEGIN")
        await async_kind(connection, "outbox.aadd")


@pytest.mark.parametrize("options", REFUSED)
def test_O_1_below_sqlalchemy_it_is_refused_too(options: dict[str, Any]) -> None:
    engine = create_engine("sqlite://", poolclass=NullPool, connect_args=options)
    with engine.connect() as connection:
        with pytest.raises(NotInTransaction, match="AUTOCOMMIT"):
            sync_kind(connection, "outbox.add")
        assert not connection.in_transaction()


@pytest.mark.parametrize("options", ACCEPTED)
def test_O_1_below_sqlalchemy_it_is_accepted_too(options: dict[str, Any]) -> None:
    engine = create_engine("sqlite://", poolclass=NullPool, connect_args=options)
    with engine.connect() as connection:
        assert sync_kind(connection, "outbox.add").connection is connection
