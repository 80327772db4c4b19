"""A parked message is settled in its handler's own transaction: with the effect, or not at all."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from postroom import Consumer, Message
from postroom.brokers.memory import MemoryBroker
from postroom.consumer.parked import hash_of
from postroom.errors import DatabaseUnreachable
from postroom.rules.ordering import lane_of
from postroom.store.connections.urls import resolve
from postroom.telemetry.events import Event, Handled, LeasesLost
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from postroom.incoming import Incoming
    from tests.conftest import FreshDatabase

on_each_database = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
on_postgresql = pytest.mark.parametrize("kind", ["postgresql"])
keyed_or_not = pytest.mark.parametrize("key", [None, "k"], ids=["row", "lane"])
sync_or_async = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])

INSERT = text("INSERT INTO bill VALUES (7)")
QUICK: dict[str, Any] = {"poll_interval_sec": 0.02, "lock_lease_sec": 1, "lane_lease_sec": 1}


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        service.execute("CREATE TABLE bill (number INTEGER)")
        yield service


class Billing:
    """A consumer whose handler fails the first time, so that its message is parked, and bills the second time."""

    def __init__(self, service: Service, transactions: Any = None, *, is_async: bool = False, **settings: Any) -> None:
        self.service = service
        self.calls = 0
        self.events: list[Event] = []
        self.when_handled: list[tuple[int, int, int]] = []
        """What was there when a message was reported as handled: right after the commit, and before all else."""
        self.before_return: Callable[[int], str | None] = lambda _: None
        """Returns a statement to run in the transaction; asked with the number of the call."""
        self.broker = MemoryBroker()
        self.consumer = Consumer(
            "billing",
            self.broker,
            database=service.url,
            transactions=transactions,
            hook=self._listen,
            **{**QUICK, **settings},
        )
        self.consumer.handler("orders", delays=[0.01], attempts=5)(self._abill if is_async else self._bill)

    async def receive(self, key: str | None) -> None:
        await self.broker.publish([Message.new("orders", {}, key=key)], 1)

    def _bill(self, connection: Connection, message: Incoming) -> None:
        self._called(message)
        connection.execute(INSERT)
        if statement := self.before_return(self.calls):
            connection.execute(text(statement))

    async def _abill(self, connection: AsyncConnection, message: Incoming) -> None:
        self._called(message)
        await connection.execute(INSERT)
        if statement := self.before_return(self.calls):
            await connection.execute(text(statement))

    def _called(self, message: Incoming) -> None:
        assert message.json() == {}
        self.calls += 1
        if self.calls == 1:
            raise ValueError("not now")

    def _listen(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Handled) and event.fate == "handled":
            self.when_handled.append(state_of(self.service))

    def fates(self) -> list[str]:
        return [event.fate for event in self.events if isinstance(event, Handled)]


def state_of(service: Service) -> tuple[int, int, int]:
    """How many bills, deliveries and receipts there are."""
    tables = ("bill", service.table("delivery"), service.table("receipt"))
    bills, deliveries, receipts = (int(str(service.rows(f"SELECT count(*) FROM {table}")[0][0])) for table in tables)
    return bills, deliveries, receipts


class Disturbed:
    """Transactions of which one fails at its end: before the commit when all is written, or after it, unheard."""

    def __init__(self, service: Service, *, number: int, before: Exception | None, after: Exception | None) -> None:
        self.states: list[tuple[int, int, int]] = []
        """What was there before each transaction."""
        self._service = service
        self._number = number
        self._before = before
        self._after = after

    @contextmanager
    def sync(self) -> Iterator[Connection]:
        self.states.append(state_of(self._service))
        with self._service.engine.begin() as connection:
            yield connection
            self._raise(self._before)
        self._raise(self._after)

    @asynccontextmanager
    async def asynchronous(self) -> AsyncIterator[AsyncConnection]:
        self.states.append(state_of(self._service))
        engine = create_async_engine(resolve(self._service.url, asynchronous=True))
        try:
            async with engine.begin() as connection:
                yield connection
                self._raise(self._before)
        finally:
            await engine.dispose()
        self._raise(self._after)

    def _raise(self, error: Exception | None) -> None:
        if error is not None and len(self.states) == self._number:
            raise error


@on_each_database
@keyed_or_not
@sync_or_async
async def test_I_4_the_settlement_commits_with_the_effect(service: Service, key: str | None, *, is_async: bool) -> None:
    billing = Billing(service, is_async=is_async)
    await billing.receive(key)
    async with billing.consumer:
        await wait_for(lambda: "handled" in billing.fates())
    assert (billing.calls, billing.fates()) == (2, ["parked", "handled"])
    assert billing.when_handled == [(1, 0, 1)]


@on_each_database
@keyed_or_not
@sync_or_async
async def test_I_4_neither_stays_where_the_transaction_is_rolled_back_at_its_end(
    service: Service, key: str | None, *, is_async: bool
) -> None:
    # The first is only tried out, when the consumer starts.
    transactions = Disturbed(service, number=3, before=RuntimeError("killed"), after=None)
    billing = Billing(service, transactions.asynchronous if is_async else transactions.sync, is_async=is_async)
    await billing.receive(key)
    async with billing.consumer:
        await wait_for(lambda: "handled" in billing.fates())
    assert transactions.states == [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 1, 0)]
    assert (billing.calls, billing.fates()) == (3, ["parked", "parked", "handled"])
    assert state_of(service) == (1, 0, 1)


@on_each_database
@sync_or_async
async def test_I_4_a_commit_whose_answer_is_lost_is_not_taken_for_a_lost_lease(
    service: Service, *, is_async: bool
) -> None:
    transactions = Disturbed(service, number=3, before=None, after=DatabaseUnreachable("no answer"))
    opener = transactions.asynchronous if is_async else transactions.sync
    long = {"lock_lease_sec": 30, "lane_lease_sec": 30}  # so that none is lost because the machine is slow
    billing = Billing(service, opener, is_async=is_async, **long)
    await billing.receive("k")
    async with billing.consumer:
        await wait_for(lambda: "duplicate" in billing.fates())
    assert transactions.states[3:] == [(1, 0, 1)]
    assert (billing.calls, billing.fates()) == (2, ["parked", "duplicate"])
    assert state_of(service) == (1, 0, 1)
    assert not any(isinstance(event, LeasesLost) for event in billing.events)


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
async def test_a_transaction_that_hangs_after_the_settlement_stops_no_other_lane(service: Service) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    in_lane = {lane_of(hash_of(str(number))): str(number) for number in range(200)}
    hung, other = in_lane[0], in_lane[2]
    done: list[str | None] = []
    calls: list[str | None] = []

    @contextmanager
    def transactions() -> Iterator[Connection]:
        with service.engine.begin() as connection:
            yield connection
            if connection.info.pop("key", None) == hung and not hangs.is_set():
                hangs.set()
                goes_on.wait(30)

    broker = MemoryBroker()
    consumer = Consumer("billing", broker, database=service.url, transactions=transactions, **QUICK)

    @consumer.handler("orders", delays=[0.01], attempts=50)
    def bill(connection: Connection, message: Incoming) -> None:
        connection.execute(INSERT)
        calls.append(message.key)
        if calls.count(message.key) == 1 or (message.key == other and not hangs.is_set()):
            raise ValueError("not now")
        connection.info["key"] = message.key
        done.append(message.key)

    await broker.publish([Message.new("orders", {}, key=key) for key in (hung, other)], 1)
    async with consumer:
        try:
            await wait_for(hangs.is_set)
            async with asyncio.timeout(8):
                await wait_for(lambda: other in done)
        finally:
            goes_on.set()
        await wait_for(lambda: state_of(service) == (2, 0, 2))


@on_each_database
@keyed_or_not
@sync_or_async
async def test_L_3_the_effect_is_rolled_back_where_the_lease_was_lost(
    service: Service, key: str | None, *, is_async: bool
) -> None:
    billing = Billing(service, is_async=is_async)
    table = service.table("delivery" if key is None else "lane")
    billing.before_return = lambda call: f"UPDATE {table} SET token = token + 1" if call == 2 else None
    await billing.receive(key)
    async with billing.consumer:
        await wait_for(lambda: any(isinstance(event, LeasesLost) for event in billing.events))
        await wait_for(lambda: "handled" in billing.fates())
    assert (billing.calls, billing.fates()) == (3, ["parked", "handled"])  # the lost one burnt no attempt
    assert state_of(service) == (1, 0, 1)


@on_each_database
@sync_or_async
async def test_what_an_orm_writes_late_is_written_before_the_settlement(service: Service, *, is_async: bool) -> None:
    engine = create_engine(resolve(service.url))
    async_engine = create_async_engine(resolve(service.url, asynchronous=True))
    sessions = async_sessionmaker(async_engine) if is_async else sessionmaker(engine)
    billing = Billing(service, sessions, is_async=is_async)
    await billing.receive("k")
    try:
        await billing.consumer.run_once()
        while "handled" not in billing.fates():
            await billing.consumer.run_once()
    finally:
        engine.dispose()
        await async_engine.dispose()
    assert state_of(service) == (1, 0, 1)


@on_each_database
async def test_handlers_that_write_to_another_database_are_settled_by_the_engine(
    service: Service, kind: str, ready_database: FreshDatabase
) -> None:
    with closing(Service(ready_database(kind))) as other:
        other.execute("CREATE TABLE bill (number INTEGER)")
        billing = Billing(service, other.engine)
        await billing.receive(None)
        async with billing.consumer:
            await wait_for(lambda: "handled" in billing.fates() and state_of(service)[1] == 0)
        assert other.rows("SELECT number FROM bill") == [(7,)]
    assert (state_of(service), billing.fates()) == ((0, 0, 1), ["parked", "handled"])


@on_postgresql
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_handler_that_a_heartbeat_overtakes_above_read_committed_is_settled_by_the_engine(
    service: Service, level: Any
) -> None:
    engine = create_engine(resolve(service.url), isolation_level=level)
    billing = Billing(service, engine)
    lane = lane_of(hash_of("k"))
    leases = f"SELECT leased_until FROM {service.table('lane')} WHERE queue = 'handler:billing' AND lane = {lane}"

    def beat(call: int) -> None:
        before = service.rows(leases)
        while call == 2 and service.rows(leases) == before:
            pass

    billing.before_return = beat
    await billing.receive("k")
    async with billing.consumer:
        await wait_for(lambda: "handled" in billing.fates() and state_of(service)[1] == 0)
    engine.dispose()
    assert (billing.calls, billing.fates()) == (3, ["parked", "handled"])  # no attempt was burnt
    assert state_of(service) == (1, 0, 1)
