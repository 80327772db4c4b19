"""S-1: the functions of a saga get the application's own kind of transaction, in which their step is logged."""

from __future__ import annotations

from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from postroom import RetryPolicy, Saga
from postroom.saga import Refused
from postroom.store.connections.urls import resolve
from tests.acceptance.saga_service import SagaService
from tests.contract.connection_kinds import ACONNECT, KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.conftest import FreshDatabase
    from tests.contract.connection_callers import Caller

ONCE_MORE = RetryPolicy.table([0.01], max_attempts=2)
NAMES = {
    *(
        "sqlite3",
        "psycopg",
        "psycopg pool",
        "psycopg2",
        "PyMySQL",
        "Django proxy, sqlite",
        "Django wrapper, postgresql",
    ),
    *("Django proxy, mariadb", "Connection, psycopg2", "Session, pysqlite", "scoped_session, psycopg"),
    *("SQLModel Session, pymysql",),
}
"""One of each class, on each database at least once."""


class Base(DeclarativeBase):
    """Maps the application's tables."""


class Note(Base):
    __tablename__ = "note"
    text: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[SagaService]:
    with closing(SagaService(ready_database(kind))) as service:
        service.execute("CREATE TABLE note (text VARCHAR(100))")
        yield service


def notes(service: SagaService) -> list[str]:
    return sorted(str(row[0]) for row in service.rows("SELECT text FROM note"))


async def shown(service: SagaService, saga: Saga[Any]) -> None:
    """One completes although its first attempt failed after it had written; the other is undone."""
    good, bad = service.start(saga, {"is": "good"}, {"is": "bad"})
    await service.settled(saga, ids=[good, bad])
    states = {str(service.seen(saga, one).state) for one in (good, bad)}
    problems = [service.seen(saga, one).explanation for one in (good, bad)]
    assert states == {"completed", "compensated"}, problems
    assert notes(service) == ["do bad", "do good", "end good", "undo bad"]


@pytest.mark.parametrize(
    ("each", "kind"),
    [pytest.param(kind, kind.database, id=kind.name) for kind in KINDS if kind.name in NAMES],
)
async def test_S_1_every_sync_kind_of_connection(service: SagaService, each: Kind) -> None:
    callers: dict[int, Caller] = {}

    @contextmanager
    def transaction() -> Iterator[Any]:
        with each.open(make_url(service.url)) as caller:
            callers[id(caller.connection)] = caller
            caller.begin()
            try:
                yield caller.connection
            except BaseException:
                caller.rollback()
                raise
            caller.commit()

    def note(saga: Any, what: str) -> None:
        callers[id(saga.connection)].sql(f"INSERT INTO note VALUES ('{what} {saga.data['is']}')")

    saga: Saga[Any] = Saga("noted", transactions=transaction)

    @saga.step(retry=ONCE_MORE)
    def do(saga: Any) -> None:
        note(saga, "do")
        if saga.attempt == 1:
            raise ConnectionError("away")

    @do.compensation
    def undo(saga: Any) -> None:
        note(saga, "undo")

    @saga.step
    def end(saga: Any) -> None:
        note(saga, "end")
        if saga.data["is"] == "bad":
            raise Refused("BAD")

    await shown(service, saga)


@pytest.mark.parametrize(
    ("driver", "kind"),
    [
        *(("asyncpg", "postgresql"), ("psycopg async", "postgresql"), ("aiosqlite", "sqlite")),
        *(("asyncmy", "mariadb"), ("aiomysql", "mariadb")),
    ],
)
async def test_S_1_every_async_driver(service: SagaService, driver: str) -> None:
    @asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        connection = await ACONNECT[driver](make_url(service.url))
        begin = connection.transaction() if driver == "asyncpg" else None
        if begin is not None:
            await begin.start()
        try:
            yield connection
        except BaseException:
            await (begin or connection).rollback()
            raise
        else:
            await (begin or connection).commit()
        finally:
            closed = connection.close()
            if closed is not None:
                await closed

    async def note(saga: Any, what: str) -> None:
        statement = f"INSERT INTO note VALUES ('{what} {saga.data['is']}')"
        if driver in {"asyncmy", "aiomysql"}:
            cursor = saga.connection.cursor()
            async with cursor if hasattr(cursor, "__aenter__") else await cursor as found:
                await found.execute(statement)
        else:
            await saga.connection.execute(statement)

    await shown(service, async_saga(transaction, note))


def async_saga(transactions: Any, note: Any) -> Saga[Any]:
    saga: Saga[Any] = Saga("noted", transactions=transactions)

    @saga.step(retry=ONCE_MORE)
    async def do(saga: Any) -> None:
        await note(saga, "do")
        if saga.attempt == 1:
            raise ConnectionError("away")

    @do.compensation
    async def undo(saga: Any) -> None:
        await note(saga, "undo")

    @saga.step
    async def end(saga: Any) -> None:
        await note(saga, "end")
        if saga.data["is"] == "bad":
            raise Refused("BAD")

    return saga


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
@pytest.mark.parametrize("what", ["AsyncSession", "AsyncConnection that begins by itself"])
async def test_S_1_what_sqlalchemy_makes_for_async_functions(service: SagaService, what: str) -> None:
    engine = create_async_engine(resolve(service.url, asynchronous=True))

    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        async with engine.connect() as connection:
            yield connection
            await connection.commit()

    async def note(saga: Any, what: str) -> None:
        await saga.connection.execute(text("INSERT INTO note VALUES (:what)"), {"what": f"{what} {saga.data['is']}"})

    await shown(service, async_saga(async_sessionmaker(engine) if what == "AsyncSession" else connected, note))
    await engine.dispose()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
async def test_S_1_a_session_is_flushed_before_the_step_is_logged(service: SagaService) -> None:
    engine = create_engine(resolve(service.url))
    saga: Saga[Any] = Saga("noted", transactions=sessionmaker(engine))

    @saga.step(retry=ONCE_MORE)
    def do(saga: Any) -> None:
        assert isinstance(saga.connection, Session)
        saga.connection.add(Note(text=f"do {saga.data['is']}"))
        if saga.attempt == 1:
            raise ConnectionError("away")

    @do.compensation
    def undo(saga: Any) -> None:
        saga.connection.add(Note(text=f"undo {saga.data['is']}"))

    @saga.step
    def end(saga: Any) -> None:
        saga.connection.add(Note(text=f"end {saga.data['is']}"))
        if saga.data["is"] == "bad":
            raise Refused("BAD")

    await shown(service, saga)
    engine.dispose()
