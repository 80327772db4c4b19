"""A connection in autocommit is refused, in every form that it has; with a transaction begun by hand it is not."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import NullPool, create_engine, event
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from postroom import Inbox, Message, Outbox
from postroom.errors import NotInTransaction
from tests.contract import connection_kinds as kinds
from tests.contract.connection_callers import AsyncpgCaller, Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from sqlalchemy import URL

    from tests.contract.write_support import Databases


OUTBOX = Outbox()
INBOX = Inbox("billing")
AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


@dataclass(frozen=True)
class Form:
    """A connection in autocommit. `begin` is how its user can open a transaction nevertheless."""

    name: str
    database: str
    open: Callable[[URL], AbstractContextManager[Caller]]
    remedy: str
    begin: Callable[[Caller], None] | None = None


def by_statement(caller: Caller) -> None:
    caller.sql("BEGIN")


def by_the_driver(caller: Caller) -> None:
    caller.begin()


@contextmanager
def psycopg2_autocommit(url: URL) -> Iterator[Caller]:
    with kinds.raw("psycopg2", url) as caller:
        caller.connection.autocommit = True
        yield caller


@contextmanager
def set_on_connection(opened: Callable[[URL], AbstractContextManager[Caller]], url: URL) -> Iterator[Caller]:
    """SQLAlchemy's execution option, on one connection."""
    with opened(url) as caller:
        caller.wait(caller.connection.execution_options(**AUTOCOMMIT))
        yield caller


@contextmanager
def set_on_session(opened: Callable[[URL], AbstractContextManager[Caller]], url: URL) -> Iterator[Caller]:
    with opened(url) as caller:
        caller.wait(caller.connection.connection(execution_options=AUTOCOMMIT))
        yield caller


def sqlalchemy_forms() -> Iterator[Form]:
    for drivers, connection, session, make in (
        (kinds.SYNC_DRIVERS, kinds.sqlalchemy_connection, kinds.sqlalchemy_session, Session),
        (kinds.ASYNC_DRIVERS, kinds.sqlalchemy_async_connection, kinds.sqlalchemy_async_session, AsyncSession),
    ):
        for driver, database in drivers.items():
            name = f"{make.__name__}, {driver}"
            connect, make_session = partial(connection, driver), partial(session, make, driver)
            remedy = r"use `(async )?with engine\.begin\(\) as connection:`"
            bind = "bind the session to an engine without isolation_level='AUTOCOMMIT'"
            yield Form(f"engine: {name}'s connection", database, partial(connect, **AUTOCOMMIT), remedy)
            yield Form(f"engine: {name}", database, partial(make_session, **AUTOCOMMIT), bind)
            yield Form(
                f"execution option: {name}'s connection",
                database,
                partial(set_on_connection, connect),
                remedy,
            )
            yield Form(f"execution option: {name}", database, partial(set_on_session, make_session), bind)


def connect_args_forms() -> Iterator[Form]:
    sync = {"pysqlite": {"isolation_level": None}, "psycopg": {"autocommit": True}, "pymysql": {"autocommit": True}}
    other = {
        "aiosqlite": {"isolation_level": None},
        "psycopg": {"autocommit": True},
        "asyncmy": {"autocommit": True},
        "aiomysql": {"autocommit": True},
    }
    remedy = "isolation_level='AUTOCOMMIT'"
    for driver, arguments in sync.items():
        opened = partial(kinds.sqlalchemy_session, Session, driver, connect_args=arguments)
        yield Form(f"connect_args: {driver}", kinds.SYNC_DRIVERS[driver], opened, remedy)
    for driver, arguments in other.items():
        opened_async = partial(kinds.sqlalchemy_async_connection, driver, connect_args=arguments)
        yield Form(f"connect_args: async {driver}", kinds.ASYNC_DRIVERS[driver], opened_async, remedy)


RAW = [
    Form("sqlite3", "sqlite", partial(kinds.raw, "sqlite3", isolation_level=None), "execute BEGIN first", by_statement),
    Form(
        "psycopg",
        "postgresql",
        partial(kinds.raw, "psycopg", autocommit=True),
        r"use `with connection\.transaction\(\):`",
        by_statement,
    ),
    Form("psycopg2", "postgresql", psycopg2_autocommit, r"set connection\.autocommit = False", by_statement),
    Form(
        "PyMySQL",
        "mariadb",
        partial(kinds.raw, "PyMySQL", autocommit=True),
        r"call connection\.begin\(\) first",
        by_statement,
    ),
    Form(
        "aiosqlite",
        "sqlite",
        partial(kinds.raw_async, "aiosqlite", isolation_level=None),
        "execute BEGIN first",
        by_statement,
    ),
    *(
        Form(name, "postgresql", opened, r"use `async with connection\.transaction\(\):`", begin)
        for name, opened, begin in (
            ("asyncpg", partial(kinds.raw_async, "asyncpg"), by_the_driver),
            (
                "asyncpg pool",
                partial(kinds.pooled_async, kinds.asyncpg_pool, AsyncpgCaller),
                by_the_driver,
            ),
            ("psycopg async", partial(kinds.raw_async, "psycopg async", autocommit=True), by_statement),
        )
    ),
    *(
        Form(
            driver,
            "mariadb",
            partial(kinds.raw_async, driver, autocommit=True),
            r"await connection\.begin\(\) first",
            by_statement,
        )
        for driver in ("asyncmy", "aiomysql")
    ),
    *(
        Form(
            f"Django {alias}, {database}",
            database,
            partial(kinds.django_connection, alias),
            r"use `with transaction\.atomic\(\):`",
            by_the_driver,
        )
        for alias in ("default", "other")
        for database in ("sqlite", "postgresql", "mariadb")
    ),
]
FORMS = [*RAW, *sqlalchemy_forms(), *connect_args_forms()]


