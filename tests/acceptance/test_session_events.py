"""Events that domain objects record: the session adds them in its transaction, once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlmodel import Field, SQLModel

from postroom import Message, Outbox, event
from postroom.errors import InvalidMessage, InvalidSetting
from postroom.sqlalchemy import RecordsEvents, publish_events, record_event
from tests.acceptance.service import Service
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

ASYNC = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}


@event("orders", key="order_id")
@dataclass
class Placed:
    order_id: int
    what: str


class Base(DeclarativeBase): ...


class Order(RecordsEvents, Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]

    def place(self, what: str) -> None:
        self.record_event(lambda: Placed(self.id, what))


class Parcel(SQLModel, table=True):
    id: int | None = Field(default=None, primary_key=True)
    weight: int


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        Base.metadata.create_all(service.engine)
        SQLModel.metadata.create_all(service.engine)
        yield service


def added(service: Service) -> list[Any]:
    rows: list[Any] = service.rows(f"SELECT payload FROM {service.table('outbox')} ORDER BY position")
    return [Message.new("t", bytes(payload)).json() for [payload] in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_events_commit_with_their_objects_and_once(service: Service) -> None:
    sessions = publish_events(sessionmaker(service.engine, info={"own": 1}), Outbox())
    with sessions.begin() as session:
        assert session.info["own"] == 1
        order = Order(cents=5)
        order.place("new")  # before it has a session
        session.add(order)
        session.flush()
        order.cents = 6
        order.place("changed")
        session.flush()
        number = order.id
    with sessions.begin() as session:
        loaded = session.get_one(Order, number)
        record_event(loaded, Placed(number, "not changed at all"))
        record_event(loaded, Message.new("mail", {"n": 1}))
        del loaded, order  # the session alone keeps it
    wanted = [{"order_id": number, "what": what} for what in ("new", "changed", "not changed at all")]
    assert added(service) == [*wanted, {"n": 1}]
    assert service.rows(f"SELECT DISTINCT ordering_key FROM {service.table('outbox')} WHERE topic = 'orders'") == [
        (str(number),)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_rolled_back_is_forgotten_and_the_rest_is_not(service: Service) -> None:
    sessions = publish_events(scoped_session(sessionmaker(service.engine)), Outbox())
    session = sessions()
    order = Order(cents=1)
    session.add(order)
    order.place("rolled back")
    session.flush()
    order.place("never flushed")
    session.rollback()
    session.add(Order(cents=2))
    session.commit()
    order = session.query(Order).one()
    order.place("before the savepoint")
    savepoint = session.begin_nested()
    order.place("in the savepoint")
    savepoint.rollback()
    with session.begin_nested():
        order.place("in a savepoint that stays")
    session.commit()
    order.place("closed without a commit")
    sessions.remove()
    session = sessions()
    session.add(Order(cents=3))
    session.commit()
    sessions.remove()
    assert [one["what"] for one in added(service)] == ["before the savepoint", "in a savepoint that stays"]


@pytest.mark.parametrize("kind", KINDS)
async def test_async_sessions_and_sqlmodel(service: Service) -> None:
    url = make_url(service.url)
    engine = create_async_engine(url.set(drivername=ASYNC[url.get_backend_name()]))
    sessions: Any = publish_events(async_sessionmaker(engine, expire_on_commit=False), Outbox())
    async with sessions.begin() as session:
        order, parcel = Order(cents=5), Parcel(weight=3)
        session.add_all([order, parcel])
        order.place("async")
        record_event(parcel, lambda: Placed(parcel.id or 0, "a parcel"))
    async with async_sessionmaker(engine)() as single:
        publish_events(single, Outbox())
        single.add(later := Order(cents=6))
        later.place("one session")
        await single.commit()
    await engine.dispose()
    assert [one["what"] for one in added(service)] == ["async", "a parcel", "one session"]
    assert publish_events(async_scoped_session(sessions, lambda: 1), Outbox()) is not None


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_session_without_an_outbox_commits_nothing(service: Service) -> None:
    with Session(service.engine) as session:
        order = Order(cents=1)
        order.place("nowhere")
        session.add(order)
        with pytest.raises(InvalidSetting, match="the session has no outbox: call publish_events"):
            session.commit()
    assert service.rows("SELECT count(*) FROM orders") == [(0,)]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_what_is_no_event_is_refused_where_it_is_recorded(service: Service) -> None:
    with pytest.raises(InvalidMessage, match="a dict is no event"):
        record_event(Order(cents=1), {"cents": 1})
    with pytest.raises(InvalidSetting, match="Placed is not mapped by SQLAlchemy"):
        record_event(Placed(1, ""), Placed(1, ""))
    with pytest.raises(InvalidSetting, match="not Engine"):
        publish_events(service.engine, Outbox())
    sessions = publish_events(sessionmaker(service.engine), Outbox())
    with sessions() as session:
        order = Order(cents=1)
        session.add(order)
        order.record_event(lambda: "text")
        with pytest.raises(InvalidMessage, match="a str is no event"):
            session.commit()
    assert service.rows("SELECT count(*) FROM orders") == [(0,)]
