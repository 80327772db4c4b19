"""How sagas are declared, and what declarations are refused."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from postroom import RetryPolicy, Saga
from postroom.errors import InvalidMessage, InvalidSetting, UnusableConnection
from postroom.rules.saga_plan import Kind, PlannedStep

if TYPE_CHECKING:
    from collections.abc import Callable


def nothing(saga: Any) -> None: ...


def with_event(saga: Any, event: Any) -> None: ...


@pytest.fixture
def saga() -> Saga[Any]:
    return Saga("place_order")


def test_the_plan_is_what_is_declared_in_that_order(saga: Saga[Any]) -> None:
    @saga.step
    def reserve_stock(saga: Any) -> str:
        return "reserved"

    @reserve_stock.compensation
    def release_stock(saga: Any) -> None: ...

    @saga.call(group="prepare")
    async def charge(saga: Any) -> None: ...

    @charge.compensation(retry=RetryPolicy.worker(), timeout=3)
    async def refund(saga: Any, result: Any) -> None: ...

    @saga.step(name="notify", group="prepare")
    def tell(saga: Any) -> None: ...

    @saga.wait("parcel", timeout=60, on_timeout="continue")
    def delivered(saga: Any, event: Any) -> None: ...

    saga.sleep("cooling_off", seconds=3600)
    saga.step(pivot=True, name="ship")(nothing)

    @saga.retired(kind="call")
    def wrap(saga: Any) -> None: ...

    assert saga.plan == (
        PlannedStep("reserve_stock", compensated=True),
        PlannedStep("charge", Kind.CALL, "prepare", compensated=True, undo_attempts=6),
        PlannedStep("notify", group="prepare"),
        PlannedStep("delivered", Kind.WAIT, event="parcel"),
        PlannedStep("cooling_off", Kind.SLEEP),
        PlannedStep("ship", pivot=True),
    )
    assert saga.steps["wrap"].kind is Kind.CALL
    assert saga.steps["wrap"].retired
    assert saga.steps["charge"].undo is refund
    assert (refund.timeout, refund.retry, refund.is_async) == (3, RetryPolicy.worker(), True)
    assert reserve_stock(None) == "reserved", "called directly, a step is its function"


def test_a_step_is_retried_soon_and_a_compensation_for_long(saga: Saga[Any]) -> None:
    step = saga.step(nothing)
    undo = step.compensation(nothing)
    assert (step.retry.schedule, step.retry.max_attempts) == (RetryPolicy.consistency().schedule, 3)
    assert step.timeout == undo.timeout == 30
    assert undo.retry.max_attempts == 15
    assert [undo.retry.delay(attempt, 0.5) for attempt in (1, 2, 10, 11, 14)] == [1, 2, 512, 600, 600]


def test_a_step_added_later_is_in_the_plan_of_new_instances(saga: Saga[Any]) -> None:
    saga.step(nothing)
    earlier = saga.start_message({}, "1")
    saga.step(name="added")(nothing)
    later = saga.start_message({}, "1")
    assert earlier.headers["postroom-saga-plan"] == '[["nothing"]]'
    assert later.headers["postroom-saga-plan"] == '[["nothing"],["added"]]'
    assert earlier.digest == later.digest, "the same start after a deploy is no conflict"


def test_a_sleep_may_have_a_function_and_a_compensation(saga: Saga[Any]) -> None:
    sleep = saga.sleep("cooling_off", until=lambda data: data["until"])
    assert sleep(nothing) is sleep
    sleep.compensation(nothing)
    assert saga.plan == (PlannedStep("cooling_off", Kind.SLEEP, compensated=True),)
    with pytest.raises(InvalidSetting, match="'cooling_off' already has the function nothing"):
        sleep(nothing)


def test_partials_and_callable_objects_can_be_steps(saga: Saga[Any]) -> None:
    class Charge:
        async def __call__(self, saga: Any) -> None: ...

    assert saga.step(name="one")(partial(with_event, event=3)).parameters == ["saga"]
    assert saga.call(name="two")(Charge()).is_async
    with pytest.raises(InvalidSetting, match="has no name: give one with name=…"):
        saga.step(partial(nothing))


def generator(saga: Any) -> Any:
    yield saga


async def asynchronous(data: Any) -> bool:
    return bool(data)


def by_name(saga: Any, *, order: int) -> None: ...


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a bad name": (lambda saga: saga.step(name="Größe")(nothing), "step's name 'Größe' is not valid: use 1 to 50"),
    "a long name": (lambda saga: saga.step(name="x" * 51)(nothing), "use 1 to 50"),
    "a bad group": (lambda saga: saga.step(group="A B")(nothing), "group's name 'A B'"),
    "a bad event": (lambda saga: saga.wait("a/b")(with_event), "event's name 'a/b'"),
    "a second time": (lambda saga: saga.step(name="first")(nothing), "already has a step 'first'"),
    "no function": (lambda saga: saga.step(name="x")(3), "step 'x' is 3, not a function"),
    "a generator": (lambda saga: saga.call(generator), "generator is a generator"),
    "no parameter": (lambda saga: saga.step(name="x")(lambda: 1), r"must take \(saga\)$"),
    "two parameters": (lambda saga: saga.step(with_event), r"with_event\(.*\) -> 'None' must take \(saga\)$"),
    "one by name": (lambda saga: saga.step(by_name), r"must take \(saga\)$"),
    "three in a wait": (
        lambda saga: saga.wait("parcel", name="x")(lambda a, b, c: 1),
        r"must take \(saga\) or \(saga, event\)",
    ),
    "no time": (lambda saga: saga.step(timeout=0)(nothing), "timeout of step 'nothing' is 0: give seconds above 0"),
    "a bad time to wait": (lambda saga: saga.wait("parcel", timeout=-1)(with_event), "is -1: give seconds"),
    "a policy": (lambda saga: saga.step(retry=3)(nothing), "retry of step 'nothing' is 3: give a RetryPolicy"),
    "errors": (lambda saga: saga.step(permanent=("NO",))(nothing), r"permanent of step .* is \('NO',\)"),
    "one error": (lambda saga: saga.step(permanent=3)(nothing), "permanent of step .* is 3"),
    "an async condition": (lambda saga: saga.step(when=asynchronous)(nothing), "when of step .* give a sync function"),
    "an answer": (lambda saga: saga.step(when=True)(nothing), "when of step 'nothing' is True"),
    "no end": (lambda saga: saga.wait("parcel", on_timeout="give up")(with_event), "on_timeout = 'give up'"),
    "a wait's group": (lambda saga: saga._declarations.add(_wait_in_group()), "is a wait, which cannot be in a group"),
    "a pivot's group": (lambda saga: saga.step(group="g", pivot=True)(nothing), "is the pivot, which cannot be in a"),
    "a sleep without time": (lambda saga: saga.sleep("x"), "give either seconds=… or until=…"),
    "a sleep with two": (lambda saga: saga.sleep("x", seconds=1, until=len), "give either seconds=… or until=…"),
    "a sleep of text": (lambda saga: saga.sleep("x", seconds="1"), "seconds of sleep 'x' is '1'"),
    "a sleep until a time": (lambda saga: saga.sleep("x", until=3), "until of sleep 'x' is 3"),
    "a retired sleep": (lambda saga: saga.retired(kind="sleep")(nothing), "kind = 'sleep'"),
}


def _wait_in_group() -> Any:
    from postroom.saga.steps import Step

    return Step(with_event, "x", Kind.WAIT, group="g", event="parcel")


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_declaration_is_refused_and_leaves_nothing(saga: Saga[Any], case: str) -> None:
    saga.step(name="first")(nothing)
    declare, text = REFUSED[case]
    with pytest.raises(InvalidSetting, match=text):
        declare(saga)
    assert list(saga.steps) == ["first"]


def test_the_steps_of_a_group_stand_together(saga: Saga[Any]) -> None:
    saga.step(name="a", group="g")(nothing)
    saga.step(name="b")(nothing)
    with pytest.raises(InvalidSetting, match="step 'c' is in group 'g', but 'b' stands between"):
        saga.step(name="c", group="g")(nothing)


def test_there_is_one_pivot_and_nothing_after_it_is_undone(saga: Saga[Any]) -> None:
    pivot = saga.call(name="a", pivot=True)(nothing)
    pivot.compensation(nothing)
    with pytest.raises(InvalidSetting, match="has two pivots, 'a' and 'b'"):
        saga.step(name="b", pivot=True)(nothing)
    behind = saga.step(name="c")(nothing)
    with pytest.raises(InvalidSetting, match=r"nothing of 'c' would never run: after the pivot 'a'"):
        behind.compensation(nothing)


def test_a_step_has_one_compensation_and_a_compensation_none(saga: Saga[Any]) -> None:
    step = saga.step(nothing)
    undo = step.compensation(with_event)
    with pytest.raises(InvalidSetting, match="'nothing' already has the compensation with_event"):
        step.compensation(nothing)
    with pytest.raises(InvalidSetting, match="with_event is a compensation, and cannot have one"):
        _ = undo.compensation
    with pytest.raises(InvalidSetting, match=r"must take \(saga\) or \(saga, result\)"):
        saga.step(name="x")(nothing).compensation(lambda: None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": ""}, "saga's name '' is not valid"),
        ({"name": "place order"}, "saga's name 'place order'"),
        ({"data": 3}, "data = 3 is not a class"),
        ({"data": Saga}, "is not a class that JSON can become"),
        ({"deadline": 0}, "deadline of saga 'x' is 0"),
        ({"deadline": "900"}, "deadline of saga 'x' is '900'"),
        ({"max_data_bytes": 0}, "max_data_bytes = 0"),
        ({"transactions": 3}, "transactions = 3 opens none"),
        ({"table_prefix": "a-b"}, "a-b"),
    ],
)
def test_a_bad_saga_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSetting, match=text):
        Saga(**{"name": "x", **options})


def test_a_saga_without_steps_cannot_start(saga: Saga[Any]) -> None:
    with pytest.raises(InvalidSetting, match="saga 'place_order' has no step"):
        saga.start_message({})


def test_an_event_that_no_wait_is_for_is_refused() -> None:
    nowhere = object()
    bare: Saga[Any] = Saga("deliver")
    with pytest.raises(UnusableConnection):  # it accepts the event, and so looks at the connection
        bare.signal(nowhere, "one", "parcle")
    saga: Saga[Any] = Saga("deliver")
    for event in ("parcel", "letter"):
        saga.wait(event, name=f"wait_for_{event}")(lambda saga: None)
    with pytest.raises(InvalidMessage, match="saga 'deliver' waits for no event 'parcle': it waits for letter, parcel"):
        saga.signal(nowhere, "one", "parcle")
    with pytest.raises(UnusableConnection):
        saga.signal(nowhere, "one", "parcel")
    saga.retired(kind="wait", name="older")(lambda saga: None)  # whose event only its instances know
    with pytest.raises(UnusableConnection):
        saga.signal(nowhere, "one", "parcle")


async def test_an_event_that_no_wait_is_for_is_refused_by_asignal() -> None:
    saga: Saga[Any] = Saga("deliver")
    saga.wait("parcel", name="delivered")(lambda saga: None)
    with pytest.raises(InvalidMessage, match="waits for no event 'parcle'"):
        await saga.asignal(object(), "one", "parcle")
