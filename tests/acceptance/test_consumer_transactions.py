"""What a consumer's handlers may be handed: every kind of transaction that an application has."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiosqlite
import asyncpg
import psycopg
import psycopg_pool
import pytest
from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from postroom import Consumer, Message
from postroom.brokers.memory import MemoryBroker
from postroom.errors import DatabaseUnreachable, InvalidSetting, NotInTransaction, UnsupportedConnection
from postroom.store.connections.urls import resolve
from tests.acceptance.service import Service
from tests.contract.connection_kinds import KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from postroom.incoming import Incoming
    from tests.conftest import FreshDatabase


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        service.execute("CREATE TABLE bill (number INTEGER)")
        yield service


on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])
on_postgresql = pytest.mark.parametrize("kind", ["postgresql"])


async def consumer_of(service: Service, transactions: Any, count: int = 3) -> Consumer:
    broker = MemoryBroker()
    await broker.publish([Message.new("orders", {"n": n}) for n in range(count)], 1)
    return Consumer("billing", broker, database=service.url, transactions=transactions, concurrency=1)


async def shown(service: Service, consumer: Consumer) -> None:
    """All but the second, whose handler failed after it had written."""
    report = await consumer.run_once()
    assert (report.handled, report.dead) == (2, 1)
    assert sorted(service.rows("SELECT number FROM bill")) == [(0,), (2,)]
    assert service.rows(f"SELECT count(*) FROM {service.table('inbox')}") == [(2,)]


def number_of(message: Incoming) -> int:
    number: int = message.json()["n"]
    return number


def fail_at_one(message: Incoming) -> None:
    if number_of(message) == 1:
        raise RuntimeError("one")


SYNC_KINDS = [kind for kind in KINDS if "sync" not in kind.name and "aio" not in kind.name]


@pytest.mark.parametrize(
    ("each", "kind"),
    [pytest.param(kind, kind.database, id=kind.name) for kind in SYNC_KINDS],
)
async def test_I_2_every_sync_kind_of_connection(service: Service, each: Kind) -> None:
    callers: list[Any] = []

    @contextmanager
    def transaction() -> Iterator[Any]:
        with each.open(make_url(service.url)) as caller:
            callers.append(caller)
            caller.begin()
            try:
                yield caller.connection
            except BaseException:
                caller.rollback()
                raise
            caller.commit()

    consumer = await consumer_of(service, transaction)

    @consumer.handler("orders", attempts=1)
    def bill(connection: object, message: Incoming) -> None:
        assert callers[-1].connection is connection
        callers[-1].sql(f"INSERT INTO bill VALUES ({number_of(message)})")
        fail_at_one(message)

    await shown(service, consumer)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize("make", [create_engine, sessionmaker], ids=["Engine", "sessionmaker"])
async def test_I_2_what_sqlalchemy_makes(service: Service, make: Callable[..., Any]) -> None:
    engine = create_engine(resolve(service.url))
    given = engine if make is create_engine else sessionmaker(engine)
    consumer = await consumer_of(service, given)

    @consumer.handler("orders", attempts=1)
    def bill(connection: Connection | Session, message: Incoming) -> None:
        assert isinstance(connection, Connection if make is create_engine else Session)
        connection.execute(text("INSERT INTO bill VALUES (:n)"), {"n": number_of(message)})
        fail_at_one(message)

    await shown(service, consumer)
    engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize("make", [create_async_engine, async_sessionmaker], ids=["AsyncEngine", "async_sessionmaker"])
async def test_I_2_what_sqlalchemy_makes_for_async_handlers(service: Service, make: Callable[..., Any]) -> None:
    engine = create_async_engine(resolve(service.url, asynchronous=True))
    given = engine if make is create_async_engine else async_sessionmaker(engine)
    consumer = await consumer_of(service, given)

    @consumer.handler("orders", attempts=1)
    async def bill(connection: AsyncConnection | AsyncSession, message: Incoming) -> None:
        assert isinstance(connection, AsyncConnection if make is create_async_engine else AsyncSession)
        await connection.execute(text("INSERT INTO bill VALUES (:n)"), {"n": number_of(message)})
        fail_at_one(message)

    await shown(service, consumer)
    await engine.dispose()


@on_postgresql
async def test_I_2_asyncpg(service: Service) -> None:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        connection = await asyncpg.connect(service.url)
        try:
            async with connection.transaction():
                yield connection
        finally:
            await connection.close()

    consumer = await consumer_of(service, transaction)

    @consumer.handler("orders", attempts=1)
    async def bill(connection: Any, message: Incoming) -> None:
        await connection.execute("INSERT INTO bill VALUES ($1)", number_of(message))
        fail_at_one(message)

    await shown(service, consumer)


@on_postgresql
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_I_2_the_drivers_own_connections(service: Service, asynchronous: bool) -> None:  # noqa: FBT001 - a parameter
    """With savepoints in them, and after a handler that has ended its transaction: with mark and row, or neither."""
    consumer = await consumer_of(service, "driver", count=5)
    endings = {3: "ROLLBACK", 4: "COMMIT"}

    def bill(connection: psycopg.Connection[Any], message: Incoming) -> None:
        with connection.transaction():
            connection.execute("INSERT INTO bill VALUES (%s)", [number_of(message)])
        fail_at_one(message)
        if number_of(message) in endings:
            connection.execute(endings[number_of(message)])

    async def bill_async(connection: asyncpg.Connection[Any], message: Incoming) -> None:
        async with connection.transaction():
            await connection.execute("INSERT INTO bill VALUES ($1)", number_of(message))
        fail_at_one(message)
        if number_of(message) in endings:
            await connection.execute(endings[number_of(message)])

    consumer.handler("orders", attempts=1)(bill_async if asynchronous else bill)
    report = await consumer.run_once()
    assert (report.handled, report.dead) == (2, 3)
    assert sorted(service.rows("SELECT number FROM bill")) == [(0,), (2,), (4,)]
    assert service.rows(f"SELECT count(*) FROM {service.table('inbox')}") == [(3,)]
    errors = [str(error) for [error] in service.rows(f"SELECT error_message FROM {service.table('delivery')}")]
    assert len([error for error in errors if "committed or rolled back its transaction itself" in error]) == 2


@on_postgresql
async def test_I_2_psycopg_async_whose_connect_is_awaited_and_whose_pool_is_not(service: Service) -> None:
    pool = psycopg_pool.AsyncConnectionPool(service.url, open=False)
    await pool.open()
    for number, opener in enumerate((lambda: psycopg.AsyncConnection.connect(service.url), pool.connection)):
        service.execute("DELETE FROM bill")
        service.execute(f"DELETE FROM {service.table('inbox')}")
        consumer = await consumer_of(service, opener)

        @consumer.handler("orders", attempts=1)
        async def bill(connection: Any, message: Incoming) -> None:
            await connection.execute("INSERT INTO bill VALUES (%s)", [number_of(message)])
            fail_at_one(message)

        await shown(service, consumer)
        assert len(service.dead()) == number + 1
    await pool.close()


@on_sqlite
async def test_I_2_aiosqlite(service: Service) -> None:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        async with aiosqlite.connect(make_url(service.url).database or "") as connection:
            yield connection
            await connection.commit()

    consumer = await consumer_of(service, transaction)

    @consumer.handler("orders", attempts=1)
    async def bill(connection: Any, message: Incoming) -> None:
        await connection.execute("INSERT INTO bill VALUES (?)", [number_of(message)])
        fail_at_one(message)

    await shown(service, consumer)


@on_sqlite
async def test_wrong_ones_are_refused_at_the_start_with_the_remedy(service: Service) -> None:
    async def waits(connection: Any, message: Incoming) -> None: ...

    def blocks(connection: Any, message: Incoming) -> None: ...

    path = make_url(service.url).database or ""
    wrong: list[tuple[Any, Any, type[Exception], str]] = [
        (create_engine(service.url), waits, InvalidSetting, "make the handler sync"),
        (
            create_async_engine(resolve(service.url, asynchronous=True)),
            blocks,
            InvalidSetting,
            "make the handler async",
        ),
        (lambda: closing(sqlite3.connect(path, isolation_level=None)), blocks, NotInTransaction, "autocommit"),
        (lambda: closing(sqlite3.connect(path).cursor()), blocks, UnsupportedConnection, "is a cursor"),
        (create_engine("postgresql+psycopg://127.0.0.1:1/none"), blocks, DatabaseUnreachable, "refused"),
    ]
    with pytest.raises(InvalidSetting, match="for PostgreSQL only"):
        Consumer("billing", MemoryBroker(), database=service.url, transactions="driver")
    for transactions, handler, error, remedy in wrong:
        consumer = await consumer_of(service, transactions)
        consumer.handler("orders")(handler)
        with pytest.raises(error, match=remedy):
            await consumer.run_once()
    assert service.rows(f"SELECT count(*) FROM {service.table('delivery')}") == [(0,)]


@on_postgresql
async def test_I_1_a_handler_that_leaves_a_block_of_the_driver_open_stops_no_consumer(service: Service) -> None:
    """Psycopg refuses to commit such a connection, long after the message was committed."""
    consumer = await consumer_of(service, "driver", count=4)
    left: list[Any] = []

    @consumer.handler("orders", attempts=1)
    def bill(connection: psycopg.Connection[Any], message: Incoming) -> None:
        connection.execute("INSERT INTO bill VALUES (%s)", [number_of(message)])
        if number_of(message) in {1, 3}:
            left.append(connection.transaction())
            left[-1].__enter__()

    report = await consumer.run_once()
    assert (report.handled, report.dead) == (4, 0)
    assert sorted(service.rows("SELECT number FROM bill")) == [(0,), (1,), (2,), (3,)]


@on_postgresql
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_I_1_a_handler_that_swallows_a_failed_statement_has_failed(service: Service, asynchronous: bool) -> None:  # noqa: FBT001 - a parameter
    """PostgreSQL answers the commit with a rollback: the message would be acknowledged and its effect lost."""
    broker = MemoryBroker()
    await broker.publish([Message.new("orders.created", {"n": 1})], 1)
    consumer = Consumer("billing", broker, database=service.url, poll_interval_sec=0.02)

    def bill(connection: Connection, message: Incoming) -> None:
        connection.execute(text("INSERT INTO bill VALUES (:n)"), message.json())
        with suppress(ProgrammingError):
            connection.execute(text("INSERT INTO no_such_table VALUES (1)"))

    async def bill_async(connection: AsyncConnection, message: Incoming) -> None:
        await connection.run_sync(bill, message)

    consumer.handler("orders.created", delays=[3600])(bill_async if asynchronous else bill)
    report = await consumer.run_once()
    assert (report.handled, report.parked) == (0, 1)
    [[error]] = service.rows(f"SELECT error_message FROM {service.table('delivery')}")
    assert "went on after a statement had failed" in str(error)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize("ending", ["ROLLBACK", "rollback", "close"])
async def test_I_1_a_handler_that_undoes_its_transaction_has_failed(service: Service, ending: str) -> None:
    """The mark is undone too: what it writes afterwards would have its effect again with each delivery."""
    message = Message.new("orders.created", {"n": 1})
    broker = MemoryBroker()
    await broker.publish([message, message], 1)
    consumer = Consumer("billing", broker, database=service.url, poll_interval_sec=0.02)

    @consumer.handler("orders.created", delays=[3600])
    def bill(connection: Connection, message: Incoming) -> None:
        connection.execute(text("INSERT INTO bill VALUES (:n)"), message.json())
        if ending == "ROLLBACK":
            connection.execute(text("ROLLBACK"))
            connection.execute(text("INSERT INTO bill VALUES (:n)"), message.json())
        else:
            getattr(connection, ending)()

    report = await consumer.run_once()
    assert report.handled == 0
    assert service.rows("SELECT * FROM bill") == []
    assert len(service.rows(f"SELECT position FROM {service.table('delivery')} WHERE state = 2")) == 1


@on_postgresql
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_I_1_what_fails_at_the_end_of_one_message_and_the_beginning_of_the_next_is_told_apart(
    service: Service,
    asynchronous: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Both are sent together. The mark of message 1 is refused after the commit of 0, and the commit of message 3."""
    broker = MemoryBroker()
    messages = [Message.new("orders.created", {"n": number}) for number in range(5)]
    await broker.publish(messages, 1)
    inbox = service.table("inbox")
    for statement in (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$",
        (
            f"CREATE TRIGGER mark BEFORE INSERT ON {inbox} FOR EACH ROW "
            f"WHEN (NEW.message_id = '{messages[1].id}') EXECUTE FUNCTION refuse()"
        ),
        (
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON bill DEFERRABLE INITIALLY DEFERRED FOR EACH ROW "
            "WHEN (NEW.number = 3) EXECUTE FUNCTION refuse()"
        ),
    ):
        service.execute(statement)
    consumer = Consumer("billing", broker, database=service.url, transactions="driver", concurrency=1)
    called: list[int] = []

    def bill(connection: psycopg.Connection[Any], message: Incoming) -> None:
        called.append(message.json()["n"])
        connection.execute("INSERT INTO bill VALUES (%s)", [message.json()["n"]])

    async def bill_async(connection: asyncpg.Connection[Any], message: Incoming) -> None:
        called.append(message.json()["n"])
        await connection.execute("INSERT INTO bill VALUES ($1)", message.json()["n"])

    consumer.handler("orders.created", attempts=1)(bill_async if asynchronous else bill)
    report = await consumer.run_once()
    assert (report.handled, report.dead, called) == (3, 2, [0, 2, 3, 4])
    assert sorted(service.rows("SELECT number FROM bill")) == [(0,), (2,), (4,)]
    marked = {str(one) for [one] in service.rows(f"SELECT message_id FROM {inbox}")}
    assert marked == {str(messages[number].id) for number in (0, 2, 4)}


@on_postgresql
async def test_I_4_a_database_that_comes_back_while_a_message_is_tried_burns_no_attempt(service: Service) -> None:
    """Handlers are refused until the end, and what would be parked then is not: the database is back by now."""
    broker = MemoryBroker()
    await broker.publish([Message.new("orders.created", {"n": 1})], 1)
    url = make_url(service.url).set(drivername="postgresql").render_as_string(hide_password=False)
    refused = iter([False, True, True, True])  # the first is to see, at the start, that transactions can be opened

    def transaction() -> psycopg.Connection[Any]:
        if next(refused, False):
            raise psycopg.OperationalError("connection failed: the database system is starting up")
        return psycopg.connect(url)

    consumer = Consumer("billing", broker, database=service.url, transactions=transaction, poll_interval_sec=0.02)

    @consumer.handler("orders.created", delays=[3600])
    def bill(connection: psycopg.Connection[Any], message: Incoming) -> None:
        connection.execute("INSERT INTO bill VALUES (%s)", (message.json()["n"],))

    report = await consumer.run_once()
    assert (report.handled, report.parked) == (1, 0)
