"""`lock_keys`: transactions that add with the same key do so one after the other, so that order is commit order."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from postroom import Message, Outbox
from postroom.errors import InvalidSetting
from postroom.rules.ordering import key_hash
from tests.contract import connection_kinds as kinds
from tests.contract.waiting import waiting
from tests.contract.write_support import Database, Databases, business_row

if TYPE_CHECKING:
    from tests.contract.connection_callers import Caller

OUTBOX = Outbox(lock_keys=True)
POSTGRESQL = {
    "psycopg": partial(kinds.raw, "psycopg"),
    "psycopg2": partial(kinds.raw, "psycopg2"),
    "asyncpg": partial(kinds.raw_async, "asyncpg"),
}


def positions(database: Database, *messages: Message) -> list[int]:
    return [database.rows("SELECT position FROM {outbox} WHERE id = :id", id=str(one.id))[0][0] for one in messages]


@pytest.mark.parametrize("driver", POSTGRESQL)
@pytest.mark.parametrize("ended", ["commit", "rollback"])
def test_L_16_the_second_add_with_a_key_waits_until_the_first_ends(
    driver: str, ended: str, databases: Databases
) -> None:
    database = databases["postgresql"]
    with POSTGRESQL[driver](database.url) as first, POSTGRESQL[driver](database.url) as second:
        first.begin()
        second.begin()
        earlier = first.add(OUTBOX, "orders", 1, key="same")
        with waiting(database, lambda: second.add(OUTBOX, "orders", 2, key="same")) as added:
            also_earlier = first.add(OUTBOX, "orders", 3, key="same")  # has the lock already
            first.commit() if ended == "commit" else first.rollback()
        later = added.result()
        second.commit()
    assert database.stored([later]) == 1
    if ended == "commit":
        found = positions(database, earlier, also_earlier, later)
        assert found == sorted(found)


def test_L_16_other_keys_and_messages_without_one_do_not_wait(databases: Databases) -> None:
    database = databases["postgresql"]
    with kinds.raw("psycopg", database.url) as first, kinds.raw("psycopg", database.url) as second:
        second.sql("SET lock_timeout = '1s'")
        first.add(OUTBOX, "orders", 1, key="one")
        second.add(OUTBOX, "orders", 2, key="two")
        second.add(OUTBOX, "orders", 3)
        Outbox().add(second.connection, "orders", 4, key="one")  # who does not ask for the lock does not wait either
        second.rollback()
        first.rollback()


def test_L_16_many_keys_are_locked_in_one_order_so_that_no_two_calls_stop_each_other(databases: Databases) -> None:
    database = databases["postgresql"]
    low, high = sorted(("one", "two"), key=key_hash)

    def messages(*keys: str) -> list[Message]:
        return [Message.new("orders", key=key) for key in keys]

    opened = partial(kinds.raw, "psycopg", database.url)
    with opened() as holder, opened() as backwards, opened() as forwards:

        def add(caller: Caller, *keys: str) -> None:
            caller.add_many(OUTBOX, messages(*keys))
            caller.commit()

        holder.add(OUTBOX, "orders", key=high)
        with (
            waiting(database, lambda: add(backwards, high, low)) as first,
            waiting(database, lambda: add(forwards, low, high), sessions=2) as second,
        ):
            holder.rollback()
        first.result()
        second.result()


def test_on_sqlite_there_is_one_writer_at_a_time_anyway(databases: Databases) -> None:
    database = databases["sqlite"]
    with kinds.raw("sqlite3", database.url) as caller:
        message = caller.add(OUTBOX, "orders", 1, key="same")
        caller.commit()
    assert database.stored([message]) == 1


def test_on_mariadb_it_is_refused_with_what_to_do_instead(databases: Databases) -> None:
    database = databases["mariadb"]
    statement, row = business_row()
    before = database.size()
    with kinds.raw("PyMySQL", database.url) as caller:
        with pytest.raises(InvalidSetting, match=r"lock_keys is not available on MySQL.*SELECT … FOR UPDATE"):
            caller.add(OUTBOX, "orders", 1, key="same")
        caller.sql(statement)
        caller.commit()
    assert database.size() == before
    assert database.has_business(row)
