"""What a user would write instead of a relay: each client library's fastest documented way to publish.

Every message is confirmed, has the headers that a relay adds, and goes to the same kind of queue.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import aio_pika
import confluent_kafka
import nats
import redis.asyncio as redis

from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.nats import NatsBroker
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.brokers.redis import RedisBroker
from tests.services.kafka import Kafka
from tests.services.nats import Nats
from tests.services.rabbitmq import RabbitMQ
from tests.services.redis import Redis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.brokers.port import Broker
    from postroom.message import Message
    from tests.services.service import Service

TOPIC = "bench"
POLL = 0.1


def attributes(message: Message, prefix: str) -> dict[str, str]:
    """The headers of a message without other fields, in as little code as possible."""
    return {
        "content-type": message.content_type,
        f"{prefix}specversion": "1.0",
        f"{prefix}id": str(message.id),
        f"{prefix}source": "postroom",
        f"{prefix}type": message.topic,
        f"{prefix}topic": message.topic,
        f"{prefix}time": str(message.created_at),
        f"{prefix}sequence": f"{message.position:019d}",
    }


class Client(ABC):
    """A client library that publishes to a server of its own."""

    name: ClassVar[str]
    way: ClassVar[str]
    kind: ClassVar[type[Service]]

    def __init__(self, server: Any) -> None:
        self.server = server

    @abstractmethod
    def broker(self) -> Broker:
        """The relay's broker for the same server."""

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def empty(self) -> None:
        """Create an empty queue, stream or topic."""

    @abstractmethod
    async def publish(self, messages: Sequence[Message]) -> None:
        """Return when the server has confirmed every message."""

    @abstractmethod
    async def arrived(self) -> int | None:
        """The number of messages on the server; None if only the confirmations tell."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


class NatsClient(Client):
    """nats-py: futures of `publish_async`, which has no limit of its own below 4,000 pending."""

    name = "nats"
    way = "publish_async"
    kind = Nats

    def broker(self) -> Broker:
        return NatsBroker(f"nats://127.0.0.1:{self.server.port}")

    async def open(self) -> None:
        self._client = await nats.connect(f"nats://127.0.0.1:{self.server.port}")
        self._jetstream = self._client.jetstream()
        await self._jetstream.add_stream(name=TOPIC, subjects=[TOPIC])

    async def empty(self) -> None:
        await self._jetstream.delete_stream(TOPIC)
        await self._jetstream.add_stream(name=TOPIC, subjects=[TOPIC])

    async def publish(self, messages: Sequence[Message]) -> None:
        publish = self._jetstream.publish_async
        waiting = []
        for message in messages:
            headers = {**attributes(message, "ce-"), "Nats-Msg-Id": str(message.id)}
            waiting.append(await publish(message.topic, message.payload or b"", headers=headers))
        await asyncio.gather(*waiting)

    async def arrived(self) -> int:
        return (await self._jetstream.stream_info(TOPIC)).state.messages

    async def close(self) -> None:
        await self._client.close()


class RedisClient(Client):
    """redis-py: one pipeline of XADD for each batch."""

    name = "redis"
    way = "pipelined XADD"
    kind = Redis

    def broker(self) -> Broker:
        return RedisBroker(f"redis://127.0.0.1:{self.server.port}?declare=true")

    async def open(self) -> None:
        self._client = redis.Redis(port=self.server.port)

    async def empty(self) -> None:
        await self._client.delete(TOPIC)

    async def publish(self, messages: Sequence[Message]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for message in messages:
                fields: Any = {**attributes(message, "ce_"), "data": message.payload}
                pipeline.xadd(message.topic, fields)
            await pipeline.execute()

    async def arrived(self) -> int:
        return int(await self._client.xlen(TOPIC))

    async def close(self) -> None:
        await self._client.aclose()


class RabbitClient(Client):
    """aio-pika: a batch gathered on one channel with confirms, to a quorum queue."""

    name = "rabbitmq"
    way = "aio-pika gather"
    kind = RabbitMQ

    def broker(self) -> Broker:
        return RabbitBroker(f"amqp://127.0.0.1:{self.server.port}")

    async def open(self) -> None:
        self._connection = await aio_pika.connect(port=self.server.port)
        self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        await self._declare()

    async def _declare(self) -> Any:
        return await self._channel.declare_queue(TOPIC, durable=True, arguments={"x-queue-type": "quorum"})

    async def empty(self) -> None:
        await self._channel.queue_delete(TOPIC)
        await self._declare()

    async def publish(self, messages: Sequence[Message]) -> None:
        exchange = self._channel.default_exchange
        await asyncio.gather(*(exchange.publish(self._encoded(one), one.topic, mandatory=True) for one in messages))

    def _encoded(self, message: Message) -> aio_pika.Message:
        headers: Any = attributes(message, "ce-")
        return aio_pika.Message(
            message.payload or b"",
            content_type=headers.pop("content-type"),
            headers=headers,
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            message_id=str(message.id),
        )

    async def arrived(self) -> int:
        return int((await self._declare()).declaration_result.message_count)

    async def close(self) -> None:
        await self._connection.close()


class KafkaClient(Client):
    """confluent-kafka: `produce` with callbacks, served by a polling thread."""

    name = "kafka"
    way = "produce with callbacks"
    kind = Kafka

    def __init__(self, server: Kafka) -> None:
        super().__init__(server)
        self._places = ",".join(f"{host}:{port}" for host, port in server.places())

    def broker(self) -> Broker:
        return KafkaBroker(f"kafka://{self._places}")

    async def open(self) -> None:
        settings = {"bootstrap.servers": self._places, "acks": "all", "enable.idempotence": True, "linger.ms": 1}
        self._producer = confluent_kafka.Producer(settings)
        while self._producer.list_topics(TOPIC, timeout=10).topics[TOPIC].error is not None:
            pass
        self._open = True
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._thread.start()

    def _poll(self) -> None:
        while self._open:
            self._producer.poll(POLL)

    async def empty(self) -> None:
        """Nothing to do: the mock cluster keeps only the last megabytes of each partition."""

    async def publish(self, messages: Sequence[Message]) -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        left = len(messages)

        def delivered(error: object, _: object) -> None:
            nonlocal left
            if error is not None:
                loop.call_soon_threadsafe(done.set_exception, AssertionError(str(error)))
            left -= 1
            if not left:
                loop.call_soon_threadsafe(done.set_result, None)

        produce = self._producer.produce
        for message in messages:
            headers: Any = list(attributes(message, "ce_").items())
            produce(message.topic, message.payload, message.key, headers=headers, on_delivery=delivered)
        await done

    async def arrived(self) -> None:
        return None

    async def close(self) -> None:
        self._open = False
        await asyncio.to_thread(self._thread.join)


CLIENTS: dict[str, type[Client]] = {kind.name: kind for kind in (NatsClient, RedisClient, RabbitClient, KafkaClient)}
