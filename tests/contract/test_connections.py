"""O-1, O-3, I-1 for every kind of connection, each on the real database."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from postroom import Consumer, Inbox, Incoming, Message, Outbox
from postroom.errors import IdempotencyConflict
from postroom.store.connections.kinds import ASYNC_KINDS, SYNC_KINDS
from postroom.testing import InMemoryConsumer
from tests.contract.connection_kinds import KINDS, Kind
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.contract.connection_callers import Caller

PROMISED = {
    *("sqlite3", "psycopg", "psycopg pool", "psycopg2", "PyMySQL"),
    *("asyncpg", "asyncpg pool", "psycopg async", "psycopg async pool", "aiosqlite"),
    *("asyncmy", "asyncmy pool", "aiomysql", "aiomysql pool"),
    *(f"Django {form}, {name}" for form in ("proxy", "wrapper") for name in ("sqlite", "postgresql", "mariadb")),
    *(
        f"{name}, {driver}"
        for name in ("Connection", "Session", "scoped_session", "SQLModel Session")
        for driver in ("pysqlite", "psycopg", "psycopg2", "pymysql")
    ),
    *(
        f"{name}, {driver}"
        for name in ("AsyncConnection", "AsyncSession", "async_scoped_session", "SQLModel AsyncSession")
        for driver in ("aiosqlite", "asyncpg", "psycopg", "asyncmy", "aiomysql")
    ),
}
OUTBOX = Outbox()
INBOX = Inbox("billing")

each_kind = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name) for kind in KINDS])


def test_every_kind_that_was_promised_has_a_row() -> None:
    assert {kind.name for kind in KINDS} == PROMISED
    assert len(KINDS) == len(PROMISED)


def test_every_kind_that_is_accepted_has_a_row() -> None:
    assert {kind.registered for kind in KINDS} == {*SYNC_KINDS, *ASYNC_KINDS}


@each_kind
def test_the_row_opens_the_kind_that_it_is_named_after(kind: Kind, caller: Caller) -> None:
    known = [f"{cls.__module__}.{cls.__qualname__}" for cls in type(caller.connection).__mro__]
    assert next(name for name in known if name in {**SYNC_KINDS, **ASYNC_KINDS}) == kind.registered
    assert (kind.registered in ASYNC_KINDS) == (caller.runner is not None)
    caller.rollback()


def add(caller: Caller) -> Callable[[Database], bool]:
    message = caller.add(OUTBOX, "orders.created", {"order": 7}, key="7", headers={"a": "b"})
    return lambda database: database.stored([message]) == 1


def add_many(caller: Caller) -> Callable[[Database], bool]:
    given = [Message.new("orders.created", {"order": n}, key=n % 2 or None) for n in range(3)]
    messages = caller.add_many(OUTBOX, given)
    assert messages == given
    return lambda database: database.stored(messages) == 3


def first_time(caller: Caller) -> Callable[[Database], bool]:
    identifier = uuid4()
    assert caller.first_time(INBOX, identifier)
    return lambda database: database.has_mark("billing", identifier)


each_write = pytest.mark.parametrize("write", [add, add_many, first_time])


@each_kind
@each_write
def test_O_1_what_is_committed_is_there(
    write: Callable[[Caller], Callable[[Database], bool]], caller: Caller, database: Database
) -> None:
    statement, row = business_row()
    caller.sql(statement)
    there = write(caller)
    caller.commit()
    assert there(database)
    assert database.has_business(row)


@each_kind
@each_write
def test_O_1_what_is_rolled_back_is_not_there(
    write: Callable[[Caller], Callable[[Database], bool]], caller: Caller, database: Database
) -> None:
    there = write(caller)  # first of all: nothing of the caller's has begun the transaction
    statement, row = business_row()
    caller.sql(statement)
    caller.rollback()
    assert not there(database)
    assert not database.has_business(row)


@each_kind
@each_write
def test_O_1_what_is_rolled_back_to_a_savepoint_is_not_there(
    write: Callable[[Caller], Callable[[Database], bool]], caller: Caller, database: Database
) -> None:
    statement, row = business_row()
    caller.sql(statement)
    before = write(caller)
    caller.savepoint()
    undone = write(caller)
    caller.rollback_to_savepoint()
    after = write(caller)
    caller.commit()
    assert not undone(database)
    assert before(database)
    assert after(database)
    assert database.has_business(row)


def full_message(number: int) -> Message:
    """A message with everything that it can have, and what drivers might stumble over."""
    odd = f'{number} it\'s "odd" \\ % %s :name $1 ? ; -- é 日本 😀'
    return Message.new(
        f"orders.{odd}",
        bytes(range(256)) if number else {"order": odd, "text": "\x00\n"},
        key=odd + "\n",
        type=odd,
        aggregate_type=odd,
        aggregate_id=odd,
        headers={"name": odd, odd: "", "traceparent": "00-" + "0" * 31 + "1-" + "0" * 15 + "1-01"},
        idempotency_key=f"{uuid4()} {odd}",
        expires_at=datetime(2999, 12, 31, 23, 59, 59, 999000, tzinfo=timezone(timedelta(hours=9))),
        content_type="application/json; charset=utf-8",
    )


@each_kind
def test_O_2_what_is_read_back_is_what_was_added(caller: Caller, database: Database) -> None:
    one, *several = map(full_message, range(3))
    bare = Message.new("orders", None)
    caller.add_many(OUTBOX, [one])
    caller.add_many(OUTBOX, [*several, bare])
    caller.commit()
    for message in (one, *several, bare):
        assert database.read(message) == message


@each_kind
def test_a_message_for_later_is_scheduled(caller: Caller, database: Database) -> None:
    later = datetime(2999, 1, 2, 3, 4, 5, 678000, tzinfo=timezone(timedelta(hours=-9)))
    messages = [Message.new("orders", deliver_at=later, key=key) for key in (None, "7", "8")]
    caller.add_many(OUTBOX, messages[:1])
    caller.add_many(OUTBOX, messages[1:])
    caller.commit()
    found = database.rows("SELECT state, due FROM {delivery} WHERE state = 1 ORDER BY position DESC LIMIT 3")
    assert [(state, database.moment(due)) for state, due in found] == [(1, later)] * 3


@each_kind
def test_O_3_an_idempotency_key_is_accepted_once_and_the_transaction_goes_on(
    caller: Caller, database: Database
) -> None:
    key = str(uuid4())
    (before, row_before), (after, row_after) = business_row(), business_row()
    caller.sql(before)
    first = caller.add(OUTBOX, "orders", {"a": 1, "b": 2}, idempotency_key=key)
    again = caller.add(OUTBOX, "orders", {"b": 2, "a": 1}, idempotency_key=key)
    with pytest.raises(IdempotencyConflict, match=key):
        caller.add(OUTBOX, "orders", {"a": 2}, idempotency_key=key)
    many = [Message.new("orders", n, idempotency_key=key if n == 2 else None) for n in range(4)]
    with pytest.raises(IdempotencyConflict, match=key):
        caller.add_many(OUTBOX, many)
    caller.sql(after)
    caller.commit()
    assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
    assert database.rows("SELECT count(*) FROM {outbox} WHERE idempotency_key = :key", key=key)[0][0] == 1
    assert database.stored([first, *many]) == 1
    assert database.has_business(row_before, row_after)
    messages, deliveries = database.size()
    assert messages == deliveries


@each_kind
def test_I_1_a_message_is_new_to_a_consumer_once(caller: Caller, database: Database) -> None:
    identifier = uuid4()
    assert caller.first_time(INBOX, identifier)
    assert not caller.first_time(INBOX, str(identifier))
    assert caller.first_time(Inbox("shipping"), identifier)
    caller.commit()
    assert database.has_mark("billing", identifier)
    assert database.has_mark("shipping", identifier)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind.name) for kind in KINDS if kind.name.startswith("AsyncSession")]
)
def test_O_1_the_sync_session_inside_run_sync_is_taken_by_add(caller: Caller, database: Database) -> None:
    key = str(uuid4())

    def add(session: object) -> Message:
        return OUTBOX.add(session, "orders", 1, idempotency_key=key)

    message: Message = caller.wait(caller.connection.run_sync(add))
    again: Message = caller.wait(caller.connection.run_sync(add))
    caller.commit()
    assert (again.duplicate, again.id) == (True, message.id)
    assert database.stored([message]) == 1


@each_kind
def test_I_1_of_many_messages_each_is_new_once(caller: Caller, database: Database) -> None:
    known, *others = (str(uuid4()) for _ in range(600))
    assert caller.first_time(INBOX, known)
    first = caller.first_times(INBOX, [others[0], known, *others, others[1]])
    assert first == [True, False, False, *[True] * 598, False]
    assert caller.first_times(INBOX, []) == []
    caller.commit()
    assert all(database.has_mark("billing", one) for one in (known, others[0], others[-1]))


class Failing(Exception):
    pass


def handling(caller: Caller) -> InMemoryConsumer:
    """A consumer with a handler that fails after it has written, on this connection."""
    consumer = Consumer("billing")

    def bill(connection: object, message: Incoming) -> None:
        OUTBOX.add(connection, "bills.written", {}, id=message.json()["bill"])
        if message.json()["fails"]:
            raise Failing

    async def abill(connection: object, message: Incoming) -> None:
        await OUTBOX.aadd(connection, "bills.written", {}, id=message.json()["bill"])
        if message.json()["fails"]:
            raise Failing

    consumer.handler("orders.created")(abill if caller.runner else bill)
    return InMemoryConsumer(consumer, caller.connection, catch=True)


@each_kind
def test_I_1_a_test_can_call_handlers_in_its_own_transaction(caller: Caller, database: Database) -> None:
    def handled(*messages: Message) -> list[str]:
        handler = handling(caller)
        return list(caller.wait((handler.ahandle if caller.runner else handler.handle)(*messages)))

    bills = [Message.new("bills.written", {}) for _ in range(3)]
    failed, kept, undone = (
        Message.new("orders.created", {"bill": str(bill.id), "fails": bill is bills[0]}) for bill in bills
    )
    assert handled(failed, kept, kept) == ["parked", "handled", "duplicate"]
    assert database.stored(bills) == 0, "it is the test that commits"
    caller.commit()
    assert [database.stored([bill]) for bill in bills] == [0, 1, 0]
    caller.begin()
    assert handled(undone) == ["handled"]
    caller.rollback()
    assert database.stored([bills[2]]) == 0
