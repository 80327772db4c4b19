"""CompensatableOperations: what is run, what is undone and in which order, and what is raised."""

from __future__ import annotations

import asyncio
import copy
import logging
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import CompensatableOperations, RetryPolicy
from postroom.errors import InvalidSetting, OperationFailed


@dataclass
class World:
    """What happened, and which calls fail."""

    failing: dict[str, BaseException] = field(default_factory=dict)
    happened: list[str] = field(default_factory=list)

    def act(self, what: str) -> None:
        self.happened.append(what)
        if what in self.failing:
            raise self.failing[what]


@dataclass
class Step:
    """An operation as an object."""

    world: World
    name: str

    def execute(self) -> str:
        self.world.act(f"do {self.name}")
        return f"result of {self.name}"

    def compensate(self, result: str) -> None:
        assert result == f"result of {self.name}"
        self.world.act(f"undo {self.name}")


class AsyncStep(Step):
    async def execute(self) -> str:  # type: ignore[override]  # as a user's operation may be
        await asyncio.sleep(0)
        return super().execute()

    async def compensate(self, result: str) -> None:  # type: ignore[override]  # as a user's operation may be
        await asyncio.sleep(0)
        super().compensate(result)


def run(operations: CompensatableOperations, how: str) -> list[Any]:
    return operations.run() if how == "sync" else asyncio.run(operations.arun())


KINDS: dict[str, type[Step]] = {"sync": Step, "async": AsyncStep}
both = pytest.mark.parametrize("how", KINDS)


@both
def test_S_6_all_are_executed_in_order_and_their_results_returned(how: str) -> None:
    world = World()
    operations = CompensatableOperations([KINDS[how](world, name) for name in ("reserve", "charge")])
    assert run(operations, how) == ["result of reserve", "result of charge"]
    assert run(operations, how) == ["result of reserve", "result of charge"]  # every run is one of its own
    assert world.happened == ["do reserve", "do charge"] * 2


@both
def test_S_6_a_failure_compensates_in_reverse_and_names_the_operation(how: str) -> None:
    declined = ValueError("declined")
    world = World({"do charge": declined})
    operations = CompensatableOperations(KINDS[how](world, name) for name in ("reserve", "pack", "charge", "send"))
    with pytest.raises(OperationFailed, match=r"^operation charge failed$") as raised:
        run(operations, how)
    assert world.happened == ["do reserve", "do pack", "do charge", "undo pack", "undo reserve"]
    error = raised.value
    assert error.__cause__ is declined
    assert (error.operation, error.compensated, error.not_compensated) == ("charge", ("pack", "reserve"), ())


@both
def test_S_6_what_cannot_be_compensated_is_logged_as_critical_and_the_rest_goes_on(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    away = ConnectionError("stock is away")
    world = World({"do charge": ValueError("declined"), "undo pack": away})
    operations = CompensatableOperations(KINDS[how](world, name) for name in ("reserve", "pack", "charge"))
    with caplog.at_level(logging.INFO, "postroom.compensation"), pytest.raises(OperationFailed) as raised:
        run(operations, how)
    assert world.happened[-2:] == ["undo pack", "undo reserve"]
    error = raised.value
    assert str(error) == "operation charge failed; these could not be compensated and must be undone by hand: pack"
    assert error.not_compensated == (("pack", "result of pack", away),)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "operation completed: reserve"),
        ("INFO", "operation completed: pack"),
        ("ERROR", "operation failed: charge: ValueError: declined; operations to compensate: 2"),
        ("CRITICAL", "operation NOT compensated, undo it by hand: pack: ConnectionError: stock is away"),
        ("INFO", "operation compensated: reserve"),
    ]
    assert "result of" not in caplog.text + repr(error)
    twin = copy.copy(OperationFailed("charge", ["reserve"]))  # as pickling does it
    assert (twin.operation, twin.compensated) == ("charge", ("reserve",))


names = st.lists(st.sampled_from("abcdef"), unique=True, max_size=6)


@given(names, st.sets(st.sampled_from([f"{act} {name}" for act in ("do", "undo") for name in "abcdef"])))
@both
def test_S_6_whatever_fails_all_that_was_done_is_undone_once_or_reported(
    how: str, steps: list[str], failing: set[str]
) -> None:
    world = World({what: OSError(what) for what in failing})
    operations = CompensatableOperations([KINDS[how](world, name) for name in steps])
    fails = next((place for place, name in enumerate(steps) if f"do {name}" in failing), None)
    if fails is None:
        assert run(operations, how) == [f"result of {name}" for name in steps]
        assert world.happened == [f"do {name}" for name in steps]
        return
    with pytest.raises(OperationFailed) as raised:
        run(operations, how)
    done = steps[:fails]
    assert world.happened == [f"do {name}" for name in steps[: fails + 1]] + [f"undo {name}" for name in done[::-1]]
    error = raised.value
    assert [*error.compensated] == [name for name in done[::-1] if f"undo {name}" not in failing]
    assert [one.operation for one in error.not_compensated] == [
        name for name in done[::-1] if f"undo {name}" in failing
    ]


