"""Functions as handlers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from postroom import Consumer, RetryPolicy
from postroom.consumer.handlers import handler_of
from postroom.errors import InvalidMessage, InvalidSetting
from postroom.incoming import Incoming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLICY = RetryPolicy()
NAN = float("nan")


def incoming(topic: str = "orders.created", type: str | None = None) -> Incoming:
    return Incoming(id="1", topic=topic, payload=b"{}", content_type="application/json", type=type)


def both(connection: Any, message: Incoming) -> Any:
    return connection, message


def only_the_message(message: Incoming) -> Any:
    return message


def several(connection: Any, messages: list[Incoming]) -> Any:
    return connection, messages


class Service:
    async def __call__(self, connection: Any, message: Incoming) -> None: ...

    def method(self, messages: list[Incoming], limit: int = 3) -> Any:
        return messages, limit


def test_what_a_function_takes_is_what_it_gets() -> None:
    message = incoming()
    assert handler_of(both, "*", None, POLICY, 1).call("c", [message]) == ("c", message)
    assert handler_of(only_the_message, "*", None, POLICY, 1).call("c", [message]) is message
    assert handler_of(several, "*", None, POLICY, 1).call("c", [message]) == ("c", [message])
    assert handler_of(Service().method, "*", None, POLICY, 1).call("c", [message]) == ([message], 3)
    assert handler_of(partial(both, "mine"), "*", None, POLICY, 1).call("c", [message]) == ("mine", message)


def test_async_functions_are_told_from_sync_ones() -> None:
    async def handler(message: Incoming) -> None: ...

    assert handler_of(handler, "*", None, POLICY, 1).is_async
    assert handler_of(Service(), "*", None, POLICY, 1).is_async
    assert handler_of(partial(handler), "*", None, POLICY, 1).is_async
    assert not handler_of(both, "*", None, POLICY, 1).is_async


@pytest.mark.parametrize(
    ("topic", "type", "message", "fits"),
    [
        ("orders.created", None, incoming(), True),
        ("orders.*", None, incoming(), True),
        ("*", "A", incoming(type="A"), True),
        ("*", "A", incoming(type="B"), False),
        ("*", "A", incoming(), False),
        ("orders", None, incoming(), False),
        ("orders.?reated", None, incoming(), False),
        ("orders.[c]reated", None, incoming(), False),
        ("*.[c]*", None, incoming("a.[c]b"), True),
    ],
)
def test_a_handler_is_for_topics_and_types(topic: str, type: str | None, message: Incoming, *, fits: bool) -> None:
    assert handler_of(both, topic, type, POLICY, 1).fits(message) is fits


def none() -> None: ...


def three(connection: Any, message: Incoming, other: Any) -> None: ...


def by_name(connection: Any, message: Incoming, *, other: Any) -> None: ...


def generator(message: Incoming) -> Iterator[Incoming]:
    yield message


@pytest.mark.parametrize("function", [none, three, by_name, generator, "bill"])
def test_what_cannot_be_a_handler_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidSetting, match=r"must take \(connection, message\)|use no yield|not a function"):
        handler_of(function, "*", None, POLICY, 1)


def test_wrong_values_are_refused_where_they_are_given() -> None:
    consumer = Consumer("billing")
    wrong: list[dict[str, Any]] = [{"attempts": 0}, {"delays": []}, {"delays": [-1]}, {"timeout": 0}, {"timeout": NAN}]
    for options in wrong:
        with pytest.raises(InvalidSetting):
            consumer.handler("orders", **options)(both)
    with pytest.raises(InvalidSetting, match="topic is empty"):
        consumer.handler("")
    for no_topic in (both, ["orders.created"]):  # the first is @consumer.handler without parentheses
        with pytest.raises(InvalidSetting, match=r"write @consumer.handler\(topic\)"):
            consumer.handler(no_topic)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="batch = 0"):
        Consumer("billing", batch=0)
    with pytest.raises(InvalidMessage, match="consumer"):
        Consumer("")
    with pytest.raises(InvalidSetting, match="opens none"):
        Consumer("billing", transactions=7)


async def test_a_consumer_without_handlers_or_database_says_so() -> None:
    with pytest.raises(InvalidSetting, match="has no handler"):
        await Consumer("billing").run()
    consumer = Consumer("billing")
    consumer.handler("orders")(both)
    with pytest.raises(InvalidSetting, match="no database is given"):
        await consumer.run()
    with pytest.raises(InvalidSetting, match="not running"):
        await consumer.handle(incoming())


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [({"max_attempts": 9}, "attempts="), ({"backoff_sec": [1]}, "delays="), ({"broker_timeout_ms": 9}, "timeout=")],
)
def test_a_relays_setting_that_a_consumer_does_not_have_is_refused(setting: Any, remedy: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{next(iter(setting))} is a setting of relays: .*{remedy}"):
        Consumer("billing", **setting)
