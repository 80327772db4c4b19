"""Sagas in memory: `run_saga`, `arun_saga` and `every_failure`."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Saga
from postroom.errors import InvalidMessage, InvalidSetting, Refused
from postroom.testing import arun_saga, every_failure, run_saga

if TYPE_CHECKING:
    from postroom.saga import SagaContext
    from postroom.testing import SagaRun


@dataclass(frozen=True)
class Order:
    id: int
    total: int = 10
    parcel: str = ""


class Shop:
    """Stock and money, and a saga that moves both."""

    def __init__(self) -> None:
        self.stock = 5
        self.paid: dict[str, int] = {}
        self.saga = saga = Saga("place_order", data=Order, deadline=3600)

        @saga.step
        def reserve_stock(saga: SagaContext[Order]) -> int:
            self.stock -= 1
            return self.stock

        @reserve_stock.compensation
        def release_stock(saga: SagaContext[Order], result: int) -> None:
            assert result == 4
            self.stock += 1

        @saga.call
        async def charge(saga: SagaContext[Order]) -> dict[str, int]:
            self.paid[saga.key] = saga.data.total
            return {"paid": saga.data.total}

        @charge.compensation
        async def refund(saga: SagaContext[Order]) -> None:
            self.paid.pop(f"{saga.key.removesuffix('undo')}do", None)

        @saga.wait("parcel", timeout=600)
        def delivered(saga: SagaContext[Order], event: dict[str, str]) -> None:
            saga.data = replace(saga.data, parcel=event["number"])

        @saga.step(when=lambda order: order.total > 100)
        def give_present(saga: SagaContext[Order]) -> None: ...

        @saga.step(pivot=True)
        def close(saga: SagaContext[Order]) -> None: ...

        self.charge = charge

    def run(self, order: Order = Order(7), **options: Any) -> SagaRun[Order]:  # noqa: B008 - frozen
        return run_saga(self.saga, order, **{"events": {"parcel": {"number": "P1"}}, **options})

    def is_as_before(self) -> bool:
        return (self.stock, self.paid) == (5, {})


def test_S_1_an_undisturbed_saga_completes() -> None:
    shop = Shop()
    run = shop.run(id="order-7")
    run.assert_completed()
    assert (run.name, run.id, run.state) == ("place_order", "order-7", "completed")
    assert run.done == ["reserve_stock", "charge", "delivered", "close"]
    assert run.skipped == ["give_present"]
    assert run.data == Order(7, 10, "P1")
    assert run.result(shop.charge) == run.result("charge") == {"paid": 10}
    assert run.result("close") is None
    assert run.keys["charge", "do"] == "place_order/order-7/charge/do"
    with pytest.raises(LookupError, match="has no step 'chrage': it has reserve_stock, charge"):
        run.result("chrage")


def test_S_1_a_failed_step_is_retried_and_then_all_is_undone_in_reverse() -> None:
    shop = Shop()
    run = shop.run(fail_at="charge")
    run.assert_compensated("charge", "reserve_stock")
    assert shop.is_as_before()
    assert [(one.step, one.attempt, str(one.end)) for one in run.timeline] == [
        ("reserve_stock", 1, "done"),
        ("charge", 1, "retry"),
        ("charge", 2, "retry"),
        ("charge", 3, "failed"),
        ("charge", 1, "done"),
        ("reserve_stock", 1, "done"),
    ]
    assert run.failed_step == "charge"
    assert "the test lets charge fail" in run.error_message
    assert run.keys["charge", "undo"] == run.keys["charge", "do"].removesuffix("do") + "undo"


def test_S_4_a_call_that_refuses_at_once_is_not_undone() -> None:
    run = Shop().run(fail={"charge": Refused("CARD_DECLINED", "no money")})
    run.assert_compensated("reserve_stock")
    assert (run.error_code, run.error_message) == ("CARD_DECLINED", "no money")


def test_S_1_a_compensation_knows_why_the_saga_is_undone() -> None:
    saga = Saga("reasons")
    told: list[Any] = []
    saga.step(name="a")(lambda saga: told.append(saga.failure)).compensation(lambda saga: told.append(saga.failure))
    saga.step(name="b")(lambda saga: None)
    run_saga(saga, {}, fail={"b": Refused("NO_STOCK", "no chair")}, fail_undo={"a": [ValueError()]})
    assert told == [None, ("b", "NO_STOCK", "no chair")], "also after a retry"


def test_S_5_a_step_that_fails_once_is_tried_again() -> None:
    shop = Shop()
    run = shop.run(fail={"charge": [ConnectionError("away"), None], "reserve_stock": [KeyError]})
    run.assert_completed()
    assert shop.stock == 4
    assert 0.15 < run.timeline[-1].at < 1, "by the policy, and in no time"


def test_S_5_an_event_that_never_comes_undoes_the_saga() -> None:
    run = Shop().run(events={})
    run.assert_compensated("charge", "reserve_stock")
    assert (run.failed_step, run.error_code) == ("delivered", "TIMEOUT")
    assert run.timeline[-1].at == pytest.approx(600)


def test_S_5_the_deadline_undoes_the_saga() -> None:
    saga = Saga("slow", deadline=60)
    first = saga.step(name="first")(lambda saga: None)
    first.compensation(lambda saga: None)
    saga.sleep("long", seconds=100)
    run = run_saga(saga, {})
    run.assert_compensated("first")
    assert (run.failed_step, run.error_code, run.timeline[-1].at) == ("long", "DEADLINE", 60)


def test_a_wait_without_end_is_reported_as_waiting() -> None:
    saga = Saga("patient")
    saga.wait("parcel", name="delivered")(lambda saga, event: None)
    run = run_saga(saga, {})
    assert run.state == "waiting"
    with pytest.raises(AssertionError, match=r"the saga should have completed\npatient .*  waiting"):
        run.assert_completed()


def test_a_sleep_takes_no_time() -> None:
    saga = Saga("sleepy")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    saga.sleep("nap", seconds=3600)
    saga.sleep("night", until=lambda data: tomorrow)
    run = run_saga(saga, {})
    run.assert_completed()
    assert run.timeline[0].at == 3600
    assert run.timeline[1].at == pytest.approx(86400, abs=10)


@pytest.mark.parametrize(
    ("told", "problem"),
    [("tomorrow", "returned str"), (datetime(2030, 1, 1), "returned a datetime without a time zone")],  # noqa: DTZ001 - that is it
)
def test_a_sleep_until_what_is_no_time_fails_at_once_and_says_what_to_return(told: object, problem: str) -> None:
    saga = Saga("sleepy")
    saga.sleep("night", until=lambda data: told)  # type: ignore[arg-type, return-value]  # as users may
    run = run_saga(saga, {})
    assert [one.attempt for one in run.timeline] == [1]
    assert f"until of sleep 'night' {problem}: return a datetime with one" in run.error_message


def test_what_keeps_failing_after_the_pivot_parks_the_saga() -> None:
    saga = Saga("pivoted")
    saga.step(name="pay", pivot=True)(lambda saga: None)
    saga.step(name="ship")(lambda saga: None)
    run = run_saga(saga, {}, fail={"ship": ValueError("broken")})
    run.assert_parked()
    run.assert_parked("ship")
    assert run.error_code == "INTERNAL_ERROR"
    with pytest.raises(AssertionError, match="pay should have parked it, but ship did"):
        run.assert_parked("pay")


def test_a_compensation_that_keeps_failing_parks_the_saga() -> None:
    shop = Shop()
    run = shop.run(fail_at="charge", fail_undo={"charge": ConnectionError("away")})
    run.assert_parked("charge")
    assert sum(one.step == "charge" and one.direction == 1 for one in run.timeline) == 15
    assert shop.stock == 4, "what stands before it is not undone either"


def test_steps_of_a_group_run_together_and_are_undone_one_by_one() -> None:
    saga = Saga("together")
    for name in ("a", "b", "c"):
        step = saga.step(name=name, group="g")(lambda saga: saga.step)
        step.compensation(lambda saga, result: None)
    saga.step(name="last")(lambda saga: None)
    run_saga(saga, {}).assert_completed()
    run_saga(saga, {}, fail_at="last").assert_compensated("c", "b", "a")
    run_saga(saga, {}, fail={"b": Refused("NO")}).assert_compensated("c", "a")


def test_a_failed_assertion_tells_the_story() -> None:
    run = Shop().run(fail_at="charge", id="order-7")
    with pytest.raises(AssertionError) as raised:
        run.assert_compensated("reserve_stock")
    text = str(raised.value)
    assert "should have been undone: reserve_stock; but it was: charge, reserve_stock" in text
    assert "place_order order-7  compensated  failed at charge: INTERNAL_ERROR" in text
    assert "✓ reserve_stock" in text
    assert "↩ undo charge" in text


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"fail_at": "chrage"}, InvalidSetting, "has no step 'chrage': it has reserve_stock, charge"),
        ({"fail": {"charge": 3}}, InvalidSetting, "fail of 'charge' is 3: give an exception"),
        ({"fail": {"charge": ["NO"]}}, InvalidSetting, "fail of 'charge' is"),
        ({"fail_undo": {"close": ValueError()}}, InvalidSetting, "'close' has no compensation"),
        ({"events": {"parsel": 1}}, InvalidSetting, "never takes an event 'parsel': it waits for parcel"),
        ({"id": "a\n"}, InvalidMessage, "the saga's id"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Shop().run(**options)


def test_sync_functions_run_in_the_thread_of_the_test_where_no_loop_runs() -> None:
    saga = Saga("threads")

    @saga.step
    def sync(saga: Any) -> list[int]:
        asyncio.run(asyncio.sleep(0))
        return [threading.get_ident()]

    run = run_saga(saga, {})
    run.assert_completed()
    assert run.result(sync) == [threading.get_ident()]


def test_a_test_can_fail_or_skip_from_within_a_function() -> None:
    saga = Saga("skipping")
    saga.step(name="x")(lambda saga: pytest.fail("no"))
    with pytest.raises(pytest.fail.Exception, match="no"):
        run_saga(saga, {})


def test_even_stop_iteration_is_only_a_failure() -> None:
    saga = Saga("iterating")
    saga.step(name="x")(lambda saga: next(iter(())))
    run_saga(saga, {}).assert_compensated()


def test_functions_get_the_given_connection_and_calls_get_none() -> None:
    saga = Saga("connected")
    saga.step(name="a")(lambda saga: saga.connection)
    saga.call(name="b")(lambda saga: saga.connection is None)
    run = run_saga(saga, {}, connection="a connection")
    assert (run.result("a"), run.result("b")) == ("a connection", True)


def test_an_unfit_result_fails_the_step_for_good() -> None:
    saga = Saga("unfit", max_data_bytes=10)
    saga.step(name="large")(lambda saga: "x" * 20)
    run = run_saga(saga, {})
    run.assert_compensated()
    assert len(run.timeline) == 1
    assert "the result of step 'large' has 22 bytes of JSON" in run.error_message


def test_arun_saga_runs_in_the_loop_of_the_test() -> None:
    saga = Saga("async")
    loops: list[asyncio.AbstractEventLoop] = []

    @saga.step
    async def step(saga: Any) -> bool:
        return loops == [asyncio.get_running_loop()]

    @saga.step
    def sync(saga: Any) -> None: ...

    async def main() -> SagaRun[Any]:
        loops.append(asyncio.get_running_loop())
        return await arun_saga(saga, {}, fail={"sync": [ValueError()]})

    run = asyncio.run(main())
    run.assert_completed()
    assert run.result(step)


def test_S_4_every_failure_of_a_good_saga_ends_well() -> None:
    shop = Shop()

    def reset() -> None:
        shop.stock, shop.paid = 5, {}

    def check(run: SagaRun[Order]) -> None:
        if run.state == "compensated":
            assert shop.is_as_before(), run
        else:
            assert (shop.stock, len(shop.paid)) == (4, 1), run

    runs = every_failure(shop.saga, Order(7), events={"parcel": {"number": "P1"}}, before=reset, after=check)
    told = {run.scenario: run.state for run in runs}
    assert told["undisturbed"] == told["charge fails once"] == told["charge is repeated"] == "completed"
    assert told["charge keeps failing"] == told["charge happens, but never answers"] == "compensated"
    assert told["the compensation of reserve_stock is interrupted"] == "compensated"
    assert told["close keeps failing"] == "compensated", "the pivot is not done"


def test_S_4_every_failure_finds_a_compensation_that_cannot_run_twice() -> None:
    saga = Saga("fragile")
    charged: list[str] = []
    charge = saga.call(name="charge")(lambda saga: charged.append(saga.id))
    charge.compensation(lambda saga: charged.remove(saga.id))  # fails if the call never happened
    with pytest.raises(AssertionError, match=r"should have been completed or compensated\n.*\(charge keeps failing\)"):
        every_failure(saga, {}, before=charged.clear)


def test_S_4_every_failure_needs_a_saga_that_completes_when_nothing_is_done_to_it() -> None:
    with pytest.raises(AssertionError, match=r"should have been completed\n.*TIMEOUT.*\(undisturbed\)"):
        every_failure(Shop().saga, Order(7))  # the parcel never comes, so what is behind it would never be tried
