"""What an application has set on its connection, row factories, codecs, modes, does not disturb the outbox."""

from __future__ import annotations

import json
import sqlite3
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import aiomysql
import aiosqlite
import asyncmy.cursors
import asyncpg
import psycopg
import psycopg.rows
import psycopg2.extras
import pymysql.cursors
import pytest

from postroom import Inbox, Message, Outbox
from postroom.errors import DuplicateMessage, IdempotencyConflict
from postroom.idempotency import InProgress, Ledger, Replay, Response, digest_of
from tests.contract import connection_kinds as kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import URL

    from tests.contract.connection_callers import Caller
    from tests.contract.write_support import Databases

OUTBOX = Outbox()
INBOX = Inbox("billing")
LEDGER = Ledger()
DIGEST = digest_of("POST", "/orders")
ODD_RESPONSE = Response(200, (("it's", '\\ "x"'),), b"it's \\ \x00 \xff")


class OwnSqlite(sqlite3.Connection):
    """A subclass of a driver's connection, as an application may have one."""


class OwnPsycopg(psycopg.Connection[Any]):
    """The same."""


class OwnAiomysql(aiomysql.Connection):  # type: ignore[misc]  # aiomysql brings no types
    """The same."""


class OwnRecord(asyncpg.Record):  # type: ignore[misc]  # asyncpg brings no types
    def __getattr__(self, name: str) -> Any:
        return self[name]


