"""InMemoryRelay: the relay of a test, on a recording outbox and on a database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from postroom import Inbox, Message, Outbox
from postroom.testing import InMemoryRelay, RecordingOutbox, delivering

if TYPE_CHECKING:
    from collections.abc import Iterator


class Service(Protocol):
    relay: InMemoryRelay

    def publish(self, topic: str, payload: object = None, **fields: Any) -> Message: ...


class InMemory:
    def __init__(self) -> None:
        self._outbox = RecordingOutbox()
        self.relay = InMemoryRelay(self._outbox)

    def publish(self, topic: str, payload: object = None, **fields: Any) -> Message:
        return self._outbox.add(None, topic, payload, **fields)


class OnDatabase:
    def __init__(self, url: str, connection: sqlite3.Connection) -> None:
        self.relay = InMemoryRelay(url)
        self._connection = connection

    def publish(self, topic: str, payload: object = None, **fields: Any) -> Message:
        with self._connection:
            return Outbox().add(self._connection, topic, payload, **fields)


@pytest.fixture(params=["memory", "database"])
def service(request: pytest.FixtureRequest, postroom_database: str) -> Iterator[Service]:
    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection:
        yield InMemory() if request.param == "memory" else OnDatabase(postroom_database, connection)


def test_messages_go_to_who_subscribed_to_their_topic_once(service: Service) -> None:
    seen: list[tuple[str, Any]] = []
    service.relay.subscribe("orders", lambda message: seen.append(("billing", message.json())))

    @service.relay.on("orders")
    async def mail(message: Message) -> None:
        seen.append(("mail", message.json()))

    service.publish("orders", 1, key="k")
    service.publish("orders", 2, key="k")
    service.publish("nobody listens", 3, key="k")
    assert [message.json() for message in service.relay.deliver()] == [1, 2, 3]
    assert seen == [("billing", 1), ("mail", 1), ("billing", 2), ("mail", 2)]
    assert service.relay.deliver() == []
    service.publish("orders", 4)
    assert [message.json() for message in service.relay.deliver()] == [4]
    assert [message.json() for message in service.relay.delivered] == [1, 2, 3, 4]


def test_a_handler_given_to_deliver_takes_everything(service: Service) -> None:
    seen: list[Message] = []
    service.relay.subscribe("a", lambda message: pytest.fail(f"{message} went to a subscriber"))
    published = [service.publish("a", 1, key="k"), service.publish("b", 2, key="k")]
    assert service.relay.deliver(seen.append) == seen
    assert [message.id for message in seen] == [message.id for message in published]
    assert all(message.position and message.created_at for message in seen)


async def test_async_tests_await_it(service: Service) -> None:
    seen: list[Any] = []

    async def handle(message: Message) -> None:
        seen.append(message.json())

    service.relay.subscribe("t", handle)
    service.publish("t", 1)
    with pytest.raises(RuntimeError, match=r"await relay\.adeliver"):
        service.relay.deliver()
    await service.relay.adeliver()
    with pytest.raises(RuntimeError, match=r"await relay\.aredeliver"):
        service.relay.redeliver()
    await service.relay.aredeliver()
    assert seen == [1, 1]


def test_what_handlers_publish_is_delivered_too(service: Service) -> None:
    service.relay.subscribe("orders", lambda message: service.publish("payments", message.json()))
    service.publish("orders", 1)
    assert [message.topic for message in service.relay.deliver()] == ["orders", "payments"]


def test_handlers_that_call_each_other_for_ever_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivering, "MOST_ROUNDS", 5)
    service = InMemory()
    service.relay.subscribe("ping", lambda _: service.publish("ping"))
    service.publish("ping")
    with pytest.raises(RuntimeError, match="after 5 rounds"):
        service.relay.deliver()


def test_what_is_not_due_stays_and_what_has_expired_is_dropped(service: Service) -> None:
    now = datetime.now(UTC)
    service.publish("t", "later", deliver_at=now + timedelta(hours=1))
    service.publish("t", "expired", expires_at=now - timedelta(hours=1))
    service.publish("t", "due", deliver_at=now - timedelta(hours=1), expires_at=now + timedelta(hours=1))
    assert [message.payload for message in service.relay.deliver()] == [b"due"]
    assert service.relay.deliver() == []


def test_what_is_due_later_is_delivered_then(monkeypatch: pytest.MonkeyPatch) -> None:
    service = InMemory()
    service.publish("t", deliver_at=datetime.now(UTC) + timedelta(hours=1))
    assert service.relay.deliver() == []

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]  # a plain datetime will do
            return datetime.now(tz) + timedelta(days=1)

    monkeypatch.setattr(delivering, "datetime", Tomorrow)
    assert len(service.relay.deliver()) == 1


def test_what_a_handler_raises_reaches_the_test_and_the_message_comes_again(service: Service) -> None:
    tries: list[Any] = []

    @service.relay.on("t")
    def handle(message: Message) -> None:
        tries.append(message.json())
        if len(tries) == 2:
            raise ZeroDivisionError

    for number in range(3):
        service.publish("t", number, key="k")
    with pytest.raises(ZeroDivisionError):
        service.relay.deliver()
    assert [message.json() for message in service.relay.deliver()] == [1, 2]
    assert tries == [0, 1, 1, 2]


def test_I_1_a_second_delivery_shows_whether_a_handler_bears_it(postroom_database: str) -> None:
    with closing(sqlite3.connect(postroom_database.removeprefix("sqlite:///"))) as connection:
        service, inbox = OnDatabase(postroom_database, connection), Inbox("billing")
        billed: list[Any] = []

        @service.relay.on("orders")
        def bill(message: Message) -> None:
            with connection:
                if inbox.first_time(connection, message.id):
                    billed.append(message.json())

        service.publish("orders", 7)
        service.relay.deliver()
        assert len(service.relay.redeliver()) == 1
        assert billed == [7]
