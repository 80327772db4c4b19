"""Sagas through the public surface: a relay runs them, an operator looks at them, on every database."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from postroom import RetryPolicy, Saga
from postroom.errors import SagaSettled
from postroom.saga import Refused, SagaContext
from tests.acceptance.saga_service import SagaService, effect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

each_database = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
one_database = pytest.mark.parametrize("kind", ["sqlite"])
QUICK = RetryPolicy.exponential(base=0.01, cap=0.02, max_attempts=3)


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[SagaService]:
    with closing(SagaService(ready_database(kind))) as service:
        yield service


@dataclass(frozen=True)
class Order:
    id: int
    fail_at: str = ""
    how: str = ""
    passed: tuple[str, ...] = ()


class Shop:
    """A saga with steps and calls, sync and async, of which each can fail in several ways."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.saga = saga = Saga("place_order", data=Order, deadline=900)

        @saga.step(retry=QUICK)
        def accept(saga: SagaContext[Order]) -> str:
            return self._step(saga)

        @accept.compensation(retry=QUICK)
        def cancel(saga: SagaContext[Order], result: str) -> None:
            self._undo(saga, result)

        @saga.call(retry=QUICK)
        async def charge(saga: SagaContext[Order]) -> str:
            return self._call(saga)

        @charge.compensation(retry=QUICK)
        def refund(saga: SagaContext[Order]) -> None:
            self._call(saga)

        @saga.call(retry=QUICK)
        def reserve(saga: SagaContext[Order]) -> str:
            return self._call(saga)

        @reserve.compensation(retry=QUICK)
        async def release(saga: SagaContext[Order]) -> None:
            self._call(saga)

        @saga.step(retry=QUICK, permanent=(ValueError,))
        def pack(saga: SagaContext[Order]) -> str:
            return self._step(saga)

        @pack.compensation(retry=QUICK)
        def unpack(saga: SagaContext[Order], result: str) -> None:
            self._undo(saga, result)

        @saga.step(retry=QUICK)
        def complete(saga: SagaContext[Order]) -> str:
            assert [saga.result(name) for name in ("accept", "charge", "pack")] == ["accept", "charge", "pack"]
            return self._step(saga)

    def _step(self, saga: SagaContext[Order]) -> str:
        effect(saga, saga.step)
        saga.data = replace(saga.data, passed=(*saga.data.passed, saga.step))
        self._fail(saga)
        return saga.step

    def _undo(self, saga: SagaContext[Order], result: str) -> None:
        assert result == saga.step == saga.result()
        effect(saga, f"undo {saga.step}")

    def _call(self, saga: SagaContext[Order]) -> str:
        assert saga.connection is None
        self.calls[saga.id].append((saga.step, saga.headers["postroom-saga-direction"]))
        self._fail(saga)
        return saga.step

    def _fail(self, saga: SagaContext[Order]) -> None:
        if saga.failure is not None or saga.step != saga.data.fail_at:
            return
        match saga.data.how:
            case "refuse":
                raise Refused("NO", "not today")
            case "value":
                raise ValueError("bad value")
            case "once" if saga.attempt > 1:
                return
            case _:
                raise ConnectionError("away")


@each_database
async def test_S_1_a_saga_runs_step_by_step_and_completes(service: SagaService) -> None:
    shop = Shop()
    ids = service.start(shop.saga, *(Order(n) for n in range(20)))
    await service.settled(shop.saga, ids=ids)
    for key in ids:
        assert service.effects(key) == ["accept", "pack", "complete"]
        assert shop.calls[key] == [("charge", "do"), ("reserve", "do")]
    seen = service.seen(shop.saga, ids[7])
    assert seen.state == "completed"
    assert [(one.step, one.attempts) for one in seen.steps] == [
        (name, 1) for name in ("accept", "charge", "reserve", "pack", "complete")
    ]
    assert seen.data is not None
    assert msgspec.json.decode(seen.data)["passed"] == ["accept", "pack", "complete"]


FORWARD = ["accept", "charge", "reserve", "pack", "complete"]
STEPS = ["accept", "pack", "complete"]


