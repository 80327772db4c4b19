"""S-1 … S-5: sagas run by a relay, on every database: forward, back, waiting, in groups, parked, stranded."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Message, Relay, RetryPolicy, Saga
from postroom.errors import Refused
from postroom.telemetry.saga_events import StepsEnded
from tests.acceptance.saga_support import EFFECTS, Sagas, at_work, write
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.saga.context import SagaContext
    from tests.conftest import FreshDatabase

SOON = RetryPolicy.table([0.1], max_attempts=3)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def sagas(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Sagas]:
    with closing(Service(ready_database(request.param))) as service:
        service.execute(EFFECTS[service.engine.dialect.name])
        yield Sagas(service)


def order() -> Saga[Any]:
    saga: Saga[Any] = Saga("order")

    @saga.step
    def reserve(saga: SagaContext[Any]) -> None:
        write(saga, f"reserve {saga.id}")

    @reserve.compensation
    def release(saga: SagaContext[Any]) -> None:
        write(saga, f"release {saga.id}")

    @saga.call
    async def charge(saga: SagaContext[Any]) -> None:
        if saga.data.get("declined"):
            raise Refused("DECLINED")

    return saga


async def test_S_1_a_relay_runs_until_nothing_is_left_although_what_it_claims_is_not_free(sagas: Sagas) -> None:
    saga = order()
    for number in range(40):
        sagas.start(saga, f"order {number}", {"declined": number % 2 == 0})
    report = await Relay(sagas.service.url, sagas=[saga]).run_until_empty()
    assert (report.completed, report.compensated) == (20, 20)


async def test_S_2_a_failed_attempt_leaves_nothing_and_is_retried(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("flaky")

    @saga.step(retry=SOON)
    def flaky(saga: SagaContext[Any]) -> None:
        write(saga, f"attempt {saga.attempt}")
        if saga.attempt < 3:
            raise ConnectionError("away")

    @saga.step
    def after(saga: SagaContext[Any]) -> None:
        write(saga, f"then {saga.attempt}")

    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await sagas.ended(one="completed")
    assert sagas.effects() == ["attempt 3", "then 1"]


async def test_S_3_what_keeps_failing_on_the_way_back_is_parked_with_an_audit_record(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("stuck")

    @saga.step
    def first(saga: SagaContext[Any]) -> None:
        write(saga, "first")

    @first.compensation(retry=RetryPolicy.table([0.05], max_attempts=2))
    def undo(saga: SagaContext[Any]) -> None:
        raise ConnectionError("away")

    @saga.step
    def second(saga: SagaContext[Any]) -> None:
        raise Refused("NO")

    sagas.start(saga, "one")
    events: list[Any] = []
    async with at_work(sagas.service, saga, events=events):
        parked = await sagas.state("one", 3)
    assert (parked["attempts"], parked["error_code"]) == (2, "CONNECTION")
    audit = sagas.service.rows(f"SELECT action FROM {sagas.service.table('audit')}")
    assert ("saga_parked",) in audit
    assert [type(event).__name__ for event in events].count("SagaParked") == 1


async def test_S_1_a_group_runs_at_the_same_time_each_in_its_own_transaction(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("grouped")
    together = threading.Barrier(2, timeout=20)
    is_sqlite = sagas.service.engine.dialect.name == "sqlite"  # which has one writer at a time

    def both(saga: Any, what: str) -> None:
        if not is_sqlite:
            together.wait()
        write(saga, what)

    @saga.step(group="g")
    def first(saga: SagaContext[Any]) -> None:
        both(saga, "first")

    @saga.step(group="g")
    def second(saga: SagaContext[Any]) -> None:
        both(saga, "second")

    @saga.call(group="g")
    async def third(saga: SagaContext[Any]) -> None: ...

    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await sagas.ended(one="completed")
    assert sorted(sagas.effects()) == ["first", "second"]
    assert sorted(sagas.steps("one")) == [("forward", step, "done") for step in ("first", "second", "third")]


async def test_S_5_a_signal_to_an_unknown_saga_is_retried(sagas: Sagas) -> None:
    saga = order()
    sagas.signal(saga, "nobody", "arrived", {"n": 1})
    delivery = sagas.service.table("delivery")
    rows = f"SELECT state, attempts, error_code FROM {delivery}"
    async with at_work(sagas.service, saga):
        await wait_for(lambda: sagas.service.rows(rows) == [(2, 1, "UNKNOWN_SAGA")])


async def test_S_1_what_is_no_saga_becomes_a_dead_letter(sagas: Sagas) -> None:
    saga = order()
    sagas.service.commit(Message.new("saga:order", {"n": 1}, type="whatever"))
    for table in ("outbox", "delivery"):
        sagas.service.execute(f"UPDATE {sagas.service.table(table)} SET queue = 'saga:order'")
    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await sagas.ended(one="completed")
        delivery = sagas.service.table("delivery")
        await wait_for(lambda: sagas.service.rows(f"SELECT state, error_code FROM {delivery}") == [(3, "NOT_A_SAGA")])


async def test_S_4_a_step_that_timed_out_cannot_commit_after_the_turn(sagas: Sagas) -> None:
    """Its thread was left behind: it goes on with the old token while the saga is undone under a new one."""
    saga: Saga[Any] = Saga("late")
    turned, ended = threading.Event(), threading.Event()

    @saga.step
    def first(saga: SagaContext[Any]) -> None:
        write(saga, "first")

    @first.compensation
    def undo(saga: SagaContext[Any]) -> None:
        write(saga, "undo")

    @saga.step(timeout=0.2, retry=RetryPolicy(max_attempts=1))
    def slow(saga: SagaContext[Any]) -> None:
        try:
            turned.wait(20)
            write(saga, "slow")
        finally:
            ended.set()

    sagas.start(saga, "one")
    events: list[Any] = []
    async with at_work(sagas.service, saga, events=events):
        if sagas.service.engine.dialect.name == "sqlite":  # the step has the only writer's lock: the turn waits for it
            await wait_for(
                lambda: "slow" in [one.step for event in events if isinstance(event, StepsEnded) for one in event.steps]
            )
        else:
            await sagas.ended(one="compensated")
        turned.set()
        await asyncio.to_thread(ended.wait, 20)
        await sagas.ended(one="compensated")
    assert sagas.effects() == ["first", "undo"]
    assert sagas.instance("one")["error_code"] == "TIMEOUT"


async def test_S_4_an_abort_in_mid_step_rolls_the_step_back(sagas: Sagas) -> None:
    if sagas.service.engine.dialect.name == "sqlite":
        pytest.skip("a step holds the only writer's lock, so that an abort comes before or after it")
    saga: Saga[Any] = Saga("aborted")
    begun, goes_on = threading.Event(), threading.Event()

    @saga.step
    def first(saga: SagaContext[Any]) -> None:
        write(saga, "first")

    @first.compensation
    def undo(saga: SagaContext[Any]) -> None:
        write(saga, "undo")

    @saga.step
    def second(saga: SagaContext[Any]) -> None:
        write(saga, "second")
        begun.set()
        goes_on.wait(20)

    sagas.start(saga, "one")
    async with at_work(sagas.service, saga):
        await asyncio.to_thread(begun.wait, 20)
        await sagas.abort(saga, "one", by="ada")
        goes_on.set()
        await sagas.ended(one="compensated")
    assert sagas.effects() == ["first", "undo"]
    assert sagas.instance("one")["aborted_by"] == "ada"


async def test_S_4_a_stop_finishes_the_step_and_gives_the_saga_back(sagas: Sagas) -> None:
    saga: Saga[Any] = Saga("stopped")
    begun, goes_on = threading.Event(), threading.Event()

    @saga.step
    def first(saga: SagaContext[Any]) -> None:
        begun.set()
        goes_on.wait(20)
        write(saga, "first")

    @saga.step
    def second(saga: SagaContext[Any]) -> None:
        write(saga, "second")

    sagas.start(saga, "one")
    async with at_work(sagas.service, saga) as relay:
        await asyncio.to_thread(begun.wait, 20)
        relay.stop()
        goes_on.set()
    assert sagas.steps("one") == [("forward", "first", "done")]
    delivery = sagas.delivery("one")
    assert delivery is not None
    assert (delivery["state"], delivery["claims"], delivery["attempts"]) == (0, 0, 0)
    async with at_work(sagas.service, saga):
        await sagas.ended(one="completed")
    assert sagas.effects() == ["first", "second"]
