"""S-4: a saga and the service that it calls, each with its own database: answers are lost, requests overtake."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Consumer, Inbox, Outbox, Relay, RetryPolicy, Saga
from postroom.brokers.memory import MemoryBroker
from tests.acceptance.saga_support import EFFECTS, INSERT
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from postroom import Incoming
    from postroom.saga.context import SagaContext
    from tests.conftest import FreshDatabase

AT_ONCE = RetryPolicy.table([0], max_attempts=2)
DATABASES = ["sqlite", "postgresql", "mariadb"]


class Bank:
    """The service that is called."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._inbox = Inbox("bank")
        service.execute(EFFECTS[service.engine.dialect.name])

    def request(self, headers: dict[str, str], what: str) -> None:
        """Handle a request in a transaction of its own."""
        with self.service.engine.begin() as connection:
            self.act(connection, headers, what)

    def act(self, connection: Connection, headers: Any, what: str) -> None:
        if self._inbox.barrier(connection, headers):
            connection.execute(INSERT, {"what": what})

    def effects(self) -> list[str]:
        return [str(what) for (what,) in self.service.rows("SELECT what FROM effect ORDER BY n")]


@pytest.fixture(params=DATABASES)
def bank(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Bank]:
    with closing(Service(ready_database(request.param))) as service:
        yield Bank(service)


@pytest.fixture
def shop(ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database("sqlite"))) as service:
        yield service


def start(shop: Service, saga: Saga[Any], *ids: str) -> None:
    with shop.engine.begin() as connection:
        for one in ids:
            saga.start(connection, {}, id=one)


async def test_S_4_a_call_whose_answer_is_lost_is_undone_once_and_arrives_late_in_vain(
    bank: Bank, shop: Service
) -> None:
    pay: Saga[Any] = Saga("pay")
    late: dict[str, dict[str, str]] = {}

    @pay.call(retry=AT_ONCE)
    def charge(saga: SagaContext[Any]) -> None:
        late[saga.id] = saga.headers
        if saga.id != "lost on the way":
            bank.request(saga.headers, f"charge {saga.id}")
        raise ConnectionError("no answer")

    @charge.compensation(retry=AT_ONCE)
    def refund(saga: SagaContext[Any]) -> None:
        bank.request(saga.headers, f"refund {saga.id}")
        if saga.attempt == 1:
            raise ConnectionError("no answer")

    start(shop, pay, "it arrived", "lost on the way")
    report = await Relay(shop.url, sagas=[pay]).run_until_empty()
    assert report.compensated == 2
    for one, headers in late.items():
        bank.request(headers, f"charge {one}")  # what a worker sends whose lease is gone
    assert bank.effects() == ["charge it arrived", "refund it arrived"]


async def test_S_4_messages_to_do_and_undo_pass_the_barrier_behind_a_broker_in_any_order(
    bank: Bank, shop: Service
) -> None:
    book: Saga[Any] = Saga("book")
    outbox, broker = Outbox(), MemoryBroker()

    @book.step
    def ask_for_room(saga: SagaContext[Any]) -> None:
        outbox.add(saga.connection, "rooms.book", {"id": saga.id}, key=saga.id, headers=saga.headers)

    @ask_for_room.compensation
    def take_it_back(saga: SagaContext[Any]) -> None:
        outbox.add(saga.connection, "rooms.cancel", {"id": saga.id}, key=saga.id, headers=saga.headers)

    @book.step(retry=RetryPolicy(max_attempts=1))
    def confirm(saga: SagaContext[Any]) -> None:
        if saga.id != "kept":
            raise LookupError("no flight")

    rooms = Consumer("rooms", broker, database=bank.service.url)

    @rooms.handler("rooms.*")
    def handle(connection: Connection, message: Incoming) -> None:
        bank.act(connection, message.headers, f"{message.topic} {message.json()['id']}")

    start(shop, book, "kept", "overtaken", "undone")
    await Relay(shop.url, broker, sagas=[book]).run_until_empty()
    sent = {(one.topic, one.json()["id"]): one for one in broker.messages}
    assert len(sent) == 5
    do, undo = sent["rooms.book", "overtaken"], sent["rooms.cancel", "overtaken"]
    broker.messages[:] = [undo, do, *(one for one in broker.messages if one not in (do, undo))]
    report = await rooms.run_once()
    assert (report.handled, report.dead) == (5, 0)
    assert sorted(bank.effects()) == ["rooms.book kept", "rooms.book undone", "rooms.cancel undone"]