@each_database
async def test_S_1_a_failure_at_any_step_undoes_those_before_it_in_reverse(service: SagaService) -> None:
    shop = Shop()
    cases = [(step, how) for step in FORWARD for how in ("refuse", "fail", "once")] + [("pack", "value")]
    ids = dict(zip(cases, service.start(shop.saga, *(Order(1, step, how) for step, how in cases)), strict=True))
    await service.settled(shop.saga, ids=ids.values())
    for (step, how), key in ids.items():
        seen = service.seen(shop.saga, key)
        if how == "once":
            assert (seen.state, service.effects(key)) == ("completed", STEPS), (step, how)
            assert next(one.attempts for one in seen.steps if one.step == step) == 2
            continue
        done = FORWARD[: FORWARD.index(step)]
        undone_calls = [one for one in reversed(done) if one not in STEPS]
        if step not in STEPS and how != "refuse":
            undone_calls.insert(0, step)  # it may have happened
        undone = [f"undo {one}" for one in reversed(done) if one in STEPS]
        assert seen.state == "compensated", (step, how)
        assert service.effects(key) == [one for one in done if one in STEPS] + undone, (step, how)
        assert [one for one, direction in shop.calls[key] if direction == "undo"] == undone_calls, (step, how)
        code = {"refuse": "NO", "fail": "CONNECTION", "value": "INTERNAL_ERROR"}[how]
        assert (seen.failed_step, seen.turned_code) == (step, code)
        tried = next(one for one in seen.steps if one.step == step)
        assert tried.attempts == (3 if how == "fail" else 1), (step, how)


@each_database
async def test_S_5_the_deadline_undoes_what_waits(service: SagaService) -> None:
    saga = Saga("short", deadline=3)
    saga.step(name="a")(lambda saga: effect(saga, "a")).compensation(lambda saga: effect(saga, "undo a"))
    saga.wait("never", name="b")(lambda saga, event: None)
    [key] = service.start(saga, {})
    await service.settled(saga, ids=[key])
    seen = service.seen(saga, key)
    assert (seen.state, seen.turned_code, seen.failed_step) == ("compensated", "DEADLINE", "b")
    assert service.effects(key) == ["a", "undo a"]


@each_database
async def test_S_2_what_keeps_failing_after_the_pivot_is_parked_and_an_operator_resumes_it(
    service: SagaService,
) -> None:
    saga = Saga("pivoted")
    is_broken = [True]

    @saga.step(pivot=True)
    def pay(saga: Any) -> None:
        effect(saga, "pay")

    @saga.step(retry=QUICK)
    def ship(saga: Any) -> None:
        effect(saga, "ship")
        if is_broken:
            raise ConnectionError("no van")

    [key] = service.start(saga, {})
    told: list[str] = []
    async with service.relay(saga, on_dead=lambda message, code, text: told.append(code)):
        await service.reached(saga, [key])
        seen = service.seen(saga, key)
        assert (seen.state, service.effects(key), told) == ("parked", ["pay"], ["CONNECTION"])
        with pytest.raises(SagaSettled, match="passed its pivot"):
            await service.abort(saga, key, by="ann")
        is_broken.clear()
        resume = service.operator.resume_saga
        await asyncio.to_thread(resume, "pivoted", key, actor="ann", reason="the van is back")
        await service.reached(saga, [key], frozenset({"completed"}))
    assert service.effects(key) == ["pay", "ship"]
    assert [one.action for one in service.seen(saga, key).history] == ["saga_parked", "saga_resumed"]


