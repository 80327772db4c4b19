"""Groups: at the same time, all end before the saga moves on, and each is undone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from postroom import RetryPolicy, Saga
from postroom.errors import Refused
from postroom.rules.saga_plan import Direction
from postroom.saga.running.left import RetryLater
from postroom.saga.running.memory_journal import MemoryJournal
from postroom.store.saga.values import Logged
from tests.unit.saga.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.saga.context import SagaContext
    from postroom.saga.running.journal import Record
    from postroom.saga.running.step_calls import Returned, StepCall

TWICE = RetryPolicy.table([1.0], max_attempts=2)


def prepared(calls: list[str], failing: dict[str, list[Exception | None]]) -> Saga[Any]:
    saga: Saga[Any] = Saga("prepared")
    both = asyncio.Barrier(2)

    async def ran(name: str) -> str:
        if not failing:
            await both.wait()  # each waits for the other: they do run at the same time
        calls.append(name)
        error = failing[name].pop(0) if failing.get(name) else None
        if error is not None:
            raise error
        return name

    @saga.step(group="prepare", retry=TWICE)
    async def stock(saga: SagaContext[Any]) -> str:
        return await ran("stock")

    @stock.compensation
    async def undo_stock(saga: SagaContext[Any]) -> None:
        calls.append("undo stock")

    @saga.call(group="prepare", retry=TWICE)
    async def card(saga: SagaContext[Any]) -> str:
        return await ran("card")

    @card.compensation
    async def undo_card(saga: SagaContext[Any]) -> None:
        calls.append("undo card")

    @saga.step
    async def ship(saga: SagaContext[Any]) -> None:
        calls.append(f"ship {saga.result(stock)} {saga.result(card)}")

    return saga


async def test_runs_at_the_same_time() -> None:
    calls: list[str] = []
    runs = Runs(prepared(calls, {}))
    await runs.take_up()
    assert sorted(calls[:2]) == ["card", "stock"]
    assert calls[2] == "ship stock card"


async def test_retries_only_what_failed() -> None:
    calls: list[str] = []
    runs = Runs(prepared(calls, {"card": [ConnectionError()]}))
    assert isinstance(await runs.take_up(), RetryLater)
    assert ("FORWARD", "stock", "DONE") in runs.rows
    await runs.until_settled()
    assert calls == ["stock", "card", "card", "ship stock card"]


async def test_undoes_the_others_and_a_call_that_may_have_happened() -> None:
    calls: list[str] = []
    runs = Runs(prepared(calls, {"card": [ConnectionError(), ConnectionError()]}))
    await runs.until_settled()
    assert calls == ["stock", "card", "card", "undo card", "undo stock"]
    assert runs.outcome == "COMPENSATED"


async def test_does_not_undo_a_call_of_the_group_that_was_refused_at_once() -> None:
    calls: list[str] = []
    runs = Runs(prepared(calls, {"card": [Refused("DECLINED")]}))
    await runs.until_settled()
    assert calls == ["stock", "card", "undo stock"]
    assert runs.journal.instance.failed_step == "card"


async def test_undoes_a_call_beside_a_step_that_failed() -> None:
    calls: list[str] = []
    runs = Runs(prepared(calls, {"stock": [Refused("NONE")]}))
    await runs.until_settled()
    assert calls == ["stock", "card", "undo card"]


async def test_data_are_read_only() -> None:
    saga = Saga("changing", data=dict[str, int])

    @saga.step(group="g")
    def first(saga: SagaContext[Any]) -> None:
        saga.data["n"] = 1

    @saga.step(group="g")
    def second(saga: SagaContext[Any]) -> None: ...

    runs = Runs(saga)
    await runs.until_settled()
    assert runs.outcome == "COMPENSATED"
    assert "read-only in a group" in runs.journal.instance.error_message


async def test_a_group_at_the_end_ends_the_saga() -> None:
    saga = Saga("grouped")

    @saga.call(group="g")
    def first(saga: SagaContext[Any]) -> None: ...

    @saga.call(group="g")
    def second(saga: SagaContext[Any]) -> None: ...

    runs = Runs(saga)
    await runs.take_up()
    assert runs.outcome == "COMPLETED"


async def test_undoes_one_that_is_done_although_its_answer_was_lost() -> None:
    class LosesAnswers(MemoryJournal):
        async def run_step(self, call: StepCall, record: Callable[[Returned], Record]) -> Logged:
            await super().run_step(call, record)
            return Logged.DONE_BEFORE

    calls: list[str] = []
    runs = Runs(prepared(calls, {"card": [Refused("NO")]}))
    runs.journal = LosesAnswers(runs.journal.message)
    await runs.until_settled()
    assert calls[:3] == ["stock", "card", "undo stock"]
    assert runs.outcome == "COMPENSATED"


async def test_a_default_that_a_deploy_has_added_to_the_data_is_no_change() -> None:
    class Before(msgspec.Struct):
        n: int

    class After(msgspec.Struct):
        n: int
        added: str = "x"

    def grouped(kind: type[Any]) -> Saga[Any]:
        saga: Saga[Any] = Saga("grouped", data=kind)
        saga.step(name="first", group="g")(lambda _saga: None)
        saga.step(name="second", group="g")(lambda _saga: None)
        return saga

    runs = Runs(grouped(Before), Before(1))
    await runs.take_up(grouped(After))
    assert runs.outcome == "COMPLETED"


async def test_one_that_is_done_gives_the_others_no_more_attempts() -> None:
    calls: list[str] = []
    away = [ConnectionError()] * 9
    saga = prepared(calls, {"stock": [*away[:1]], "card": [*away]})
    runs = Runs(saga)
    await runs.until_settled()
    assert calls == ["stock", "card", "stock", "card", "undo card", "undo stock"]  # two attempts each
    assert runs.journal.instance.rows[Direction.FORWARD, "stock"].attempts == 2


async def test_the_attempts_of_a_group_are_not_those_of_what_comes_next() -> None:
    attempts: list[int] = []
    saga: Saga[Any] = Saga("prepared")

    def fails_once(saga: SagaContext[Any]) -> None:
        attempts.append(saga.attempt)
        if saga.attempt == 1:
            raise ConnectionError

    for name in ("one", "two"):
        saga.call(group="g", name=name, retry=TWICE)(fails_once)
    saga.step(name="after", retry=TWICE)(fails_once)
    runs = Runs(saga)
    await runs.until_settled()
    assert attempts == [1, 1, 2, 2, 1, 2]
    assert runs.outcome == "COMPLETED"
