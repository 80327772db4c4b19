"""RetryPolicy as an executor: how often and when a function is called again, and what is raised in the end."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom import Message, RetryPolicy
from postroom.delivery.queue import Queue
from postroom.errors import InvalidSetting, RetryExhausted
from postroom.rules import backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.retry import Retrying

POLICY = RetryPolicy.consistency()


class Flaky:
    """A function that raises these errors in turn, and then returns 7."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, *_: Any, **__: Any) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return 7

    async def acall(self) -> int:
        await asyncio.sleep(0)
        return self()


def at_once(policy: RetryPolicy = POLICY, **options: Any) -> Retrying:
    return policy.retrying(sleep=lambda _: None, **options)


def test_S_7_returns_what_the_function_returns_and_passes_arguments() -> None:
    assert POLICY.run(divmod, 17, 5) == (3, 2)
    assert POLICY.run(int, "11", base=2) == 3


def test_S_7_retries_with_the_documents_delays() -> None:
    slept: list[float] = []
    flaky = Flaky(OSError(), OSError())
    assert POLICY.retrying(sleep=slept.append, random=lambda: 0.5).run(flaky) == 7
    assert (flaky.calls, slept) == (3, [0.1, 0.2])


@given(st.floats(0, 1, exclude_max=True), st.integers(2, 12))
def test_S_7_delays_double_to_ten_seconds_within_a_tenth(random: float, attempts: int) -> None:
    slept: list[float] = []
    policy = RetryPolicy.consistency(max_attempts=attempts)
    flaky = Flaky(*(OSError() for _ in range(attempts)))
    with pytest.raises(RetryExhausted):
        policy.retrying(sleep=slept.append, random=lambda: random).run(flaky)
    assert len(slept) == attempts - 1
    for number, delay in enumerate(slept):
        plain = min(0.1 * 2**number, 10)
        assert plain * 0.9 <= delay <= plain * 1.1


def test_S_7_exhaustion_raises_from_the_last_error() -> None:
    last = OSError("third")
    flaky = Flaky(OSError("first"), OSError("second"), last, OSError("never"))
    with pytest.raises(RetryExhausted, match=r"^Flaky failed 3 times, last with OSError$") as raised:
        at_once().run(flaky)
    assert raised.value.__cause__ is last
    assert (raised.value.attempts, flaky.calls) == (3, 3)
    twin = copy.copy(raised.value)  # as pickling does it
    assert (str(twin), twin.attempts) == (str(raised.value), 3)


def test_S_7_one_attempt_is_no_retry() -> None:
    with pytest.raises(RetryExhausted, match="at the only attempt"):
        RetryPolicy.consistency(max_attempts=1).run(Flaky(OSError()))


@pytest.mark.parametrize("error", [ValueError("other"), KeyboardInterrupt(), SystemExit(1)])
def test_S_7_other_exceptions_are_raised_at_once_as_they_are(error: BaseException) -> None:
    flaky = Flaky(ConnectionError(), error, OSError())
    with pytest.raises(type(error)) as raised:
        at_once(retry_on=(ConnectionError, TimeoutError)).run(flaky)
    assert raised.value is error
    assert flaky.calls == 2


def test_S_7_async_functions_are_retried_too() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    flaky = Flaky(OSError(), OSError())
    retrying = POLICY.retrying(sleep=sleep, random=lambda: 0.5)
    assert asyncio.run(retrying.arun(flaky.acall)) == 7
    assert slept == [0.1, 0.2]
    plain: Any = Flaky(OSError())
    assert asyncio.run(at_once().arun(plain)) == 7  # one that turns out not to be async does no harm
    assert asyncio.run(POLICY.arun(Flaky().acall)) == 7


def test_S_7_a_cancelled_call_is_not_retried() -> None:
    calls = 0

    async def hang() -> None:
        nonlocal calls
        calls += 1
        await asyncio.Event().wait()

    async def cancelled() -> None:
        async with asyncio.timeout(0.01):
            await at_once().arun(hang)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert calls == 1