@each_database
async def test_S_5_conditions_groups_and_sleeps(service: SagaService) -> None:
    saga = Saga("branching")
    meeting = threading.Barrier(3, timeout=20)
    soon = datetime.now(UTC) + timedelta(seconds=0.3)

    @saga.step(when=lambda data: data["large"])
    def approve(saga: Any) -> None:
        effect(saga, "approve")

    def together(saga: Any) -> str:
        if service.engine.dialect.name != "sqlite":  # which has one writer at a time
            meeting.wait()  # nobody gets through alone
        effect(saga, "together")
        return str(saga.step)

    for name in ("a", "b", "c"):
        saga.step(name=name, group="g")(together).compensation(lambda saga: effect(saga, f"undo {saga.result()}"))
    saga.sleep("nap", seconds=0.2)
    saga.sleep("until", until=lambda data: soon)

    @saga.step
    def end(saga: Any) -> None:
        assert datetime.now(UTC) >= soon - timedelta(seconds=0.1)
        assert [saga.result(name) for name in "abc"] == ["a", "b", "c"]
        if saga.data["large"]:
            raise Refused("TOO_LARGE")

    small, large = service.start(saga, {"large": False}, {"large": True})
    await service.settled(saga, ids=[small], saga_concurrency=1)
    await service.settled(saga, ids=[large], saga_concurrency=1)
    assert service.effects(small) == ["together"] * 3
    assert service.effects(large) == ["approve", *["together"] * 3, "undo c", "undo b", "undo a"]
    assert (service.seen(saga, small).state, service.seen(saga, large).state) == ("completed", "compensated")
    assert service.seen(saga, small).steps[0].outcome.name == "SKIPPED"


class Compact(msgspec.Struct):
    id: UUID
    total: Decimal
    placed: datetime


class Model(pydantic.BaseModel):
    id: UUID
    total: Decimal
    placed: datetime


@dataclass
class Plain:
    id: UUID
    total: Decimal
    placed: datetime


VALUES: dict[str, Any] = {"id": UUID(int=7), "total": Decimal("1.10"), "placed": datetime(2026, 1, 2, tzinfo=UTC)}


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
async def test_S_5_data_and_results_keep_their_types(service: SagaService) -> None:
    sagas = []
    for kind in (Compact, Model, Plain):
        saga: Saga[Any] = Saga(f"typed_{kind.__name__.lower()}", data=kind)

        @saga.step
        def price(saga: Any) -> Decimal:
            saga.data.total += 1
            return Decimal("2.20")

        @saga.step
        def check(saga: Any, kind: Any = kind, price: Any = price) -> None:
            assert saga.data == kind(**{**VALUES, "total": Decimal("2.10")})
            assert saga.result(price) == Decimal("2.20")

        sagas.append((saga, service.start(saga, kind(**VALUES))))
    async with service.relay(*(saga for saga, _ in sagas)):
        for saga, ids in sagas:
            await service.reached(saga, ids)
            seen = service.seen(saga, ids[0])
            assert seen.state == "completed", (saga, seen.turned_message)


@one_database
async def test_S_1_code_that_a_deploy_took_away_strands_the_saga_until_it_is_back(service: SagaService) -> None:
    def version(*, retired: bool, present: bool = True) -> Saga[Any]:
        saga = Saga("deployed")
        saga.step(name="new")(lambda saga: effect(saga, "new"))
        if present:
            declare = saga.retired if retired else saga.step
            declare(name="old")(lambda saga: effect(saga, "old"))
        return saga

    [key] = service.start(version(retired=False), {})
    gone = version(retired=False, present=False)
    await service.settled(gone, ids=[key], into=frozenset({"stranded"}))
    seen = service.seen(gone, key)
    assert "@deployed.retired" in seen.explanation
    assert seen.next[0].attempts == 0
    back = version(retired=True)
    service.execute(f"UPDATE {service.table('delivery')} SET due = '2000-01-01 00:00:00.000'")  # it waits 30 s
    [new] = service.start(back, {})
    await service.settled(back, ids=[key, new])
    assert (service.effects(key), service.effects(new)) == (["new", "old"], ["new"])


@each_database
async def test_S_2_a_compensation_has_all_the_attempts_of_its_policy(service: SagaService) -> None:
    saga = Saga("persistent")
    many = RetryPolicy.table([0.01], max_attempts=12)

    def undo(saga: Any) -> None:
        raise ConnectionError("away")

    saga.call(name="a")(lambda saga: None).compensation(retry=many)(undo)

    @saga.step(retry=many)
    def b(saga: Any) -> None:
        raise ConnectionError("away")

    [key] = service.start(saga, {})
    await service.settled(saga, ids=[key])
    seen = service.seen(saga, key)
    assert (seen.state, seen.steps[1].attempts, seen.next[0].attempts) == ("parked", 12, 12)
