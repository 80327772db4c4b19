"""A relay that runs sagas: beside a broker or without one, with others, and when steps hang or the database goes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Message, Relay, RetryPolicy, Saga
from postroom.brokers.memory import MemoryBroker
from postroom.errors import InvalidSetting
from tests.acceptance.saga_support import EFFECTS, Sagas, write
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.saga import SagaContext
    from tests.conftest import FreshDatabase

EVERY = pytest.mark.parametrize("sagas", ["sqlite", "postgresql", "mariadb"], indirect=True)
LONG = 30.0
AT_ONCE = RetryPolicy.table([0], max_attempts=50)


@pytest.fixture
def sagas(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Sagas]:
    with closing(Service(ready_database(getattr(request, "param", "postgresql")))) as service:
        service.execute(EFFECTS[service.engine.dialect.name])
        yield Sagas(service)


def quick(schema: str | None = None) -> Saga[Any]:
    saga: Saga[Any] = Saga("quick", schema=schema)

    @saga.step
    def first(saga: SagaContext[Any]) -> None:
        write(saga, f"{saga.name} {saga.id}")

    @saga.call
    async def second(saga: SagaContext[Any]) -> None:
        assert saga.key

    return saga


class Gate:
    """A saga whose one step waits until it may go on."""

    def __init__(self, name: str = "slow", timeout: float = LONG) -> None:
        self.opened = threading.Event()
        self.begun: list[str] = []
        self.saga: Saga[Any] = Saga(name)

        @self.saga.step(timeout=timeout, retry=AT_ONCE)
        def wait(saga: SagaContext[Any]) -> None:
            self.begun.append(saga.id)
            self.opened.wait(LONG)
            write(saga, f"{saga.name} {saga.id}")


@EVERY
async def test_S_1_a_relay_without_a_broker_runs_sagas_and_leaves_other_messages_alone(sagas: Sagas) -> None:
    saga, url = quick(), sagas.service.url
    sagas.service.commit(Message.new("orders", 1, key="k"), Message.new("orders", 2))
    for number in range(40):
        sagas.start(saga, str(number))
    report = await Relay(url, sagas=[saga]).run_until_empty()
    assert (report.completed, report.compensated, report.parked, report.sent) == (40, 0, 0, 0)
    assert len(sagas.effects()) == 40
    assert sagas.service.status().pending == 2
    assert sagas.service.rows(f"SELECT count(*) FROM {sagas.service.table('lane')} WHERE token <> 0") == [(0,)]
    sagas.start(saga, "more")
    broker = MemoryBroker()
    report = await Relay(url, broker, sagas=[saga]).run_once()
    assert (report.completed, report.sent) == (1, 2)
    assert [one.json() for one in broker.messages] in [[1, 2], [2, 1]]


async def test_S_1_a_relay_with_brokers_by_pattern_publishes_no_saga(sagas: Sagas) -> None:
    saga, others, matching = quick(), MemoryBroker(), MemoryBroker()
    sagas.start(saga, "7")
    sagas.service.commit(Message.new("orders", 1))
    report = await Relay(sagas.service.url, others, brokers={"saga*": matching}, sagas=[saga]).run_until_empty()
    assert (report.completed, report.sent) == (1, 1)
    assert [one.topic for one in others.messages] == ["orders"]
    assert matching.messages == []


async def test_S_1_a_relay_that_runs_in_the_background_wakes_when_a_saga_starts(sagas: Sagas) -> None:
    saga = quick()
    async with Relay(sagas.service.url, sagas=[saga], poll_interval_sec=3600) as relay:
        await wait_for(lambda: sagas.service.rows(f"SELECT queue FROM {sagas.service.table('worker')}"))
        sagas.start(saga, "7")
        await sagas.ended(**{"7": "completed"})
    assert relay.report.completed == 1
    assert sagas.service.rows(f"SELECT queue FROM {sagas.service.table('worker')}") == []


def test_S_1_sagas_that_cannot_run_are_refused(sagas: Sagas, monkeypatch: pytest.MonkeyPatch) -> None:
    url = sagas.service.url
    with pytest.raises(InvalidSetting, match="saga 'quick' is given twice"):
        Relay(url, sagas=[quick(), quick()])
    with pytest.raises(InvalidSetting, match="saga 'empty' has no step"):
        Relay(url, sagas=[Saga("empty")])
    with pytest.raises(InvalidSetting, match="sagas has a function: give Saga objects"):
        Relay(url, sagas=[quick])  # type: ignore[list-item]  # that is the mistake
    with pytest.raises(InvalidSetting, match=r"schema shop .* give both the same schema"):
        Relay(url, sagas=[quick(schema="shop")])
    monkeypatch.setenv("POSTROOM_SAGA_CONCURRENCY", "0")
    with pytest.raises(InvalidSetting, match="saga_concurrency = '0'"):
        Relay(url, sagas=[quick()])


async def test_S_1_transactions_that_do_not_fit_are_refused_by_the_names_of_saga_and_function(sagas: Sagas) -> None:
    def with_transactions(transactions: Any) -> Saga[Any]:
        saga: Saga[Any] = Saga("asynchronous", transactions=transactions)

        @saga.step
        async def reserve(saga: SagaContext[Any]) -> None: ...

        return saga

    refused = [
        (sagas.service.engine, r"saga 'asynchronous' \(.*reserve\): an async step needs an async transaction"),
        (lambda: 1 // 0, r"saga 'asynchronous' \(.*reserve\): no transaction can be opened .*raises ZeroDivisionError"),
    ]
    for transactions, problem in refused:
        with pytest.raises(InvalidSetting, match=problem):
            await Relay(sagas.service.url, sagas=[with_transactions(transactions)]).run_once()


async def test_S_1_a_result_without_a_json_form_is_said_to_be_at_fault(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("returning")

    @saga.step(retry=RetryPolicy(max_attempts=1))
    def answer(saga: SagaContext[Any]) -> object:
        return object()

    sagas.start(saga, "one")
    await Relay(sagas.service.url, sagas=[saga]).run_once()
    problem = sagas.instance("one")["error_message"]
    assert "the result of step 'answer'" in problem
    assert "flushed" not in problem


async def test_S_1_a_slow_saga_stops_no_other_and_no_message(sagas: Sagas) -> None:
    slow, other, broker = Gate(), quick(), MemoryBroker()
    for number in range(10):
        sagas.start(slow.saga, f"slow-{number}")
        sagas.start(other, f"quick-{number}")
    sagas.service.commit(*(Message.new("orders", number) for number in range(10)))
    async with Relay(sagas.service.url, broker, sagas=[slow.saga, other], saga_concurrency=2) as relay:
        await sagas.ended(**{f"quick-{number}": "completed" for number in range(10)})
        await wait_for(lambda: len(broker.messages) == 10)
        assert len(slow.begun) == 2, "as many as may run at a time"
        slow.opened.set()
        await sagas.ended(**{f"slow-{number}": "completed" for number in range(10)})
    assert relay.report.completed == 20


async def test_S_1_a_lock_on_one_saga_stops_no_other(sagas: Sagas) -> None:
    """Whoever aborts in a transaction that stays open for long locks the instance, and all that would be written."""
    locked, other = Gate("locked"), quick()
    goes_on = asyncio.Event()

    @locked.saga.call
    async def after(saga: SagaContext[Any]) -> None:
        await goes_on.wait()

    locked.opened.set()
    sagas.start(locked.saga, "locked")
    async with Relay(sagas.service.url, sagas=[locked.saga, other]):
        await wait_for(sagas.effects)
        with sagas.service.engine.begin() as connection:
            locked.saga.abort(connection, "locked", by="ada")
            goes_on.set()
            await asyncio.sleep(0)
            sagas.start(other, "1")
            sagas.start(locked.saga, "free")
            started = asyncio.get_running_loop().time()
            await sagas.ended(**{"1": "completed", "free": "completed"}, locked="open")
            assert asyncio.get_running_loop().time() - started < LONG / 2
        await sagas.ended(locked="compensated")


@pytest.mark.parametrize("sagas", ["postgresql", "mariadb"], indirect=True)
async def test_S_5_a_signal_to_a_locked_saga_holds_up_only_those_to_the_same(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("patient")

    @saga.wait("parcel", timeout=3600)
    def delivered(saga: SagaContext[Any], event: str) -> None:
        write(saga, f"{saga.id} {event}")

    for each in ("locked", "free"):
        sagas.start(saga, each)
    async with Relay(sagas.service.url, sagas=[saga], poll_interval_sec=0.05):
        for each in ("locked", "free"):
            await sagas.state(each, 1)
        with sagas.service.engine.connect() as connection:
            await asyncio.to_thread(saga.abort, connection, "locked", by="ada")
            for each, parcel in (("locked", "first"), ("locked", "second"), ("free", "third")):
                sagas.signal(saga, each, "parcel", parcel)
            await sagas.ended(free="completed")
            assert sagas.effects() == ["free third"]
            connection.rollback()
        await sagas.ended(locked="completed")
    assert sagas.effects() == ["free third", "locked first"]


async def test_S_1_a_stop_finishes_the_step_that_runs_and_gives_the_others_back(sagas: Sagas) -> None:
    slow = Gate()
    for number in range(6):
        sagas.start(slow.saga, str(number))
    relay = Relay(sagas.service.url, sagas=[slow.saga], saga_concurrency=2)
    running = asyncio.create_task(relay.run())
    await wait_for(lambda: len(slow.begun) == 2)
    relay.stop()
    slow.opened.set()
    await running
    assert len(sagas.effects()) == 2
    report = await Relay(sagas.service.url, sagas=[slow.saga]).run_once()
    assert report.completed == 4, "they were not leased any more"
    assert len(sagas.effects()) == 6


async def test_S_1_two_relays_share_the_sagas(sagas: Sagas) -> None:
    both, begun = threading.Barrier(2, timeout=LONG), list[str]()
    saga: Saga[Any] = Saga("shared")

    @saga.step
    def meet(saga: SagaContext[Any]) -> None:
        begun.append(saga.id)
        if len(begun) <= 2:  # each relay runs one at a time
            both.wait()
        write(saga, saga.id)

    for number in range(8):
        sagas.start(saga, str(number))
    relays = [Relay(sagas.service.url, sagas=[saga], saga_concurrency=1, worker=name) for name in "ab"]
    async with relays[0], relays[1]:
        await sagas.ended(**{str(number): "completed" for number in range(8)})
    assert sorted(sagas.effects()) == [str(number) for number in range(8)]
    workers = sagas.service.rows(f"SELECT DISTINCT worker FROM {sagas.service.table('saga_step')}")
    assert sorted(workers) == [("a",), ("b",)]


async def test_S_1_a_run_until_empty_ends_while_a_saga_waits_and_not_while_one_is_due(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("patient")
    tries: list[str] = []

    @saga.step(retry=AT_ONCE)
    def unlucky(saga: SagaContext[Any]) -> None:
        tries.append(saga.id)
        if len(tries) < 3:
            raise RuntimeError("not yet")

    @saga.wait("parcel", timeout=3600)
    def delivered(saga: SagaContext[Any], event: str) -> None:
        write(saga, event)

    sagas.start(saga, "7")
    report = await Relay(sagas.service.url, sagas=[saga]).run_until_empty()
    assert (tries, report.completed) == (["7", "7", "7"], 0)
    assert sagas.outcomes() == {"7": "open"}
    sagas.signal(saga, "7", "parcel", "brought")
    report = await Relay(sagas.service.url, sagas=[saga]).run_until_empty()
    assert (report.completed, sagas.effects()) == (1, ["brought"])


async def test_S_1_steps_that_hang_are_reported_and_what_they_leave_behind_commits_nothing(sagas: Sagas) -> None:
    slow, other = Gate(timeout=0.1), quick()
    for number in range(2):
        sagas.start(slow.saga, f"slow-{number}")
    sagas.start(other, "quick")
    report = await Relay(sagas.service.url, sagas=[slow.saga, other], saga_concurrency=1).run_once()
    assert report.completed == 1
    assert report.queues_down == ["saga:slow"]
    assert not report.broker_down
    assert len(slow.begun) == 1, "its thread hangs, and there is no other"
    slow.opened.set()
    async with Relay(sagas.service.url, sagas=[slow.saga, other], poll_interval_sec=0.1):
        await sagas.ended(**{"slow-0": "completed", "slow-1": "completed"})
    assert sorted(sagas.effects()) == ["quick quick", "slow slow-0", "slow slow-1"]


async def test_S_1_what_was_parked_is_told_to_on_dead_and_to_the_hook(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("broken")
    dead: list[tuple[str | None, str]] = []
    events: list[Any] = []

    @saga.step
    def first(saga: SagaContext[Any]) -> None:
        write(saga, "first")

    @first.compensation(retry=RetryPolicy(max_attempts=1))
    def undo_first(saga: SagaContext[Any]) -> None:
        raise RuntimeError("cannot be undone")

    @saga.step(retry=RetryPolicy(max_attempts=1))
    def second(saga: SagaContext[Any]) -> None:
        raise ValueError(saga.id)

    def on_dead(message: Message, code: str, _text: str) -> None:
        dead.append((message.type, code))

    sagas.start(saga, "7")
    report = await Relay(sagas.service.url, sagas=[saga], on_dead=on_dead, hook=events.append).run_once()
    assert (report.parked, report.completed) == (1, 0)
    assert dead == [("start", "INTERNAL_ERROR")]
    assert "SagaParked" in [type(event).__name__ for event in events]


@pytest.fixture
def own_server() -> Iterator[PostgreSQL]:
    """A server that the test may stop."""
    need(PostgreSQL)
    with closing(PostgreSQL()) as server:
        server.start()
        server.create_database("shop")
        yield server


async def test_S_1_a_restart_of_the_database_in_mid_step_runs_the_step_again(own_server: PostgreSQL) -> None:
    with closing(Service(own_server.url("shop"))) as service:
        service.execute(EFFECTS["postgresql"])
        sagas, slow, calls = Sagas(service), Gate(), list[str]()

        @slow.saga.call
        async def after(saga: SagaContext[Any]) -> None:
            calls.append(saga.key)

        sagas.start(slow.saga, "7")
        async with Relay(service.url, sagas=[slow.saga]) as relay:
            await wait_for(lambda: slow.begun)
            await asyncio.to_thread(own_server.stop, kill=True)
            slow.opened.set()
            await asyncio.to_thread(own_server.start)
            service.engine.dispose()
            await sagas.ended(**{"7": "completed"})
        assert sagas.effects() == ["slow 7"]
        assert len(calls) == 1
        assert relay.report.completed == 1
        assert sagas.steps("7") == [("forward", "wait", "done"), ("forward", "after", "done")]
