from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from postroom.brokers.function import FunctionBroker, load, outcome_of, stops_at_failure, takes_a_batch
from postroom.brokers.port import ACCEPTED, NOT_SENT, Accepted, NotSent, Outcome, Refused, Unreached
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.message import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

MESSAGES = [Message.new("t", {"n": n}) for n in range(5)]


async def published(function: Any, seconds: float = 5.0) -> list[Outcome]:
    broker = FunctionBroker(function)
    try:
        return list(await broker.publish(MESSAGES, seconds))
    finally:
        await broker.close()


@pytest.mark.parametrize(
    ("returned", "outcome"),
    [
        (None, ACCEPTED),
        ("receipt-1", Accepted("receipt-1")),
        (17, Accepted("17")),
        ({"status": "ok"}, Accepted(None)),
        ({"status": "ok", "id": 3}, Accepted('{"id":3}')),
        ({"status": "failed", "reason_code": "NO_STOCK", "message": "none left"}, Refused("NO_STOCK", "none left")),
        ({"status": "failed"}, Refused("INTERNAL_ERROR")),
        (Refused("BUSY"), Refused("BUSY")),
    ],
)
async def test_B_1_what_a_function_returns_decides(returned: Any, outcome: Outcome) -> None:
    async def asynchronous(_: Message) -> Any:
        return returned

    assert await published(lambda _: returned) == [outcome] * 5
    assert await published(asynchronous) == [outcome] * 5


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        (RuntimeError("no"), Refused("INTERNAL_ERROR", "RuntimeError: no")),
        (KeyError("order_id"), Refused("INTERNAL_ERROR", "KeyError: 'order_id'")),
        (RuntimeError(), Refused("INTERNAL_ERROR", "RuntimeError")),
        (ConnectionRefusedError("gone"), Unreached("gone")),
        (BrokerUnavailable("away"), Unreached("away")),
    ],
)
async def test_what_a_function_raises_is_a_failure_or_says_that_nobody_is_there(
    raised: Exception, outcome: Outcome
) -> None:
    def publish(_: Message) -> None:
        raise raised

    outcomes = await published(publish)
    assert len(outcomes) == 5
    for one in outcomes:
        if isinstance(one, Refused):
            said, _, place = one.message.partition(" (")
            assert Refused(one.code, said) == outcome
            assert re.fullmatch(r"\S*test_function\.py:\d+, in publish\)", place)
        else:
            assert one == outcome


async def test_R_2_a_send_that_takes_too_long_has_failed() -> None:
    async def publish(_: Message) -> None:
        await asyncio.Event().wait()

    outcomes = await published(publish, seconds=0.01)
    assert {outcome.code for outcome in outcomes if isinstance(outcome, Refused)} == {"TIMEOUT"}
    assert len(outcomes) == 5


async def test_a_function_for_batches_is_called_once() -> None:
    calls: list[int] = []

    async def publish(messages: list[Message]) -> list[object]:
        calls.append(len(messages))
        return [None, "r", {"status": "no"}, None, None]

    assert await published(publish) == [ACCEPTED, Accepted("r"), Refused("INTERNAL_ERROR"), ACCEPTED, ACCEPTED]
    assert calls == [5]


async def test_a_batch_answered_with_too_few_results_counts_as_failed() -> None:
    async def publish(messages: list[Message]) -> list[None]:
        return [None] * (len(messages) - 1)

    outcomes = await published(publish)
    assert all(isinstance(outcome, Refused) and "4 results for 5" in outcome.message for outcome in outcomes)


async def test_R_9_a_list_that_fails_says_that_any_of_its_messages_may_be_at_fault() -> None:
    async def raises(messages: list[Message]) -> None:
        raise KeyError(len(messages))

    async def hangs(messages: list[Message]) -> None:
        await asyncio.sleep(60 * len(messages))

    async def fails(messages: list[Message]) -> dict[str, str]:
        del messages
        return {"status": "error", "reason_code": "BUSY"}

    async def leaves_out(messages: list[Message]) -> list[None]:
        return [None] * (len(messages) - 1)

    async def says_which(messages: list[Message]) -> list[dict[str, str]]:
        return [{"status": "error"} for _ in messages]

    async def takes_one(message: Message) -> None:
        raise KeyError(message.topic)

    async def whole(function: Any) -> set[bool]:
        outcomes = await FunctionBroker(function).publish(MESSAGES, 0.05)
        return {isinstance(outcome, Refused) and outcome.whole_call for outcome in outcomes}

    assert [await whole(function) for function in (raises, hangs, fails, leaves_out)] == [{True}] * 4
    assert [await whole(function) for function in (says_which, takes_one)] == [{False}] * 2


@pytest.mark.parametrize(
    ("results", "outcomes"),
    [
        (None, [ACCEPTED] * 5),
        ([None, Refused("BUSY")], [ACCEPTED, Refused("BUSY"), NOT_SENT, NOT_SENT, NOT_SENT]),
        ([None] * 4 + [Refused("BUSY")], [ACCEPTED] * 4 + [Refused("BUSY")]),
    ],
)
async def test_what_follows_the_failure_that_a_function_stopped_at_was_not_sent(
    results: list[Any] | None, outcomes: list[Outcome]
) -> None:
    @stops_at_failure
    async def publish(messages: list[Message]) -> list[Any] | None:
        del messages
        return results

    assert FunctionBroker(publish).capabilities.ordered_prefix
    assert await published(publish) == outcomes


async def test_a_function_that_stops_without_a_failure_has_answered_too_little() -> None:
    @stops_at_failure
    async def publish(messages: list[Message]) -> list[Any]:
        return [None] * (len(messages) - 2)

    assert all("3 results for 5" in str(outcome) for outcome in await published(publish))