def test_S_7_decorates_functions_and_methods() -> None:
    class Client:
        def __init__(self) -> None:
            self.failing = Flaky(OSError())
            self.waiting = Flaky(OSError())

        @at_once()
        def fetch(self, number: int) -> int:
            """Fetch it."""
            return self.failing() + number

        @at_once()
        async def afetch(self, number: int) -> int:
            return await self.waiting.acall() + number

    client = Client()
    assert client.fetch(1) == 8
    assert asyncio.run(client.afetch(number=1)) == 8
    assert (client.failing.calls, client.waiting.calls) == (2, 2)
    assert (Client.fetch.__name__, Client.fetch.__doc__) == ("fetch", "Fetch it.")
    assert inspect.iscoroutinefunction(Client.afetch)


@pytest.mark.parametrize("decorate", [POLICY, POLICY.retrying, POLICY.retrying(retry_on=OSError)])
def test_S_7_every_way_to_decorate(decorate: Callable[[Callable[[int], int]], Callable[[int], int]]) -> None:
    calls: list[int] = []

    @decorate
    def fetch(number: int) -> int:
        calls.append(number)
        if len(calls) == 1:
            raise OSError
        return number

    assert fetch(7) == 7
    assert calls == [7, 7]


def test_S_7_each_retry_is_logged_without_credentials(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "postroom.retry"):
        at_once(random=lambda: 0.5).run(partial(Flaky(OSError("no answer from http://me:secret@stock\nlater")), 1))
    assert caplog.messages == [
        "Flaky failed, attempt 1 of 3, next in 0.1 s: OSError: no answer from http://***@stock later"
    ]


async def _async() -> None: ...


def _generator() -> Any:
    yield


UNTYPED: Any = POLICY


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: UNTYPED.run(7), "what to retry is of type int, which cannot be called: pass the function itself"),
        (lambda: UNTYPED.run(_async), r"_async is async: use `await policy.arun\(…\)`"),
        (lambda: UNTYPED.run(partial(_async)), "_async is async"),
        (lambda: UNTYPED.run(lambda: asyncio.sleep(0)), "returned something to await: use `await policy.arun"),
        (lambda: UNTYPED(_generator), "what to retry _generator is a generator"),
        (lambda: asyncio.run(UNTYPED.arun(7)), "what to retry is of type int"),
        (lambda: UNTYPED.retrying(retry_on=BaseException), "retry_on has <class 'BaseException'>: give subclasses"),
        (lambda: UNTYPED.retrying(retry_on=[OSError]), "retry_on has"),
        (lambda: UNTYPED.retrying(sleep=asyncio.sleep).run(Flaky(OSError())), "give a sleep that is not async"),
    ],
)
def test_S_7_what_cannot_be_retried_names_the_remedy(call: Any, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        call()


def test_S_7_the_public_policy_is_one_that_everything_takes() -> None:
    policy = RetryPolicy.table([1, 2], max_attempts=2)
    assert isinstance(policy, backoff.RetryPolicy)
    assert isinstance(RetryPolicy.worker(), RetryPolicy)
    nowhere: Any = None
    assert Queue(name="q", destination=nowhere, policy=policy).policy_for(Message.new("orders", {})) is policy
    assert (policy.delay(2, 0.5), policy.exhausted(2)) == (2, True)


def test_policies_are_equal_whichever_class_they_have() -> None:
    """Defaults are made by the rules, which know no functions; users compare with their own."""
    for one, other in ((RetryPolicy.worker(), backoff.RetryPolicy()), (POLICY, backoff.RetryPolicy.consistency())):
        assert one == other
        assert other == one
        assert hash(one) == hash(other)
    assert backoff.RetryPolicy.worker() != POLICY
    assert backoff.RetryPolicy.worker(max_attempts=2) != RetryPolicy.worker()
    assert POLICY != "policy"
