"""FastStream's brokers as destinations, and the inbox as a middleware of its subscribers, with real servers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from faststream import AckPolicy, BaseMiddleware
from faststream.nats import JStream, NatsBroker
from faststream.rabbit import RabbitBroker, RabbitQueue
from faststream.redis import RedisBroker, StreamSub
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from postroom import Inbox, Message, Outbox, Relay
from postroom.brokers.memory import MemoryBroker
from postroom.brokers.port import Accepted, TargetUnavailable
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.faststream import Connection, FastStreamBroker, InboxMiddleware
from postroom.store.connections.urls import resolve
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.databases import need
from tests.services.nats import Nats
from tests.services.rabbitmq import RabbitMQ
from tests.services.redis import Redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.conftest import FreshDatabase

SERVERS: dict[str, type[Nats | RabbitMQ | Redis]] = {"nats": Nats, "rabbit": RabbitMQ, "redis": Redis}
DATABASES = {"nats": "postgresql", "rabbit": "mariadb", "redis": "sqlite"}
CALM: dict[str, Any] = {"logger": None}


def client_of(kind: str, port: int, *middlewares: Any) -> Any:
    match kind:
        case "nats":
            return NatsBroker(f"nats://127.0.0.1:{port}", middlewares=middlewares, **CALM)
        case "rabbit":
            return RabbitBroker(f"amqp://guest:guest@127.0.0.1:{port}/", middlewares=middlewares, **CALM)
        case _:
            return RedisBroker(f"redis://127.0.0.1:{port}", middlewares=middlewares, **CALM)


def subscribed(client: Any, kind: str, topic: str) -> Callable[[Any], Any]:
    decorator: Callable[[Any], Any]
    match kind:
        case "nats":
            decorator = client.subscriber(
                topic, stream=JStream(topic), durable="b", pull_sub=True, ack_policy=AckPolicy.NACK_ON_ERROR
            )
        case "rabbit":
            decorator = client.subscriber(RabbitQueue(topic, durable=True), ack_policy=AckPolicy.NACK_ON_ERROR)
        case _:
            decorator = client.subscriber(stream=StreamSub(topic, group="b", consumer="b"))
    return decorator


def destination_of(kind: str, port: int, topic: str, **options: Any) -> FastStreamBroker:
    if kind == "nats":
        options["stream"] = topic
    return FastStreamBroker(client_of(kind, port), **options)


@dataclass
class LostAcknowledgements:
    """A middleware around the others: the first time, what happened inside is not acknowledged."""

    lost: list[str] = field(default_factory=list)

    def __call__(self, message: Any, /, *, context: Any) -> BaseMiddleware:
        lost = self.lost

        class Losing(BaseMiddleware):
            async def consume_scope(self, call_next: Any, msg: Any) -> Any:
                result = await call_next(msg)
                if not lost:
                    lost.append(msg.headers.get("ce-id", ""))
                    raise ConnectionError("the acknowledgement is lost")
                return result

        return Losing(message, context=context)


@asynccontextmanager
async def running(client: Any) -> AsyncIterator[None]:
    await client.start()
    try:
        yield
    finally:
        await client.stop()


@pytest.mark.parametrize("kind", SERVERS)
async def test_what_a_relay_sends_is_handled_once_whatever_is_repeated(
    kind: str, ready_database: FreshDatabase
) -> None:
    port = need(SERVERS[kind]).port
    with closing(Service(ready_database(DATABASES[kind]))) as service:
        service.execute("CREATE TABLE bill (number INTEGER, note VARCHAR(50))")
        engine = create_async_engine(resolve(service.url, asynchronous=True))
        losing = LostAcknowledgements()
        middlewares = [InboxMiddleware(Inbox("billing"), engine)]
        client = client_of(kind, port, *([losing, *middlewares] if kind != "redis" else middlewares))
        calls: list[int] = []

        @subscribed(client, kind, f"once-{kind}")
        async def bill(order: dict[str, int], connection: Connection) -> None:
            calls.append(order["number"])
            await connection.execute(text("INSERT INTO bill VALUES (:number, 'x')"), order)
            if order["number"] == 2 and calls.count(2) == 1 and kind != "redis":
                raise ValueError("the first attempt fails")  # what it has written rolls back, and the mark with it

        async with running(client):
            messages = [Message.new(f"once-{kind}", {"number": number}, key="k") for number in (1, 2, 3)]
            service.commit(*messages)
            destination = destination_of(kind, port, f"once-{kind}")
            await Relay(service.url, destination).run_until_empty()
            assert service.status().pending == 0
            again = destination_of(kind, port, f"once-{kind}", headers={"Nats-Msg-Id": "another"})
            last = Message.new(f"once-{kind}", {"number": 4})
            assert isinstance((await again.publish(messages[2:], 5))[0], Accepted)
            await again.close()
            assert isinstance((await destination.publish([last], 5))[0], Accepted)
            await destination.close()
            await wait_for(lambda: 4 in calls and len(calls) >= (4 if kind == "redis" else 5))
            numbers = "SELECT number FROM bill ORDER BY number"
            await wait_for(lambda: [row[0] for row in service.rows(numbers)] == [1, 2, 3, 4])
        assert sorted(calls) == ([1, 2, 3, 4] if kind == "redis" else [1, 2, 2, 3, 4])
        assert len(losing.lost) == (kind != "redis")
        await engine.dispose()


async def test_strangers_messages_are_known_by_the_ids_that_they_have(ready_database: FreshDatabase) -> None:
    port = need(RabbitMQ).port
    with closing(Service(ready_database("postgresql"))) as service:
        pool = await asyncpg.create_pool(service.url.replace("postgresql+psycopg", "postgresql"))

        @asynccontextmanager
        async def transaction() -> AsyncIterator[Any]:
            async with pool.acquire() as connection, connection.transaction():
                yield connection

        client = client_of("rabbit", port, InboxMiddleware(Inbox("billing"), transaction))
        handled: list[str] = []

        @subscribed(client, "rabbit", "strangers")
        async def bill(what: str, connection: Connection) -> None:
            assert await connection.fetchval("SELECT 1") == 1
            handled.append(what)

        async with running(client):
            for what, name in (("a", "1"), ("a", "1"), ("b", "2"), ("none", None), ("none", None), ("last", "3")):
                await client.publish(what, "strangers", message_id=name)
            await wait_for(lambda: len(handled) >= 5)
        await pool.close()
    assert sorted(handled) == ["a", "b", "last", "none", "none"]


@pytest.mark.parametrize("kind", ["nats", "rabbit"])
async def test_what_cannot_be_published_waits_and_keeps_nothing_else(kind: str, ready_database: FreshDatabase) -> None:
    server = need(SERVERS[kind])
    nowhere = destination_of(kind, server.port, "nowhere")
    [outcome] = await nowhere.publish([Message.new("nowhere.at.all", 1)], 5)
    assert isinstance(outcome, TargetUnavailable)
    await nowhere.close()
    own = SERVERS[kind]()
    absent = destination_of(kind, own.port, "orders")
    began = asyncio.get_running_loop().time()
    with pytest.raises(BrokerUnavailable, match=f"faststream:{kind}: "):
        await absent.publish([Message.new("orders", 1)], 0.5)
    assert asyncio.get_running_loop().time() - began < 5
    others = MemoryBroker()
    with closing(Service(ready_database("sqlite"))) as service:
        service.commit(Message.new("orders", 1), Message.new("other", 2))
        relay = Relay(service.url, others, brokers={"orders": absent}, broker_timeout_ms=500)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(relay.run())
            await wait_for(lambda: others.messages and relay.report.queues_down)
            relay.stop()
        assert not service.dead()
    await absent.close()


def test_wrong_settings_are_named() -> None:
    with pytest.raises(InvalidSetting, match=r"FastStreamBroker takes a FastStream broker of .*, not a str"):
        FastStreamBroker("nats")
    with pytest.raises(InvalidSetting, match="name the JetStream stream"):
        FastStreamBroker(NatsBroker())
    with pytest.raises(InvalidSetting, match="InboxMiddleware takes an Inbox, not a str"):
        InboxMiddleware("billing", None)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(InvalidSetting, match="needs what opens transactions"):
        InboxMiddleware(Inbox("billing"), None)
    assert Outbox().message("orders", 1).topic == "orders"
