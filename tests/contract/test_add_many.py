"""Many messages in a few statements, one in one statement where the database allows; and never a part of them."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from uuid import uuid4

import pytest

from postroom import Message, Outbox
from postroom.errors import DuplicateMessage, IdempotencyConflict
from postroom.rules.ordering import key_hash, lane_of
from postroom.store.connections.sync_kinds import Sqlite3
from tests.contract import connection_kinds as kinds
from tests.contract.write_support import Database, Databases, business_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from postroom.store.sql.steps import Query, Result
    from tests.contract.connection_callers import Caller

OUTBOX = Outbox()
MANY = 10_000


@contextmanager
def counted_by_sqlite(caller: Caller) -> Iterator[list[str]]:
    """As they are executed: SQLite's own trace tells a statement again for each row that a trigger looks at."""
    del caller
    seen: list[str] = []
    execute = Sqlite3.execute

    def noted(kind: Sqlite3, query: Query) -> Result:
        seen.append(query.text)
        return execute(kind, query)

    with patch.object(Sqlite3, "execute", noted):
        yield seen


@contextmanager
def counted_by_asyncpg(caller: Caller) -> Iterator[list[str]]:
    seen: list[str] = []

    def note(record: Any) -> None:
        seen.append(record.query)

    caller.connection.add_query_logger(note)
    yield seen
    caller.connection.remove_query_logger(note)


@contextmanager
def counted_by_mariadb(caller: Caller) -> Iterator[list[str]]:
    def questions() -> int:
        with caller.connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Questions'")
            return int(cursor.fetchone()[1])

    seen: list[str] = []
    before = questions()
    yield seen
    seen += ["a statement"] * (questions() - before - 1)  # less the one that asked


COUNTED: dict[str, tuple[Any, Callable[[Caller], AbstractContextManager[list[str]]], int, int]] = {
    # database: how to connect, who counts, statements for one message, statements for many
    "sqlite": (partial(kinds.raw, "sqlite3"), counted_by_sqlite, 2, 20),
    "postgresql": (partial(kinds.raw_async, "asyncpg"), counted_by_asyncpg, 1, 2),
    "mariadb": (partial(kinds.raw, "PyMySQL"), counted_by_mariadb, 2, 21),
}
each_database = pytest.mark.parametrize("name", COUNTED)


@pytest.fixture
def database(name: str, databases: Databases) -> Database:
    return databases[name]


@pytest.fixture
def caller(name: str, database: Database) -> Iterator[Caller]:
    with COUNTED[name][0](database.url) as caller:
        caller.begin()
        caller.sql(business_row()[0])  # what begins the transaction is not ours to count
        yield caller


@each_database
def test_one_message_takes_one_statement_or_two(name: str, caller: Caller) -> None:
    _, counting, expected, _ = COUNTED[name]
    with counting(caller) as statements:
        caller.add(OUTBOX, "orders", {"order": 7}, key="7", idempotency_key=str(uuid4()))
    assert len(statements) == expected
    caller.rollback()


@each_database
def test_O_2_ten_thousand_messages_take_a_few_statements_and_keep_their_order(
    name: str, caller: Caller, database: Database
) -> None:
    _, counting, _, expected = COUNTED[name]
    given = [Message.new("orders", {"order": n}, key=n % 100 if n % 3 else None) for n in range(MANY)]
    caller.add_many(OUTBOX, [Message.new("orders"), Message.new("orders")])  # asyncpg looks up types, once a connection
    with counting(caller) as statements:
        assert caller.add_many(OUTBOX, given) == given
    caller.commit()
    assert len(statements) == expected
    first = database.rows("SELECT position FROM {outbox} WHERE id = :id", id=str(given[0].id))[0][0]
    rows = database.rows(
        "SELECT id, payload, lane, key_hash FROM {outbox} JOIN {delivery} USING (position) "
        "WHERE position >= :first ORDER BY position",
        first=first,
    )
    assert [(str(identifier), bytes(payload), lane, hashed) for identifier, payload, lane, hashed in rows] == [
        (str(message.id), message.payload, *place(message)) for message in given
    ]


def place(message: Message) -> tuple[int, int | None]:
    if message.key is None:
        return -1, None
    return lane_of(key_hash(message.key)), key_hash(message.key)


