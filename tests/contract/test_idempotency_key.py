"""O-3: an idempotency key is used once, also by transactions that run at the same time; so is an inbox mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from postroom import Inbox, Message, Outbox
from postroom.errors import DuplicateMessage, IdempotencyConflict
from postroom.store.sql.db_errors import code_of
from tests.contract.connection_kinds import KINDS, Kind
from tests.contract.waiting import waiting
from tests.contract.write_support import Database, business_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.connection_callers import Caller

OUTBOX = Outbox()
INBOX = Inbox("billing")
BY_NAME = {kind.name: kind for kind in KINDS}


def kinds(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("kind", [pytest.param(BY_NAME[name], id=name) for name in names])


on_each_database = kinds("sqlite3", "psycopg", "asyncpg", "PyMySQL", "aiomysql")
with_row_locks = kinds("psycopg", "psycopg2", "asyncpg", "Session, psycopg", "PyMySQL", "asyncmy", "aiomysql")


@pytest.fixture
def other(kind: Kind, database: Database) -> Iterator[Caller]:
    with kind.open(database.url) as caller:
        caller.begin()
        yield caller


@on_each_database
@pytest.mark.parametrize(
    "different",
    [{"topic": "invoices"}, {"payload": 2}, {"type": "T"}, {"key": "7"}, {"aggregate_id": 7}, {"content_type": "a/b"}],
    ids=str,
)
def test_O_3_in_a_later_transaction_too(different: dict[str, Any], caller: Caller, database: Database) -> None:
    same = {"topic": "orders", "payload": 1, "idempotency_key": str(uuid4())}
    first = caller.add(OUTBOX, **same)
    caller.commit()
    caller.begin()
    again = caller.add(OUTBOX, **same, headers={"not": "compared"})
    assert (again.duplicate, again.id) == (True, first.id)
    with pytest.raises(
        IdempotencyConflict, match=f"{same['idempotency_key']}' was used for another message \\({first.id}"
    ):
        caller.add(OUTBOX, **(same | different))
    caller.commit()
    assert database.stored([first]) == 1


@on_each_database
def test_O_3_keys_are_compared_exactly(caller: Caller, database: Database) -> None:
    base = str(uuid4())
    keys = [
        f"{base}{end}"
        for end in ("a", "A", "ä", "a\u0308", "á", "\uff41", "a\t", " a", "日本", "😀", "😁", "%", "_", "'", "\\")
    ]
    messages = [caller.add(OUTBOX, "orders", n, idempotency_key=key) for n, key in enumerate(keys)]
    caller.commit()
    assert not any(message.duplicate for message in messages)
    assert database.stored(messages) == len(keys)


@on_each_database
def test_O_3_a_key_repeated_within_one_call_is_recorded_once(caller: Caller, database: Database) -> None:
    key = str(uuid4())
    given = [Message.new("orders", n % 2, idempotency_key=f"{key}/{n % 2}") for n in range(6)]
    recorded = caller.add_many(OUTBOX, given)
    caller.commit()
    assert [message.duplicate for message in recorded] == [False, False, True, True, True, True]
    assert [message.id for message in recorded] == [given[0].id, given[1].id] * 3
    assert database.stored(given) == 2


@on_each_database
def test_O_3_a_key_with_two_contents_within_one_call_leaves_nothing(caller: Caller, database: Database) -> None:
    key = str(uuid4())
    given = [Message.new("orders", n, idempotency_key=key if n in (2, 4) else None) for n in range(6)]
    with pytest.raises(IdempotencyConflict, match=f"{key}' is given to two different messages in one call"):
        caller.add_many(OUTBOX, given)
    caller.commit()
    assert database.stored(given) == 0


@on_each_database
def test_O_3_among_many_what_is_there_already_comes_back_as_such(caller: Caller, database: Database) -> None:
    key = str(uuid4())
    earlier = caller.add_many(OUTBOX, [Message.new("orders", n, idempotency_key=f"{key}/{n}") for n in (1, 3)])
    caller.commit()
    caller.begin()
    given = [Message.new("orders", n, idempotency_key=f"{key}/{n}") for n in range(5)]
    recorded = caller.add_many(OUTBOX, given)
    caller.commit()
    assert [message.duplicate for message in recorded] == [False, True, False, True, False]
    assert [recorded[1].id, recorded[3].id] == [message.id for message in earlier]
    assert database.stored(recorded) == 5
    assert database.stored([given[1], given[3]]) == 0


@on_each_database
@pytest.mark.parametrize("idempotency_key", [None, "fresh"])
def test_an_id_that_is_there_already_is_refused(
    idempotency_key: str | None, caller: Caller, database: Database
) -> None:
    statement, row = business_row()
    fresh = idempotency_key and f"{idempotency_key} {uuid4()}"
    first = caller.add(OUTBOX, "orders", 1)
    many = [Message.new("orders", n) for n in range(3)]
    many.insert(2, Message.new("orders", 9, id=str(first.id), idempotency_key=fresh))
    for attempt in range(2):
        with pytest.raises(DuplicateMessage, match=f"id {first.id} is already in the outbox: leave id out"):
            caller.add(OUTBOX, "orders", 2, id=first.id, idempotency_key=fresh)
        with pytest.raises(DuplicateMessage, match=str(first.id)):
            caller.add_many(OUTBOX, many)
        if not attempt:
            caller.commit()
            caller.begin()
    with pytest.raises(DuplicateMessage, match=f"two messages of one call have the id {first.id}"):
        caller.add_many(OUTBOX, [first, first])
    caller.sql(statement)
    caller.commit()
    assert database.has_business(row)
    assert database.stored([first, *many]) == 1
    messages, deliveries = database.size()
    assert messages == deliveries


@on_each_database
def test_O_3_a_retry_of_the_same_message_is_a_duplicate(caller: Caller) -> None:
    message = Message.new("orders", 1, idempotency_key=str(uuid4()))
    assert caller.add_many(OUTBOX, [message]) == [message]
    [again] = caller.add_many(OUTBOX, [message])
    assert (again.duplicate, again.id) == (True, message.id)
    caller.rollback()


@with_row_locks
@pytest.mark.parametrize("ended", ["commit", "rollback"])
@pytest.mark.parametrize("content", ["same", "different"])
@pytest.mark.parametrize("number", [1, 3])
def test_O_3_the_second_of_two_transactions_waits_for_the_first(
    ended: str, content: str, number: int, caller: Caller, other: Caller, database: Database
) -> None:
    key = str(uuid4())
    other.sql("SELECT 1 FROM business WHERE id = '7'")  # its snapshot, where it keeps one, is from before the commit
    first = caller.add(OUTBOX, "orders", 1, idempotency_key=key)
    second = [Message.new("orders", n, idempotency_key=f"{key}/{n}") for n in range(1, number)]
    second.insert(0, Message.new("orders", 1 if content == "same" else 2, idempotency_key=key))
    (before, row_before), (after, row_after) = business_row(), business_row()
    other.sql(before)
    with waiting(database, lambda: other.add_many(OUTBOX, second)) as added:
        caller.commit() if ended == "commit" else caller.rollback()
    if ended == "commit" and content == "different":
        with pytest.raises(IdempotencyConflict, match=key):
            added.result()
        expected = 0
    else:
        [recorded, *rest] = added.result()
        assert recorded.duplicate == (ended == "commit")
        assert recorded.id == (first.id if ended == "commit" else second[0].id)
        assert not any(message.duplicate for message in rest)
        expected = number - (ended == "commit")
    other.sql(after)
    other.commit()
    assert database.stored([first]) == (ended == "commit")
    assert database.stored(second) == expected
    assert database.has_business(row_before, row_after)
    messages, deliveries = database.size()
    assert messages == deliveries


@with_row_locks
@pytest.mark.parametrize("ended", ["commit", "rollback"])
def test_I_1_the_second_of_two_consumers_waits_for_the_first(
    ended: str, caller: Caller, other: Caller, database: Database
) -> None:
    identifier = uuid4()
    statement, row = business_row()
    other.sql("SELECT 1 FROM business WHERE id = '7'")
    assert caller.first_time(INBOX, identifier)
    with waiting(database, lambda: other.first_time(INBOX, identifier)) as marked:
        caller.commit() if ended == "commit" else caller.rollback()
    assert marked.result() == (ended == "rollback")
    other.sql(statement)
    other.commit()
    assert database.has_mark("billing", identifier)
    assert database.has_business(row)


@kinds("psycopg", "psycopg2", "asyncpg", "Session, psycopg", "AsyncSession, asyncpg")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_under_repeatable_read_a_clash_is_passed_on_as_what_it_is(level: str, caller: Caller, other: Caller) -> None:
    key, identifier = str(uuid4()), uuid4()
    other.rollback()
    writes: list[Callable[[Caller], object]] = [
        lambda who: who.add(OUTBOX, "orders", 1, idempotency_key=key),
        lambda who: who.first_time(INBOX, identifier),
    ]
    for write in writes:
        other.begin()
        other.sql(f"SET TRANSACTION ISOLATION LEVEL {level}")
        other.sql("SELECT 1 FROM business")
        write(caller)
        caller.commit()
        caller.begin()
        with pytest.raises(Exception, match="could not serialize access") as refused:
            write(other)
        assert code_of(refused.value) == "40001"
        other.rollback()
    caller.rollback()
