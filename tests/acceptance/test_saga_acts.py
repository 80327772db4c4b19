"""Operators act on sagas that a relay runs, on every database: abort beside a running step, resume, skip, fork."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Admin, AsyncAdmin, RetryPolicy, Saga
from postroom.admin import SagaState
from postroom.errors import Refused, SagaActRefused
from tests.acceptance.saga_support import EFFECTS, Sagas, at_work, write
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.saga.context import SagaContext
    from tests.conftest import FreshDatabase

ONCE = RetryPolicy.table([0.1], max_attempts=1)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def sagas(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Sagas]:
    with closing(Service(ready_database(request.param))) as service:
        service.execute(EFFECTS[service.engine.dialect.name])
        yield Sagas(service)


class Shop:
    """A saga whose steps write what they do, and stop or fail where a test wants it."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.calls: list[str] = []
        self.holding = threading.Event()
        """A step runs, and waits to be let go."""
        self.let_go = threading.Event()
        self.holds: set[str] = set()
        self.saga: Saga[Any] = Saga("order")
        saga = self.saga

        @saga.step
        def reserve(saga: SagaContext[Any]) -> str:
            self._do(saga, "reserve")
            return "seat 7"

        @reserve.compensation(retry=ONCE)
        def release(saga: SagaContext[Any]) -> None:
            self._do(saga, "release")

        @saga.call
        def charge(saga: SagaContext[Any]) -> str:
            return self._call("charge")

        @charge.compensation(retry=ONCE)
        def refund(saga: SagaContext[Any]) -> str:
            return self._call("refund")

        @saga.step
        def ship(saga: SagaContext[Any]) -> None:
            self._do(saga, "ship")

    def _do(self, saga: SagaContext[Any], what: str) -> None:
        write(saga, f"{what} {saga.id}")
        self._perhaps(what)

    def _call(self, what: str) -> str:
        self.calls.append(what)
        self._perhaps(what)
        return what

    def _perhaps(self, what: str) -> None:
        if what in self.holds:
            self.holding.set()
            assert self.let_go.wait(30)
        if what in self.fails:
            raise Refused("NO", f"{what} is not possible")


async def test_S_5_an_abort_wins_over_the_step_that_is_running(sagas: Sagas) -> None:
    shop = Shop()
    shop.holds = {"ship"}
    async with at_work(sagas.service, shop.saga), AsyncAdmin(sagas.service.url) as admin:
        sagas.start(shop.saga, "1")
        await wait_for(shop.holding.is_set)
        aborting = asyncio.create_task(admin.abort_saga("order", "1", actor="ada", reason="the customer called"))
        if sagas.service.engine.dialect.name == "sqlite":  # the step's transaction keeps all others out: it wins
            shop.let_go.set()
            with pytest.raises(SagaActRefused, match="it has ended"):
                await aborting
            assert sagas.effects() == ["reserve 1", "ship 1"]
            return
        await aborting
        with pytest.raises(SagaActRefused, match="it goes back already"):
            await admin.abort_saga("order", "1", actor="eve")
        shop.let_go.set()
        await sagas.ended(**{"1": "compensated"})
        told = await admin.saga("order", "1")
    assert sagas.effects() == ["reserve 1", "release 1"]
    assert shop.calls == ["charge", "refund"]
    assert (told.aborted_by, told.turned_code) == ("ada", "ABORTED")
    assert "ada aborted it (ABORTED the customer called)" in told.explanation


async def test_S_5_an_abort_during_a_call_undoes_the_call_too(sagas: Sagas) -> None:
    shop = Shop()
    shop.holds = {"charge"}
    async with at_work(sagas.service, shop.saga), AsyncAdmin(sagas.service.url) as admin:
        sagas.start(shop.saga, "1")
        await wait_for(shop.holding.is_set)
        running = await admin.saga("order", "1")
        assert (running.state, [step.step for step in running.next]) == (SagaState.RUNNING, ["charge"])
        assert running.owner is not None
        assert f"by {running.owner}" in running.explanation
        await admin.abort_saga("order", "1", actor="ada")
        shop.let_go.set()
        await sagas.ended(**{"1": "compensated"})
    assert sagas.effects() == ["reserve 1", "release 1"]
    assert shop.calls == ["charge", "refund"]


