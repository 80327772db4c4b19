"""Classes as events: what they declare, and how messages of older versions become theirs."""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - handlers' annotations are resolved
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from pydantic import BaseModel

from postroom import Outbox, RetryPolicy, event, upcaster
from postroom.consumer.handlers import handler_of
from postroom.errors import InvalidMessage, InvalidSetting, PayloadNotDecodable, UnknownVersion
from postroom.events import read
from postroom.incoming import Incoming
from postroom.rules.failures import Failure, Reason, classify, reason_code

if TYPE_CHECKING:
    from collections.abc import Callable

POLICY = RetryPolicy()


@event("orders.created", key="order_id", version=3)
@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: int
    cents: int


@upcaster(OrderCreated, since=1)
def in_cents(data: Any) -> Any:
    return {"order_id": data["order_id"], "cents": round(data["price"] * 100)}


@upcaster(OrderCreated, since=2)
def doubled(data: Any) -> Any:
    return {**data, "cents": data["cents"] * 2}


@event("orders.paid", key=lambda paid: f"order {paid.order_id}", type="shop.paid")
class OrderPaid(msgspec.Struct):
    order_id: int


@event("orders.sent", key="order_id")
class OrderSent(BaseModel):
    order_id: int


@event("orders.lost")
@dataclass(frozen=True)
class OrderLost(OrderCreated): ...


@dataclass(frozen=True)
class Undeclared(OrderCreated): ...


def incoming(payload: object, version: str | None = None, topic: str = "orders.created") -> Incoming:
    headers = {} if version is None else {"event-version": version}
    body = msgspec.json.encode(payload)
    return Incoming(id="1", topic=topic, payload=body, content_type="application/json", headers=headers)


@pytest.mark.parametrize(
    ("value", "topic", "type", "key", "version"),
    [
        (OrderCreated(7, 1990), "orders.created", "OrderCreated", "7", "3"),
        (OrderPaid(7), "orders.paid", "shop.paid", "order 7", "1"),
        (OrderSent(order_id=7), "orders.sent", "OrderSent", "7", "1"),
        (OrderLost(7, 1), "orders.lost", "OrderLost", None, "1"),
    ],
)
def test_an_event_says_topic_type_key_and_version(
    value: object, topic: str, type: str, key: str | None, version: str
) -> None:
    message = Outbox().message_of(value, headers={"a": "b"})
    assert (message.topic, message.type, message.key) == (topic, type, key)
    assert message.headers == {"a": "b", "event-version": version}
    assert message.json()["order_id"] == 7
    assert Outbox().message_of(value, key="other").key == "other"


@pytest.mark.parametrize("value", [{"order_id": 7}, Undeclared(7, 1), OrderCreated, None])
def test_what_is_no_event_is_refused(value: object) -> None:
    with pytest.raises(InvalidMessage, match="publish takes objects of event classes"):
        Outbox().message_of(value)


@pytest.mark.parametrize(
    ("declare", "refusal"),
    [
        (lambda: event(""), "the event's topic is ''"),
        (lambda: event(OrderSent), "write @event"),  # type: ignore[arg-type]
        (lambda: event("t", version=0), "the version of the event of 't' is 0"),
        (lambda: event("t", version=True), "is True"),
        (lambda: event("t", key="number")(Undeclared), "the key of Undeclared is 'number'"),
        (lambda: event("t")(in_cents), "is for classes"),  # type: ignore[arg-type]
        (lambda: upcaster(Undeclared, since=1), "Undeclared is no event"),
        (lambda: upcaster(OrderCreated, since=3), "begins with version 3: the event is at version 3"),
        (lambda: upcaster(OrderCreated, since=1), "has an upcaster from version 1 already"),
    ],
)
def test_a_wrong_declaration_is_refused(declare: Callable[[], object], refusal: str) -> None:
    with pytest.raises(InvalidSetting, match=refusal):
        declare()


