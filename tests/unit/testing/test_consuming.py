"""InMemoryConsumer: a consumer's own handlers, in the transaction of a test."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import aiosqlite
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from postroom import Consumer, Incoming, Message, Outbox
from postroom.errors import UnsupportedConnection
from postroom.telemetry.tracebacks import AFTERWARDS
from postroom.testing import InMemoryConsumer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def connection(postroom_database: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection:
        connection.execute("CREATE TABLE bill (number INTEGER)")
        connection.commit()
        yield connection


@pytest.fixture
def consumer() -> Consumer:
    """Its first handler bills, and fails as the message says."""
    consumer = Consumer("billing")

    @consumer.handler("orders.created", attempts=3, delays=[1, 5])
    def bill(connection: sqlite3.Connection, message: Incoming) -> None:
        connection.execute("INSERT INTO bill VALUES (?)", (message.decode(dict[str, int])["n"],))
        if "fails" in message.json():
            raise KeyError("fails")

    return consumer


def bills(connection: sqlite3.Connection) -> list[int]:
    return [number for [number] in connection.execute("SELECT number FROM bill")]


def test_I_1_a_handler_runs_in_the_test_s_transaction_with_its_mark(
    consumer: Consumer, connection: sqlite3.Connection
) -> None:
    billing = InMemoryConsumer(consumer, connection)
    order = Message.new("orders.created", {"n": 7}, key=7, type="OrderCreated", headers={"tenant": "a"})
    assert billing.handle(order, order) == ["handled", "duplicate"]
    assert billing.receive("orders.created", {"n": 8}) == "handled"
    assert billing.receive("nobody.listens") == "skipped"
    assert bills(connection) == [7, 8]
    received = billing.handled[0]
    assert (received.id, received.key, received.type, received.headers["tenant"]) == (
        *(str(order.id), "7", "OrderCreated"),
        "a",
    )
    connection.rollback()
    assert bills(connection) == []
    assert billing.handle(order) == ["handled"], "the mark was rolled back with the rest"


def test_what_a_handler_raises_reaches_the_test_and_its_writes_are_undone(
    consumer: Consumer, connection: sqlite3.Connection
) -> None:
    billing = InMemoryConsumer(consumer, connection)
    connection.execute("INSERT INTO bill VALUES (1)")
    with pytest.raises(KeyError, match="fails"):
        billing.receive("orders.created", {"n": 7, "fails": 1})
    assert bills(connection) == [1]
    assert (billing.parked, billing.dead) == ([], [])


def test_I_4_retries_and_dead_letters_can_be_seen(consumer: Consumer, connection: sqlite3.Connection) -> None:
    billing = InMemoryConsumer(consumer, connection, catch=True)
    assert billing.receive("orders.created", {"n": 7, "fails": 1}, key="a") == "parked"
    assert billing.receive("orders.created", {"n": 8}, key="a") == "parked"
    assert billing.receive("orders.created", {"n": 9}, key="b") == "handled"
    first, behind = billing.parked
    assert (first.attempts, first.code, first.delay) == (1, "INTERNAL_ERROR", 1)
    assert (behind.attempts, behind.error) == (0, None)
    assert billing.retry() == ["parked", "parked"]
    assert billing.parked[0].delay == 5
    assert billing.retry() == ["dead", "parked"]
    [dead] = billing.dead
    assert isinstance(dead.error, KeyError)
    assert dead.attempts == 3
    assert "KeyError: 'fails' (" in dead.said
    assert "test_consuming.py:" in dead.said
    assert bills(connection) == [9]
    billing.dead.clear()  # as if it were discarded
    assert billing.retry() == ["handled"]
    assert bills(connection) == [9, 8]


def test_with_order_skip_a_dead_message_holds_nobody(connection: sqlite3.Connection) -> None:
    consumer = Consumer("billing", order="skip")
    failing = [True, False]

    @consumer.handler("orders", attempts=1)
    def bill(message: Incoming) -> None:
        del message
        if failing.pop(0):
            raise ValueError

    billing = InMemoryConsumer(consumer, connection, catch=True)
    assert [billing.receive("orders", key="a"), billing.receive("orders", key="a")] == ["dead", "handled"]


def test_L_9_what_cannot_be_decoded_is_dead_at_once(consumer: Consumer, connection: sqlite3.Connection) -> None:
    billing = InMemoryConsumer(consumer, connection, catch=True)
    assert billing.receive("orders.created", {"n": "seven"}) == "dead"
    assert billing.dead[0].code == "UNDECODABLE_PAYLOAD"
    broken = Incoming(id="1", topic="orders.created", payload=b"", content_type="a/b", problem="it has no type")
    assert billing.handle(broken) == ["dead"]
    assert billing.dead[1].said == "it has no type"


def test_a_handler_of_several_gets_them_together_and_one_by_one_when_it_fails(connection: sqlite3.Connection) -> None:
    consumer = Consumer("billing", batch=3)
    calls: list[list[int]] = []

    @consumer.handler("orders")
    def bill(messages: list[Incoming]) -> None:
        calls.append([message.json() for message in messages])
        if 13 in calls[-1]:
            raise ValueError("unlucky")

    billing = InMemoryConsumer(consumer, connection, catch=True)
    assert billing.handle(*(Message.new("orders", n) for n in range(5))) == ["handled"] * 5
    assert calls == [[0, 1, 2], [3, 4]]
    calls.clear()
    orders = [Message.new("orders", n, key="a") for n in (12, 13, 14)]
    assert billing.handle(*orders) == ["handled", "parked", "parked"]
    assert calls == [[12, 13, 14], [12], [13]]


async def test_async_handlers_and_sync_ones_in_async_tests(postroom_database: str) -> None:
    consumer = Consumer("billing")
    outbox = Outbox()

    @consumer.handler("orders")
    async def bill(connection: aiosqlite.Connection, message: Incoming) -> None:
        await asyncio.sleep(0)
        await outbox.aadd(connection, "bills", message.json())

    @consumer.handler("slow", timeout=0.01, attempts=1)
    async def wait(message: Incoming) -> None:
        del message
        await asyncio.Event().wait()

    async with aiosqlite.connect(postroom_database.removeprefix("sqlite:///")) as connection:
        billing = InMemoryConsumer(consumer, connection, catch=True)
        order = Message.new("orders", {"n": 1})
        assert await billing.ahandle(order, order) == ["handled", "duplicate"]
        assert await billing.areceive("slow") == "dead"
        assert billing.dead[0].code == "TIMEOUT"
        assert await billing.aretry() == []
        with pytest.raises(RuntimeError, match=r"the handler .*bill is async: use `await`"):
            billing.handle(order)
        found = await (await connection.execute("SELECT count(*) FROM postroom_outbox")).fetchone()
        assert found == (1,)


def test_without_a_connection_the_consumer_s_own_transactions_are_committed(
    connection: sqlite3.Connection, postroom_database: str
) -> None:
    consumer = Consumer("billing", database=postroom_database)

    @consumer.handler("orders")
    def bill(connection: Any, message: Incoming) -> None:
        connection.exec_driver_sql("INSERT INTO bill VALUES (?)", (message.json(),))

    billing = InMemoryConsumer(consumer)
    assert billing.receive("orders", 7) == "handled"
    assert bills(connection) == [7]


def test_a_parked_message_that_raises_stays_parked(consumer: Consumer, connection: sqlite3.Connection) -> None:
    billing = InMemoryConsumer(consumer, connection, catch=True)
    billing.receive("orders.created", {"n": 7, "fails": 1})
    billing._catch = False
    with pytest.raises(KeyError):
        billing.retry()
    assert len(billing.parked) == 1


def test_something_that_is_no_connection_is_refused(consumer: Consumer) -> None:
    with pytest.raises(UnsupportedConnection):
        InMemoryConsumer(consumer, object())


class Base(DeclarativeBase):
    pass


class Bill(Base):
    __tablename__ = "no_such_table"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize(("flushes", "place"), [(True, "test_consuming.py:"), (False, f"({AFTERWARDS})")])
def test_I_2_what_an_orm_writes_after_the_handler_has_returned_is_said_to_fail_then(
    postroom_database: str, *, flushes: bool, place: str
) -> None:
    consumer, engine = Consumer("billing"), create_engine(postroom_database)

    @consumer.handler("orders.created", attempts=1)
    def bill(session: Session, message: Incoming) -> None:
        session.add(Bill(number=message.json()["n"]))
        if flushes:
            session.flush()

    with Session(engine) as session:
        billing = InMemoryConsumer(consumer, session, catch=True)
        assert billing.receive("orders.created", {"n": 7}) == "dead"
    assert "no_such_table" in billing.dead[0].said
    assert place in billing.dead[0].said
    engine.dispose()