@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in FORMS])
def test_O_1_autocommit_is_refused_with_the_way_to_a_transaction(form: Form, databases: Databases) -> None:
    database = databases[form.database]
    before = database.size()
    identifier = uuid4()
    with form.open(database.url) as caller:
        with pytest.raises(NotInTransaction, match=form.remedy):
            caller.add(OUTBOX, "orders", {"a": 1})
        with pytest.raises(NotInTransaction, match=form.remedy):
            caller.add_many(OUTBOX, [Message.new("orders", {"a": 1})])
        with pytest.raises(NotInTransaction, match=form.remedy):
            caller.first_time(INBOX, identifier)
    assert database.size() == before
    assert not database.has_mark("billing", identifier)


@pytest.mark.parametrize("form", [pytest.param(form, id=form.name) for form in FORMS if form.begin])
def test_O_1_in_autocommit_a_transaction_begun_by_hand_is_accepted(form: Form, databases: Databases) -> None:
    database = databases[form.database]
    assert form.begin is not None
    with form.open(database.url) as caller:
        by_hand = form.begin is by_statement  # and ended in the same way: psycopg2's own commit() would do nothing
        form.begin(caller)
        undone = caller.add(OUTBOX, "orders", {"a": 1})
        if by_hand:
            caller.sql("ROLLBACK")
        else:
            caller.rollback()
        form.begin(caller)
        message = caller.add(OUTBOX, "orders", {"a": 1})
        if by_hand:
            caller.sql("COMMIT")
        else:
            caller.commit()
    assert database.stored([undone]) == 0
    assert database.stored([message]) == 1


@pytest.mark.parametrize("driver", ["psycopg", "psycopg async"])
def test_O_1_psycopg_in_autocommit_has_a_transaction_inside_its_block(driver: str, databases: Databases) -> None:
    database = databases["postgresql"]
    opened = kinds.raw_async if driver == "psycopg async" else kinds.raw
    with opened(driver, database.url, autocommit=True) as caller:
        if caller.runner is None:
            with caller.connection.transaction():
                message = OUTBOX.add(caller.connection, "orders", {"a": 1})
        else:

            async def add() -> Message:
                async with caller.connection.transaction():
                    return await OUTBOX.aadd(caller.connection, "orders", {"a": 1})

            message = caller.wait(add())
    assert database.stored([message]) == 1


def test_a_refused_connection_of_sqlalchemy_is_left_as_it_was(databases: Databases) -> None:
    url = kinds.with_driver(databases["sqlite"].url, "pysqlite")
    engine = create_engine(url, poolclass=NullPool, connect_args={"isolation_level": None})
    with engine.connect() as connection:
        with pytest.raises(NotInTransaction):
            OUTBOX.add(connection, "orders")
        assert not connection.in_transaction()


def begin_by_hand(engine: Any) -> None:
    """SQLAlchemy's documented way to real transactions on SQLite: BEGIN is sent by a listener."""

    @event.listens_for(engine, "connect")
    def leave_transactions_alone(connection: Any, _record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


@pytest.mark.parametrize("first", ["add", "business"])
def test_O_1_a_begin_sent_by_a_listener_of_sqlalchemy_is_accepted(first: str, databases: Databases) -> None:
    database = databases["sqlite"]
    engine = create_engine(kinds.with_driver(database.url, "pysqlite"), poolclass=NullPool)
    begin_by_hand(engine)
    with engine.connect() as connection:
        if first == "business":
            connection.exec_driver_sql("SELECT 1 FROM business")
        undone = OUTBOX.add(connection, "orders")
        connection.rollback()
        message = OUTBOX.add(connection, "orders")
        connection.commit()
    assert (database.stored([undone]), database.stored([message])) == (0, 1)


async def test_O_1_a_begin_sent_by_a_listener_of_async_sqlalchemy_is_accepted(databases: Databases) -> None:
    database = databases["sqlite"]
    engine = create_async_engine(kinds.with_driver(database.url, "aiosqlite"), poolclass=NullPool)
    begin_by_hand(engine.sync_engine)
    async with engine.connect() as connection:
        undone = await OUTBOX.aadd(connection, "orders")
        await connection.rollback()
        message = await OUTBOX.aadd(connection, "orders")
        await connection.commit()
    await engine.dispose()
    assert (database.stored([undone]), database.stored([message])) == (0, 1)