class Keyed(Outbox):
    """One that keys all messages."""

    def message(self, topic: str | None, payload: object = None, **fields: Any) -> Message:
        return super().message(topic, payload, **{**fields, "idempotency_key": payload})


@pytest.mark.parametrize("name", ["postgresql"])
def test_O_3_a_key_that_a_subclass_gives_is_a_key_too(caller: Caller) -> None:
    outbox, key = Keyed(), str(uuid4())
    assert caller.add(outbox, "orders", key).id == caller.add(outbox, "orders", key).id
    caller.rollback()


class Numbered(Outbox):
    """One that makes the ids itself."""

    def message(self, topic: str | None, payload: object = None, **fields: Any) -> Message:
        return super().message(topic, payload, **{**fields, "id": payload})


@pytest.mark.parametrize("name", ["postgresql"])
def test_O_3_an_id_that_a_subclass_gives_may_be_taken(caller: Caller) -> None:
    outbox, identifier = Numbered(), str(uuid4())
    caller.add(outbox, "orders", identifier)
    with pytest.raises(DuplicateMessage, match=identifier):
        caller.add(outbox, "orders", identifier)
    caller.add(outbox, "orders", str(uuid4()))  # the transaction is still usable
    caller.rollback()


@each_database
@pytest.mark.parametrize("where", [0, MANY - 1], ids=["first", "last"])
def test_O_3_a_conflict_among_ten_thousand_leaves_none(where: int, caller: Caller, database: Database) -> None:
    holder = caller.add(OUTBOX, "orders", "the holder", idempotency_key=str(uuid4()))
    caller.commit()
    caller.begin()
    before = database.size()
    (sooner, row_sooner), (later, row_later) = business_row(), business_row()
    caller.sql(sooner)
    own = caller.add(OUTBOX, "orders", "of the same transaction")
    given = [
        Message.new("orders", n, key=n % 5 or None, idempotency_key=holder.idempotency_key if n == where else None)
        for n in range(MANY)
    ]
    with pytest.raises(IdempotencyConflict, match=str(holder.idempotency_key)):
        caller.add_many(OUTBOX, given)
    caller.sql(later)
    caller.commit()
    assert database.size() == (before[0] + 1, before[1] + 1)
    assert database.stored([own]) == 1
    assert database.has_business(row_sooner, row_later)


@each_database
def test_a_duplicate_id_among_ten_thousand_leaves_none(caller: Caller, database: Database) -> None:
    holder = caller.add(OUTBOX, "orders", "the holder")
    caller.commit()
    caller.begin()
    before = database.size()
    statement, row = business_row()
    given = [Message.new("orders", n, id=holder.id if n == MANY - 1 else None) for n in range(MANY)]
    with pytest.raises(DuplicateMessage, match=str(holder.id)):
        caller.add_many(OUTBOX, given)
    caller.sql(statement)
    caller.commit()
    assert database.size() == before
    assert database.has_business(row)


@each_database
def test_O_3_ten_thousand_again_are_all_duplicates_in_a_few_statements(
    name: str, caller: Caller, database: Database
) -> None:
    base = str(uuid4())

    def made() -> list[Message]:
        return [Message.new("orders", n, idempotency_key=f"{base}/{n}") for n in range(MANY)]

    first = caller.add_many(OUTBOX, made())
    caller.commit()
    caller.begin()
    size = database.size()
    with COUNTED[name][1](caller) as statements:
        again = caller.add_many(OUTBOX, made())
    caller.commit()
    assert len(statements) <= 50
    assert all(message.duplicate for message in again)
    assert ids(again) == ids(first)
    assert database.size() == size


def ids(messages: Sequence[Message]) -> list[str]:
    return [str(message.id) for message in messages]


@each_database
def test_many_bytes_are_split_into_statements_that_every_server_takes(caller: Caller, database: Database) -> None:
    given = [Message.new("orders", bytes([n]) * 1_000_000) for n in range(20)]
    caller.add_many(OUTBOX, given)
    caller.commit()
    assert database.stored(given) == 20
    assert database.read(given[-1]) == given[-1]


@each_database
def test_none_at_all_is_no_statement(name: str, caller: Caller) -> None:
    with COUNTED[name][1](caller) as statements:
        assert caller.add_many(OUTBOX, []) == []
    assert statements == []
    caller.rollback()