def test_S_6_pairs_of_functions_and_other_forms_of_names() -> None:
    undone: list[Any] = []

    def reserve() -> int:
        return 7

    def mail() -> None: ...

    class Charge:
        name = "charge"

        def execute(self) -> str:
            return "paid"

        def compensate(self, result: str) -> None:
            undone.append(result)

    class Ship(Charge):
        def name(self) -> str:  # type: ignore[override]  # the other form
            return "ship"

        def execute(self) -> str:
            raise OSError

    operations = CompensatableOperations([(reserve, undone.append), (mail, None), Charge(), Ship()])
    with pytest.raises(OperationFailed) as raised:
        operations.run()
    assert undone == ["paid", 7]
    assert raised.value.operation == "ship"
    assert raised.value.compensated == ("charge", "reserve")


def test_S_6_a_compensation_may_have_a_retry_policy() -> None:
    tries: list[int] = []

    @RetryPolicy.consistency().retrying(sleep=lambda _: None)
    def refund(payment: int) -> None:
        tries.append(payment)
        if len(tries) < 3:
            raise ConnectionError

    def fail() -> None:
        raise OSError

    with pytest.raises(OperationFailed, match=r"failed$"):
        CompensatableOperations([(lambda: 7, refund), (fail, None)]).run()
    assert tries == [7, 7, 7]


@pytest.mark.parametrize("where", ["do charge", "undo pack"])
@both
def test_S_6_an_interrupt_compensates_the_rest_and_is_raised_as_it_is(how: str, where: str) -> None:
    interrupt = KeyboardInterrupt()
    world = World({"do charge": OSError(), where: interrupt})
    operations = CompensatableOperations(KINDS[how](world, name) for name in ("reserve", "pack", "charge"))
    with pytest.raises(KeyboardInterrupt) as raised:
        run(operations, how)
    assert raised.value is interrupt
    assert world.happened[-2:] == ["undo pack", "undo reserve"]
    assert raised.value.__notes__[0].startswith("operation charge failed")


def test_S_6_a_cancelled_task_compensates_even_if_it_is_cancelled_again() -> None:
    world = World()
    executing, compensating, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        executing.set()
        await asyncio.Event().wait()

    async def slowly(_: None) -> None:
        compensating.set()
        await go_on.wait()
        world.act("undo slowly")

    async def start() -> None: ...

    async def cancelled() -> None:
        operations = CompensatableOperations([AsyncStep(world, "reserve"), (start, slowly), (hang, None)])
        task = asyncio.create_task(operations.arun())
        await executing.wait()
        task.cancel()
        await compensating.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert world.happened == ["do reserve", "undo slowly", "undo reserve"]


def test_S_6_a_cancellation_while_compensating_is_raised_after_it() -> None:
    world = World({"do charge": OSError()})
    compensating, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(_: str) -> None:
        compensating.set()
        await go_on.wait()
        world.act("undo slowly")

    async def cancelled() -> None:
        operations = CompensatableOperations([(lambda: "", slowly), Step(world, "charge")])
        task = asyncio.create_task(operations.arun())
        await compensating.wait()
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        assert raised.value.__notes__ == ["operation charge failed"]

    asyncio.run(cancelled())
    assert world.happened == ["do charge", "undo slowly"]


async def _async(*_: Any) -> None: ...


@pytest.mark.parametrize(
    ("given_operations", "message"),
    [
        (7, "the operations are of type int: give a list of them"),
        ([7], r"operation 1 is of type int: give an object with execute\(\), compensate\(result\) and a name, or"),
        ([(print, print), (print,)], "operation 2 is of type tuple"),
        ([Step], "operation 1 is the class Step: give an object"),
        ([(print, 7)], "what compensates operation 1 is of type int, which cannot be called"),
        ([(None, print)], "what executes operation 1 is of type NoneType"),
        ([(lambda: 7, lambda: 8)], r"what compensates operation 1, .*<lambda>\(\), must take one argument, what its"),
        ([(lambda order: order, print)], r"what executes operation 1, .*<lambda>\(order\), must take no arguments"),
    ],
)
def test_S_6_what_is_no_operation_is_refused_before_anything_runs(given_operations: Any, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        CompensatableOperations(given_operations)


def test_S_6_async_operations_need_arun() -> None:
    world = World()
    with pytest.raises(InvalidSetting, match=r"AsyncStep.execute is async: use `await operations.arun\(\)`"):
        CompensatableOperations([Step(world, "reserve"), AsyncStep(world, "charge")]).run()
    with pytest.raises(InvalidSetting, match="_async is async"):
        CompensatableOperations([(print, _async)]).run()
    assert world.happened == []
    with pytest.raises(OperationFailed) as raised:
        CompensatableOperations([Step(world, "reserve"), (lambda: asyncio.sleep(0), None)]).run()
    assert "returned something to await" in str(raised.value.__cause__)
    assert world.happened == ["do reserve", "undo reserve"]