async def test_S_5_a_parked_saga_goes_on_where_it_stopped_once_resumed(sagas: Sagas) -> None:
    shop = Shop()
    shop.fails = {"ship", "refund"}
    async with at_work(sagas.service, shop.saga), AsyncAdmin(sagas.service.url) as admin:
        sagas.start(shop.saga, "1")
        await sagas.state("1", 3)
        parked = await admin.saga("order", "1")
        assert (parked.state, parked.failed_step, parked.turned_code) == (SagaState.PARKED, "ship", "NO")
        await admin.resume_saga("order", "1", actor="ada")
        await wait_for(lambda: shop.calls == ["charge", "refund", "refund"])
        await sagas.state("1", 3)  # it failed again
        shop.fails = {"ship"}
        await admin.resume_saga("order", "1", actor="ada")
        await sagas.ended(**{"1": "compensated"})
        history = [act.action for act in (await admin.saga("order", "1")).history]
    assert history == ["saga_parked", "saga_resumed", "saga_parked", "saga_resumed"]
    assert sagas.effects() == ["reserve 1", "release 1"]


async def test_S_5_a_compensation_that_was_done_by_hand_is_skipped(sagas: Sagas) -> None:
    shop = Shop()
    shop.fails = {"ship", "refund"}
    async with at_work(sagas.service, shop.saga), AsyncAdmin(sagas.service.url) as admin:
        sagas.start(shop.saga, "1")
        await sagas.state("1", 3)
        await admin.skip_saga_step("order", "1", actor="ada", reason="paid back in cash")
        await sagas.ended(**{"1": "compensated"})
    assert shop.calls == ["charge", "refund"]
    assert sagas.effects() == ["reserve 1", "release 1"]
    assert sagas.steps("1")[-2:] == [("back", "charge", "skipped"), ("back", "reserve", "done")]


async def test_S_5_a_fork_runs_the_rest_and_undoes_only_that(sagas: Sagas) -> None:
    shop = Shop()
    async with at_work(sagas.service, shop.saga), AsyncAdmin(sagas.service.url) as admin:
        sagas.start(shop.saga, "1")
        await sagas.ended(**{"1": "completed"})
        await admin.fork_saga("order", "1", step="ship", new_id="again", actor="ada")
        await sagas.ended(again="completed")
        shop.fails = {"ship"}
        await admin.fork_saga("order", "1", step="charge", new_id="fails", actor="ada")
        await sagas.ended(fails="compensated")
    assert sagas.effects() == ["reserve 1", "ship 1", "ship again"]
    assert shop.calls == ["charge", "charge", "refund"]


async def test_S_5_of_resume_skip_and_abort_at_once_each_is_done_or_refused(sagas: Sagas) -> None:
    """Nothing is done twice, and the saga ends."""
    shop = Shop()
    shop.fails = {"ship", "refund"}
    url = sagas.service.url
    async with at_work(sagas.service, shop.saga):
        for n in range(5):
            sagas.start(shop.saga, f"r{n}")
            await sagas.state(f"r{n}", 3)
        shop.fails = set()

        def act(kind: str, n: int) -> str | None:
            with Admin(url) as admin:
                acts = {"resume": admin.resume_saga, "skip": admin.skip_saga_step, "abort": admin.abort_saga}
                try:
                    acts[kind]("order", f"r{n}", actor=kind)
                except SagaActRefused as error:
                    return str(error)
            return None

        for n in range(5):
            kinds = ("resume", "skip", "abort", "skip")
            done = await asyncio.gather(*(asyncio.to_thread(act, kind, n) for kind in kinds))
            assert done[2] is not None  # it goes back already
            assert [one for one in done if one is None], done
            await sagas.ended(**{f"r{n}": "compensated"})
            refunds = [step for step in sagas.steps(f"r{n}") if step[:2] == ("back", "charge")]
            assert len(refunds) == 1
    assert sorted(sagas.effects()) == sorted(f"{what} r{n}" for n in range(5) for what in ("reserve", "release"))