def as_dict(cursor: Any, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@contextmanager
def with_attributes(
    opened: Callable[[URL], AbstractContextManager[Caller]], url: URL, **attributes: Any
) -> Iterator[Caller]:
    with opened(url) as caller:
        for name, value in attributes.items():
            setattr(caller.connection, name, value)
        yield caller


@contextmanager
def with_statements(
    opened: Callable[[URL], AbstractContextManager[Caller]], *statements: str, url: URL
) -> Iterator[Caller]:
    with opened(url) as caller:
        for statement in statements:
            caller.sql(statement)
        caller.commit()
        yield caller


@contextmanager
def asyncpg_with_codecs(url: URL) -> Iterator[Caller]:
    with kinds.raw_async("asyncpg", url, record_class=OwnRecord) as caller:
        for type_name in ("json", "jsonb"):
            codec = caller.connection.set_type_codec(
                type_name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
            )
            caller.wait(codec)
        for type_name in ("uuid", "timestamptz"):
            codec = caller.connection.set_type_codec(
                type_name, encoder=refuse, decoder=lambda text: f"own {text}", schema="pg_catalog"
            )
            caller.wait(codec)
        yield caller


def refuse(_value: object) -> str:
    raise TypeError("this application's codec takes its own classes only")


sqlite = partial(kinds.raw, "sqlite3")
aio_sqlite = partial(kinds.raw_async, "aiosqlite")
SETTINGS: dict[str, tuple[str, Callable[[URL], AbstractContextManager[Caller]]]] = {
    "sqlite3, Row": ("sqlite", partial(with_attributes, sqlite, row_factory=sqlite3.Row)),
    "sqlite3, dicts": ("sqlite", partial(with_attributes, sqlite, row_factory=as_dict)),
    "sqlite3, texts as bytes": ("sqlite", partial(with_attributes, sqlite, text_factory=bytes)),
    "sqlite3, immediate": ("sqlite", partial(kinds.raw, "sqlite3", isolation_level="IMMEDIATE")),
    "sqlite3, declared types": (
        "sqlite",
        partial(kinds.raw, "sqlite3", detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES),
    ),
    "sqlite3, subclass": ("sqlite", partial(kinds.raw, "sqlite3", factory=OwnSqlite)),
    "aiosqlite, Row": ("sqlite", partial(with_attributes, aio_sqlite, row_factory=aiosqlite.Row)),
    "aiosqlite, texts as bytes": ("sqlite", partial(with_attributes, aio_sqlite, text_factory=bytes)),
    **{
        f"psycopg, {factory.__name__}": ("postgresql", partial(kinds.raw, "psycopg", row_factory=factory))
        for factory in (psycopg.rows.dict_row, psycopg.rows.namedtuple_row, psycopg.rows.scalar_row)
    },
    **{
        f"psycopg, {factory.__name__}": ("postgresql", partial(kinds.raw, "psycopg", cursor_factory=factory))
        for factory in (psycopg.ClientCursor, psycopg.RawCursor)
    },
    "psycopg, subclass": (
        "postgresql",
        partial(with_attributes, partial(kinds.raw, "psycopg"), __class__=OwnPsycopg),
    ),
    "psycopg, odd session": (
        "postgresql",
        lambda url: with_statements(
            partial(kinds.raw, "psycopg"),
            "SET datestyle = 'German, DMY'",
            "SET timezone = 'America/St_Johns'",
            "SET search_path = ''",
            "SET search_path = public",
            "SET bytea_output = escape",
            url=url,
        ),
    ),
    "psycopg async, dict_row": (
        "postgresql",
        partial(kinds.raw_async, "psycopg async", row_factory=psycopg.rows.dict_row),
    ),
    "psycopg async, AsyncRawCursor": (
        "postgresql",
        partial(kinds.raw_async, "psycopg async", cursor_factory=psycopg.AsyncRawCursor),
    ),
    **{
        f"psycopg2, {factory.__name__}": ("postgresql", partial(kinds.raw, "psycopg2", cursor_factory=factory))
        for factory in (
            psycopg2.extras.DictCursor,
            psycopg2.extras.RealDictCursor,
            psycopg2.extras.NamedTupleCursor,
        )
    },
    "asyncpg, codecs": ("postgresql", asyncpg_with_codecs),
    **{
        f"PyMySQL, {factory.__name__}": ("mariadb", partial(kinds.raw, "PyMySQL", cursorclass=factory))
        for factory in (pymysql.cursors.DictCursor, pymysql.cursors.SSCursor)
    },
    "PyMySQL, texts as bytes": ("mariadb", partial(kinds.raw, "PyMySQL", use_unicode=False)),
    "PyMySQL, odd session": (
        "mariadb",
        lambda url: with_statements(
            partial(kinds.raw, "PyMySQL"),
            "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,NO_ZERO_DATE,STRICT_ALL_TABLES'",
            "SET time_zone = '-03:30'",
            url=url,
        ),
    ),
    "asyncmy, DictCursor": ("mariadb", partial(kinds.raw_async, "asyncmy", cursor_cls=asyncmy.cursors.DictCursor)),
    "aiomysql, subclass": (
        "mariadb",
        partial(with_attributes, partial(kinds.raw_async, "aiomysql"), __class__=OwnAiomysql),
    ),
    "aiomysql, DictCursor": ("mariadb", partial(kinds.raw_async, "aiomysql", cursorclass=aiomysql.cursors.DictCursor)),
    **{
        f"{driver}, odd session": (
            "mariadb",
            partial(
                lambda driver, url: with_statements(
                    partial(kinds.raw_async, driver), "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'", url=url
                ),
                driver,
            ),
        )
        for driver in ("asyncmy", "aiomysql")
    },
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_everything_works_as_without_it(setting: str, databases: Databases) -> None:
    kind, opened = SETTINGS[setting]
    database = databases[kind]
    key, identifier = str(uuid4()), uuid4()
    given = {"key": 'it\'s \\ "7"', "headers": {"trace": 'it\'s \\ "x"'}}
    with opened(database.url) as caller:
        caller.begin()
        first = caller.add(OUTBOX, "orders", {"it's": '\\ "y"'}, idempotency_key=key, **given)
        again = caller.add(OUTBOX, "orders", {"it's": '\\ "y"'}, idempotency_key=key, **given)
        with pytest.raises(IdempotencyConflict):
            caller.add(OUTBOX, "orders", {}, idempotency_key=key)
        with pytest.raises(DuplicateMessage):
            caller.add(OUTBOX, "orders", {}, id=first.id)
        many = [Message.new("orders", n, key=n, idempotency_key=f"{key}/{n}") for n in range(5)]
        caller.add_many(OUTBOX, many[:3])
        recorded = caller.add_many(OUTBOX, many)
        with pytest.raises(IdempotencyConflict):
            caller.add_many(OUTBOX, [Message.new("orders", 5), Message.new("orders", 6, idempotency_key=key)])
        assert caller.first_time(INBOX, identifier)
        assert not caller.first_time(INBOX, identifier)
        run = caller.ledger(LEDGER, "begin", key, DIGEST)
        assert isinstance(caller.ledger(LEDGER, "begin", key, DIGEST), InProgress)
        caller.ledger(LEDGER, "finish", run.entry, ODD_RESPONSE)
        assert caller.ledger(LEDGER, "begin", key, DIGEST) == Replay(ODD_RESPONSE)
        caller.commit()
    assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
    assert [message.duplicate for message in recorded] == [True] * 3 + [False] * 2
    assert [message.id for message in recorded] == [message.id for message in many]
    assert isinstance(again.id, UUID)
    assert database.stored([first, *many]) == 6
    assert database.read(first) == first
    messages, deliveries = database.size()
    assert messages == deliveries