def test_only_a_function_for_batches_can_stop_at_a_failure() -> None:
    def publish(message: Message) -> None:
        """Deliver one."""

    with pytest.raises(InvalidSetting, match="publish takes one message at a time"):
        stops_at_failure(publish)
    assert not FunctionBroker(publish).capabilities.ordered_prefix


@pytest.mark.parametrize("address", ["json", "json:", ":dumps", "json:nothing", "no_such_module:f", "json:decoder"])
def test_an_address_that_names_no_function_is_refused(address: str) -> None:
    with pytest.raises(InvalidSetting, match="python:"):
        load(address)


def nothing() -> None: ...
def two(message: Message, channel: str) -> None: ...
def by_name(*, message: Message) -> None: ...
def generator(message: Message) -> Iterator[Message]:
    yield message


async def async_generator(message: Message) -> AsyncIterator[Message]:
    yield message


@pytest.mark.parametrize("function", [nothing, two, by_name, generator, async_generator])
def test_a_function_that_would_send_nothing_is_refused_before_it_costs_attempts(function: Any) -> None:
    with pytest.raises(InvalidSetting, match=function.__name__):
        FunctionBroker(function)


@pytest.mark.parametrize(
    "function", [lambda _, __="a": None, lambda *_: None, print], ids=["one optional", "any number", "builtin"]
)
def test_a_function_may_take_more_where_it_need_not(function: Any) -> None:
    assert takes_a_batch(function) is False


def test_an_address_names_a_function() -> None:
    import json

    assert load("json:dumps") is json.dumps


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        SystemExit(3),
        StopIteration(),
        GeneratorExit(),
        RuntimeError("no"),
        StopAsyncIteration(),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("batch", [False, True])
async def test_whatever_a_function_raises_the_message_does_not_count_as_sent(
    error: BaseException,
    asynchronous: bool,  # noqa: FBT001 - parameters of a test
    batch: bool,  # noqa: FBT001 - parameters of a test
) -> None:
    def one(_: object) -> None:
        raise error

    def many(messages: object) -> None:
        one(messages)

    async def aone(_: object) -> None:
        raise error

    async def amany(messages: object) -> None:
        await aone(messages)

    function = (amany if batch else aone) if asynchronous else (many if batch else one)
    broker = FunctionBroker(function)
    outcomes = await broker.publish([Message.new("t"), Message.new("t")], 5.0)
    await broker.close()
    assert [type(outcome) for outcome in outcomes] == [Refused, Refused]


async def test_cancelling_the_relay_is_no_outcome() -> None:
    started = asyncio.Event()

    async def publish(_: object) -> None:
        started.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(FunctionBroker(publish).publish([Message.new("t")], 60.0))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_receipt_that_is_no_json_is_written_as_python_shows_it() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    assert outcome_of({"status": "ok", "offset": Odd()}) == Accepted('{"offset":"odd"}')
    assert outcome_of(7) == Accepted("7")


async def test_R_2_a_publish_ends_in_time_however_many_calls_it_would_take() -> None:
    """Messages whose turn did not come are not sent; they have not failed, nor have those that were sent."""
    calls = []

    async def slow(message: Message) -> None:
        calls.append(message)
        await asyncio.sleep(0.05)

    broker = FunctionBroker(slow, concurrency=1)
    outcomes = list(await broker.publish(MESSAGES * 8, 1))
    sent = outcomes.count(ACCEPTED)
    assert outcomes == [ACCEPTED] * sent + [NotSent()] * (len(outcomes) - sent)
    assert len(calls) == sent < len(outcomes)


async def test_R_2_a_batch_that_finds_no_place_is_not_sent() -> None:
    async def slow(messages: list[Message]) -> None:
        await asyncio.sleep(0.2 * len(messages))

    broker = FunctionBroker(slow, concurrency=1)
    first, second = await asyncio.gather(broker.publish(MESSAGES, 5), broker.publish(MESSAGES, 5))
    assert list(first) == [ACCEPTED] * 5
    assert list(second) == [NotSent()] * 5


async def test_no_free_thread_means_not_tried_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    calls: list[Message] = []

    def hang(message: Message) -> None:
        calls.append(message)
        if message.topic == "hangs":
            release.wait(60)

    broker = FunctionBroker(hang, concurrency=2)
    hanging, good = Message.new("hangs"), Message.new("good")
    assert [one.code for one in await broker.publish([hanging], 0.05) if isinstance(one, Refused)] == ["TIMEOUT"]
    assert list(await broker.publish([good, good], 5)) == [ACCEPTED] * 2  # by the thread that is left
    await broker.publish([hanging], 0.05)
    for _ in range(2):
        outcomes = await broker.publish([good] * 3, 5)
        assert all(isinstance(one, Unreached) and "all 2 threads" in one.reason for one in outcomes)
    assert calls.count(good) == 2
    assert len([one for one in caplog.records if "all 2 threads" in one.message]) == 1
    release.set()
    assert list(await broker.publish([good] * 3, 5)) == [ACCEPTED] * 3
    await broker.close()


def test_a_thread_that_hangs_does_not_keep_the_process_from_ending() -> None:
    program = """
import asyncio, threading
from postroom.brokers.function import FunctionBroker
from postroom.message import Message

def hang(message):
    threading.Event().wait()

async def main():
    broker = FunctionBroker(hang)
    print(await broker.publish([Message.new("t")], 0.05))
    await broker.close()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=30, capture_output=True, text=True, check=True)
    assert "TIMEOUT" in done.stdout