@pytest.mark.parametrize(
    ("payload", "version"),
    [
        ({"order_id": 7, "cents": 400}, "3"),
        ({"order_id": 7, "cents": 200}, "2"),
        ({"order_id": 7, "price": 2}, "1"),
        ({"order_id": 7, "price": 2}, None),
    ],
)
def test_messages_of_every_version_become_the_same_event(payload: object, version: str | None) -> None:
    assert read(incoming(payload, version), OrderCreated) == OrderCreated(7, 400)


@event("t", version=2)
@dataclass
class WithoutWay:
    number: int


@event("t", version=2)
@dataclass
class Spoiled:
    number: int


@upcaster(Spoiled, since=1)
def spoil(data: Any) -> Any:
    del data
    return object()


@pytest.mark.parametrize(
    ("kind", "payload", "version", "error", "text"),
    [
        (OrderCreated, {}, "4", UnknownVersion, "holds version 4 of OrderCreated.* up to 3: upgrade it"),
        (OrderCreated, {}, "0", UnknownVersion, "event-version is no version"),
        (OrderCreated, {}, "²", UnknownVersion, "event-version is no version"),
        (OrderCreated, {}, "9" * 5000, UnknownVersion, "event-version is no version"),
        (WithoutWay, {}, "1", UnknownVersion, "from version 1 to 2: add an @upcaster"),
        (OrderCreated, {"secret": 1}, "1", PayloadNotDecodable, "from version 1 raised KeyError$"),
        (Spoiled, {}, "1", PayloadNotDecodable, "returned what is no JSON"),
        (OrderCreated, {"order_id": "x", "cents": 1}, "3", PayloadNotDecodable, "not a valid OrderCreated"),
    ],
)
def test_what_cannot_be_read_is_dead_at_once_with_the_reason(
    kind: type[Any], payload: object, version: str, error: type[PayloadNotDecodable], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        read(incoming(payload, version), kind)
    assert classify(raised.value) is Failure.PERMANENT
    unknown = isinstance(raised.value, UnknownVersion)
    assert reason_code(raised.value) == (Reason.UNKNOWN_VERSION if unknown else Reason.UNDECODABLE_PAYLOAD)
    assert "secret" not in str(raised.value)


class Service:
    def one(self, connection: Any, event: OrderCreated) -> Any:
        return connection, event

    def __call__(self, events: list[OrderCreated]) -> Any:
        return events


def with_the_message(connection: Any, created: OrderCreated, message: Incoming) -> Any:
    return connection, created, message


def several(connection: Any, created: Sequence[OrderCreated], messages: Sequence[Incoming]) -> Any:
    return connection, created, messages


def test_a_handler_gets_the_events_that_its_annotations_name() -> None:
    message, created = incoming({"order_id": 7, "cents": 4}, "3"), OrderCreated(7, 4)

    def call(function: Callable[..., Any], topic: str | None = None) -> Any:
        handler = handler_of(function, topic, None, POLICY, 1)
        assert (handler.topic, handler.type) == (topic or "orders.created", "OrderCreated")
        return handler.call("c", [message])

    assert call(Service().one) == ("c", created)
    assert call(Service()) == [created]
    assert call(partial(Service.one, Service())) == ("c", created)
    assert call(with_the_message, "orders.*") == ("c", created, message)
    assert call(several) == ("c", [created], [message])


def two_events(one: OrderCreated, other: OrderPaid) -> None: ...
def event_third(connection: Any, other: Any, created: OrderCreated) -> None: ...
def one_message_of_several(created: list[OrderCreated], message: Incoming) -> None: ...


@pytest.mark.parametrize("function", [two_events, event_third, one_message_of_several])
def test_a_function_that_takes_events_otherwise_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidSetting, match="cannot be a handler"):
        handler_of(function, None, None, POLICY, 1)


def test_a_handler_without_topic_and_event_is_refused() -> None:
    def handler(message: Incoming) -> None: ...

    with pytest.raises(InvalidSetting, match="no topic is given for"):
        handler_of(handler, None, None, POLICY, 1)
