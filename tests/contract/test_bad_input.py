"""Bad input: an error that names what is wrong and what to do, nothing written, the transaction still usable."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import psycopg_pool
import pytest
from django.db import DatabaseError as DjangoError
from django.db.backends.dummy.base import DatabaseWrapper as DummyWrapper
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.ext.asyncio.exc import AsyncContextNotStarted
from sqlalchemy.orm import sessionmaker

from postroom import Inbox, Message, Outbox
from postroom.errors import (
    InvalidMessage,
    PayloadNotEncodable,
    PayloadTooLarge,
    SchemaMissing,
    UnsupportedConnection,
    WrongMethod,
)
from postroom.rules.saga_calls import call_headers
from postroom.rules.saga_plan import Direction
from postroom.store.sql.db_errors import code_of
from tests.contract.connection_kinds import KINDS, Kind, libpq
from tests.contract.write_support import Database, Databases, business_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import FreshDatabase
    from tests.contract.connection_callers import Caller

SECRET = "4111-1111"  # noqa: S105 - what must not be in an error
OUTBOX = Outbox(max_payload_bytes=1000)
INBOX = Inbox("billing")
CALL = call_headers("place_order", "7", "charge", Direction.FORWARD)
# One of each family is enough: what is refused here is refused before any driver is asked.
CHOSEN = ("sqlite3", "psycopg", "PyMySQL", "Session, psycopg2", "aiosqlite", "asyncpg", "AsyncSession, asyncmy")


def recursive() -> list[Any]:
    itself: list[Any] = [SECRET]
    itself.append(itself)
    return itself


NOW = datetime.now(UTC)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty topic": ({"topic": ""}, "topic is empty: give it at least one character"),
    "long topic": ({"topic": "x" * 256}, r"topic has 256 characters \('xxx.*at most 255"),
    "NUL in the topic": ({"topic": "a\0b"}, r"topic holds the character '\\x00'.*remove it"),
    "line break in the topic": ({"topic": "a\nb"}, r"topic holds the character '\\n'"),
    "surrogate in the topic": ({"topic": "a\ud800"}, r"topic holds the character '\\ud800'"),
    "no topic": ({"topic": None}, "neither topic nor type is given"),
    "empty key": ({"key": ""}, "key is empty.*or omit it"),
    "long key": ({"key": "é" * 256}, "key has 256 characters"),
    "NUL in the key": ({"key": "a\0"}, r"key holds the character '\\x00'"),
    "surrogate in the key": ({"key": "\udfff"}, r"key holds the character '\\udfff'"),
    "bool as key": ({"key": True}, "key must be a str, int or UUID, not bool"),
    "float as key": ({"key": 1.5}, "key must be a str, int or UUID, not float"),
    "empty type": ({"type": ""}, "type is empty"),
    "control character in the type": ({"type": "a\x7f"}, r"type holds the character '\\x7f'"),
    "long aggregate type": ({"aggregate_type": "x" * 256}, "aggregate_type has 256 characters"),
    "bool as aggregate id": ({"aggregate_id": False}, "aggregate_id must be a str, int or UUID, not bool"),
    "empty idempotency key": ({"idempotency_key": ""}, "idempotency_key is empty"),
    "long idempotency key": ({"idempotency_key": "x" * 256}, "idempotency_key has 256 characters"),
    "idempotency key of our own": (
        {"idempotency_key": "postroom:parked:7"},
        "idempotency_key 'postroom:parked:7' starts with 'postroom:'.*choose another",
    ),
    "NUL in the idempotency key": ({"idempotency_key": "\0"}, "idempotency_key holds the character"),
    "space at an idempotency key's end": (
        {"idempotency_key": "k "},
        "idempotency_key 'k ' ends with a space.*strip it",
    ),
    "id that is none": ({"id": "order-7"}, "id must be a UUID, not 'order-7': leave it out"),
    "number as id": ({"id": 7}, "id must be a UUID, not '7'"),
    "header that is no text": ({"headers": {"n": 1}}, "header 'n' must be a str, not int"),
    "header's name that is no text": ({"headers": {1: "n"}}, "a header's name must be a str, not int"),
    "header without a name": ({"headers": {"": "n"}}, "a header's name is empty"),
    "line break in a header": ({"headers": {"n": f"{SECRET}\r\nx: y"}}, r"header 'n' holds the character '\\r'"),
    "line break in a header's name": ({"headers": {"n\n": "x"}}, r"a header's name holds the character '\\n'"),
    "surrogate in a header": ({"headers": {"n": f"{SECRET}\ud800"}}, r"header 'n' holds the character '\\ud800'"),
    "the ledger's header": ({"headers": {"Postroom_Ledger": SECRET}}, "header 'Postroom_Ledger' is Postroom's own"),
    "headers that are none": ({"headers": SECRET}, "headers must be a mapping of str to str, not str"),
    "naive deliver_at": ({"deliver_at": datetime(2030, 1, 2)}, r"deliver_at 2030-01-02T.* no time zone: use"),  # noqa: DTZ001 - that is what is bad
    "naive expires_at": ({"expires_at": datetime(2030, 1, 2)}, r"expires_at 2030-01-02T.* no time zone: use"),  # noqa: DTZ001 - that is what is bad
    "text as deliver_at": ({"deliver_at": "2030-01-02"}, "deliver_at must be a datetime, not str"),
    "the end of time": ({"expires_at": datetime.max.replace(tzinfo=UTC)}, "outside the years 1000 to 9998"),
    "expiry before delivery": (
        {"deliver_at": NOW + timedelta(hours=2), "expires_at": NOW + timedelta(hours=1)},
        "expires_at .* is not after deliver_at .*: it could never be sent",
    ),
    "line break in the content type": ({"content_type": "a/b\nc"}, r"content_type holds the character '\\n'"),
}
BAD_PAYLOADS: dict[str, tuple[Any, type[InvalidMessage], str]] = {
    "object": ({SECRET: object()}, PayloadNotEncodable, "objects of type object have no JSON form.*pass bytes"),
    "NaN": ({SECRET: [float("nan")]}, PayloadNotEncodable, "NaN or infinite.*use None or a string"),
    "infinity": ([{"n": float("-inf")}, SECRET], PayloadNotEncodable, "NaN or infinite"),
    "recursion": (recursive(), PayloadNotEncodable, "nested too deeply or refers to itself"),
    "surrogate in a text": (f"{SECRET}\ud800", PayloadNotEncodable, "lone surrogate.*pass bytes instead"),
    "surrogate in an object": ({"n": f"{SECRET}\ud800"}, PayloadNotEncodable, "it holds a lone surrogate"),
    "too large": (
        {"n": SECRET * 200},
        PayloadTooLarge,
        "has 1,821 bytes .* the limit is 1,000.*raise max_payload_bytes",
    ),
}

each_chosen = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.name in CHOSEN]
)


@pytest.fixture
def database(kind: Kind, databases: Databases) -> Database:
    return databases[kind.database]


@pytest.fixture
def caller(kind: Kind, database: Database) -> Iterator[Caller]:
    """A caller with a transaction in which a row of its own is written before and after; both must commit."""
    size = database.size()
    (before, row_before), (after, row_after) = business_row(), business_row()
    with kind.open(database.url) as caller:
        caller.begin()
        caller.sql(before)
        yield caller
        caller.sql(after)
        caller.commit()
    assert database.has_business(row_before, row_after)
    assert database.size() == size


def assert_discreet(error: BaseException | None) -> None:
    while error is not None:
        assert SECRET not in str(error)
        assert SECRET not in repr(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_one_of_each_family_was_found() -> None:
    assert {kind.name for kind in KINDS if kind.name in CHOSEN} == set(CHOSEN)


@each_chosen
@pytest.mark.parametrize("bad", BAD)
def test_O_4_a_bad_field_is_refused(bad: str, caller: Caller) -> None:
    wrong, problem = BAD[bad]
    fields = {"topic": "orders", "payload": {"card": SECRET}, "headers": {"card": SECRET}} | wrong
    with pytest.raises(InvalidMessage, match=problem) as refused:
        caller.add(OUTBOX, **fields)
    assert_discreet(refused.value)


@each_chosen
@pytest.mark.parametrize("bad", BAD_PAYLOADS)
def test_O_4_a_bad_payload_is_refused(bad: str, caller: Caller) -> None:
    payload, expected, problem = BAD_PAYLOADS[bad]
    with pytest.raises(expected, match=problem) as refused:
        caller.add(OUTBOX, "orders", payload, headers={"card": SECRET})
    assert_discreet(refused.value)


@each_chosen
def test_O_4_the_limit_counts_payload_and_headers_in_bytes(caller: Caller) -> None:
    fits = {"payload": b"x" * 500, "headers": {"name": "é" * 248}}
    caller.add_many(OUTBOX, [])
    with pytest.raises(PayloadTooLarge, match="has 1,002 bytes of payload and headers"):
        caller.add(OUTBOX, "orders", b"x" * 500, headers={"name": "é" * 249})
    with pytest.raises(PayloadTooLarge):
        caller.add(OUTBOX, "orders", b"x" * 1001)
    caller.savepoint()
    caller.add(OUTBOX, "orders", **fits)
    caller.rollback_to_savepoint()


@each_chosen
@pytest.mark.parametrize(
    ("third", "problem"),
    [
        ({"topic": "orders"}, r"add_many takes messages made with Message\.new\(topic, payload, …\), not dict"),
        (Message.new("orders", {"card": SECRET * 200}), "has 1,811 bytes"),
        (
            Message(id=Message.new("t").id, topic="orders", payload=SECRET.encode(), content_type="text/plain"),
            r"was not made with Message\.new",
        ),
    ],
    ids=["no message", "too large", "not validated"],
)
def test_O_4_one_bad_message_among_many_leaves_none(third: Any, problem: str, caller: Caller) -> None:
    good = [Message.new("orders", n) for n in range(4)]
    with pytest.raises(InvalidMessage, match=problem) as refused:
        caller.add_many(OUTBOX, [*good[:2], third, *good[2:]])
    assert_discreet(refused.value)


@each_chosen
@pytest.mark.parametrize(
    ("identifier", "problem"),
    [
        ("", "message_id is empty"),
        ("x" * 256, "message_id has 256 characters"),
        ("a\0", "message_id holds the character"),
        (None, "message_id is None: give a str, int or UUID"),
        (True, "message_id must be a str, int or UUID, not bool"),
        ("7 ", "message_id '7 ' ends with a space"),
    ],
)
def test_I_1_a_bad_message_id_is_refused(identifier: Any, problem: str, caller: Caller) -> None:
    with pytest.raises(InvalidMessage, match=problem):
        caller.first_time(INBOX, identifier)


@pytest.mark.parametrize("consumer", ["", "x" * 256, "a\0", None, "billing "])
def test_I_1_a_bad_consumer_is_refused(consumer: Any) -> None:
    with pytest.raises(InvalidMessage, match="consumer"):
        Inbox(consumer)


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
def test_the_wrong_method_names_the_right_one(kind: Kind, database: Database) -> None:
    with kind.open(database.url) as caller:
        wrong: dict[str, Callable[[], Any]]
        if caller.runner is None:
            wrong = {
                r"`outbox\.add\(…\)` without await": lambda: asyncio.run(OUTBOX.aadd(caller.connection, "t")),
                r"`outbox\.add_many\(…\)`": lambda: asyncio.run(OUTBOX.aadd_many(caller.connection, [])),
                r"`inbox\.first_time\(…\)`": lambda: asyncio.run(INBOX.afirst_time(caller.connection, "7")),
                r"`inbox\.barrier\(…\)`": lambda: asyncio.run(INBOX.abarrier(caller.connection, CALL)),
            }
        else:
            wrong = {
                r"`await outbox\.aadd\(…\)`": lambda: OUTBOX.add(caller.connection, "t"),
                r"`await outbox\.aadd_many\(…\)`": lambda: OUTBOX.add_many(caller.connection, []),
                r"`await inbox\.afirst_time\(…\)`": lambda: INBOX.first_time(caller.connection, "7"),
                r"`await inbox\.abarrier\(…\)`": lambda: INBOX.barrier(caller.connection, CALL),
            }
        for right, call in wrong.items():
            with pytest.raises(WrongMethod, match=right) as refused:
                call()
            assert isinstance(refused.value, TypeError)


def test_a_database_that_is_not_supported_is_named() -> None:
    with pytest.raises(UnsupportedConnection, match="Django's unknown is not supported: use PostgreSQL"):
        OUTBOX.add(DummyWrapper({}), "orders")
    other = create_engine("sqlite://")
    other.dialect.name = "oracle"
    with other.connect() as connection, pytest.raises(UnsupportedConnection, match=r"SQLAlchemy's oracle\+pysqlite is"):
        OUTBOX.add(connection, "orders")
    other.dispose()


async def test_a_connection_that_was_not_awaited_is_reported_by_sqlalchemy() -> None:
    engine = create_async_engine("sqlite+aiosqlite://")
    with pytest.raises(AsyncContextNotStarted, match="not been awaited"):
        await OUTBOX.aadd(engine.connect(), "orders")
    await engine.dispose()


def not_connections(url: Any) -> Iterator[tuple[Any, str]]:
    yield None, r"builtins\.NoneType is not a connection that Postroom knows: pass an SQLAlchemy Session.*use a step"
    yield 7, r"builtins\.int is not a connection"
    yield f"postgresql://user:{SECRET}@host/name", r"builtins\.str is not a connection"
    engine = create_engine("sqlite://")
    yield engine, r"is an engine, not a connection: use `engine\.begin\(\)`"
    yield create_async_engine("sqlite+aiosqlite://"), "is an engine, not a connection"
    yield engine.pool, "is a pool, not a connection: take a connection from it"
    yield sessionmaker(engine), "makes sessions: call it, and pass the session"
    fairy = engine.raw_connection()
    yield fairy, r"pass its `\.driver_connection`"
    fairy.close()
    engine.dispose()
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection.cursor(), "is a cursor, not a connection: pass the connection"
    yield psycopg_pool.ConnectionPool(libpq(url), open=False), "is a pool, not a connection"
    with psycopg.connect(libpq(url)) as postgresql:
        yield postgresql.cursor(), "is a cursor, not a connection"


def test_what_is_no_connection_is_refused_with_what_to_pass(databases: Databases) -> None:
    for handed_in, problem in not_connections(databases["postgresql"].url):
        with pytest.raises(UnsupportedConnection, match=problem) as refused:
            OUTBOX.add(handed_in, "orders", {"card": SECRET})
        with pytest.raises(UnsupportedConnection, match=problem):
            INBOX.first_time(handed_in, "7")
        with pytest.raises(UnsupportedConnection, match=problem):
            asyncio.run(OUTBOX.aadd(handed_in, "orders", {"card": SECRET}))
        assert isinstance(refused.value, TypeError)
        assert_discreet(refused.value)


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.name in CHOSEN])
def test_without_the_tables_the_error_says_how_to_make_them(kind: Kind, fresh_database: FreshDatabase) -> None:
    with kind.open(make_url(fresh_database(kind.database))) as caller:
        caller.begin()
        with pytest.raises(SchemaMissing, match="run `postroom init`") as refused:
            caller.add(OUTBOX, "orders", {"card": SECRET})
        assert_discreet(refused.value)
        caller.rollback()
        caller.begin()
        with pytest.raises(SchemaMissing, match="run `postroom init`"):
            caller.first_time(INBOX, "7")
        caller.rollback()


READ_ONLY = {
    "postgresql": ("SET TRANSACTION READ ONLY", "25006"),
    "mariadb": ("SET SESSION TRANSACTION READ ONLY", 1792),
    "sqlite": ("PRAGMA query_only = ON", None),
}


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])
def test_V_2_an_error_of_the_database_is_passed_on_without_the_payload(kind: Kind, database: Database) -> None:
    statement, code = READ_ONLY[kind.database]
    with kind.open(database.url) as caller:
        caller.begin()
        caller.sql(statement)
        with pytest.raises(Exception, match=r"(?i)read.?only") as refused:
            caller.add(OUTBOX, "orders", {"card": SECRET}, headers={"card": SECRET})
        assert code_of(refused.value) == code
        # Who works with SQLAlchemy or Django catches their exceptions.
        assert isinstance(refused.value, DBAPIError) == kind.registered.startswith("sqlalchemy.")
        assert isinstance(refused.value, DjangoError) == kind.registered.startswith("django.")
        assert_discreet(refused.value)
        caller.rollback()
