"""What the broker contract needs to know of each broker: its server, its URL, and how to look at what arrived."""

from __future__ import annotations

import asyncio
import base64
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

import aio_pika
import confluent_kafka
import nats
import psutil
import redis.asyncio as redis
from nats.js.api import AckPolicy, ConsumerConfig

from postroom.brokers.cloudevents import AMQP, HTTP, KAFKA, NATS, REDIS, decode
from postroom.brokers.http import HttpBroker
from postroom.brokers.kafka import KafkaBroker
from postroom.brokers.nats import NatsBroker
from postroom.brokers.port import NotSent, Outcome, TargetUnavailable, Unreached
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.brokers.redis import RedisBroker
from postroom.rules.failures import Reason
from tests.services.kafka import Kafka
from tests.services.nats import Nats
from tests.services.rabbitmq import RabbitMQ
from tests.services.receiver import Receiver
from tests.services.redis import LARGEST, Redis

if TYPE_CHECKING:
    from postroom.incoming import Incoming
    from tests.services.service import Service


class Rig(ABC):
    """One kind of broker, and the run's server of it, which tests may kill, and must start again."""

    name: ClassVar[str]
    kind: ClassVar[type[Service]]
    broker: ClassVar[type[HttpBroker | KafkaBroker | NatsBroker | RabbitBroker | RedisBroker]]
    too_large: ClassVar[int]
    """Bytes of payload that the server does not take."""
    many: ClassVar[int] = 10_000
    """Messages that take many batches."""
    greets: ClassVar[bool] = True
    """Whether the server says something before a message is sent."""

    topics: ClassVar[bool] = True
    """Whether the server has a place for each topic, which may be missing."""
    not_set_up: ClassVar[set[type[Outcome]]] = {TargetUnavailable}
    """What becomes of messages that the server has no place for."""

    def __init__(self, server: Service) -> None:
        self.server = server

    @abstractmethod
    def url(self, port: int | None = None, **options: str) -> str:
        """The broker's URL; on another port if one is given."""

    async def unroutable(self) -> tuple[str, str, str] | None:
        """A URL and a topic that no message reaches while others do, and the code; None where that cannot be."""
        return self.url(), "no such topic", Reason.INVALID_TARGET

    @abstractmethod
    async def declare(self, topic: str) -> None:
        """Make what messages of this topic go to."""

    @abstractmethod
    async def received(self, topic: str) -> list[Incoming]:
        """Everything that arrived, in order."""

    def connections(self) -> int:
        """How many connections to the server this process has."""
        found = psutil.Process().net_connections(kind="tcp")
        return sum(getattr(one.raddr, "port", None) in self.ports() and one.status == "ESTABLISHED" for one in found)

    def ports(self) -> set[int]:
        """Where the server listens."""
        return {self.server.port}

    async def restart(self) -> None:
        """Start the server again, beside what else goes on."""
        await asyncio.to_thread(self.server.start)


class NatsRig(Rig):
    name = "nats"
    kind = Nats
    broker = NatsBroker
    too_large = 1024 * 1024

    def url(self, port: int | None = None, **options: str) -> str:
        return f"nats://127.0.0.1:{port or self.server.port}?{urlencode(options)}"

    async def declare(self, topic: str) -> None:
        client = await nats.connect(f"nats://127.0.0.1:{self.server.port}")
        await client.jetstream().add_stream(name=topic, subjects=[topic])
        await client.close()

    async def received(self, topic: str) -> list[Incoming]:
        client = await nats.connect(f"nats://127.0.0.1:{self.server.port}")
        stream = client.jetstream()
        expected = (await stream.stream_info(topic)).state.messages
        settings = ConsumerConfig(ack_policy=AckPolicy.NONE)
        subscription = await stream.pull_subscribe(topic, stream=topic, config=settings)
        events: list[Incoming] = []
        while len(events) < expected:
            found = await subscription.fetch(min(1000, expected - len(events)), timeout=10)
            events += [decode(NATS, one.headers or {}, one.data) for one in found]
        await client.close()
        return events


class RedisRig(Rig):
    name = "redis"
    kind = Redis
    broker = RedisBroker
    too_large = LARGEST + 1

    def url(self, port: int | None = None, **options: str) -> str:
        return f"redis://127.0.0.1:{port or self.server.port}?{urlencode({'max_bytes': LARGEST, **options})}"

    async def unroutable(self) -> None:
        return None  # a stream may have any name

    async def declare(self, topic: str) -> None:
        async with redis.Redis(port=self.server.port) as client:
            await client.xgroup_create(topic, "readers", mkstream=True)

    async def received(self, topic: str) -> list[Incoming]:
        async with redis.Redis(port=self.server.port) as client:
            entries: Any = await client.xrange(topic)
        return [self._event(fields) for _, fields in entries]

    def _event(self, fields: dict[bytes, bytes]) -> Incoming:
        body = fields.pop(b"data", None)
        return decode(REDIS, {name.decode(): value.decode() for name, value in fields.items()}, body)


class RabbitRig(Rig):
    name = "rabbitmq"
    kind = RabbitMQ
    broker = RabbitBroker
    too_large = LARGEST + 1

    def url(self, port: int | None = None, **options: str) -> str:
        return f"amqp://127.0.0.1:{port or self.server.port}?{urlencode({'max_bytes': LARGEST, **options})}"

    async def unroutable(self) -> tuple[str, str, str]:
        return self.url(), "ü" * 200, Reason.INVALID_TARGET

    async def declare(self, topic: str) -> None:
        async with await aio_pika.connect(port=self.server.port) as connection:
            channel = await connection.channel()
            await channel.declare_queue(topic, durable=True)

    async def received(self, topic: str) -> list[Incoming]:
        events: list[Incoming] = []
        async with await aio_pika.connect(port=self.server.port) as connection:
            channel = await connection.channel()
            queue = await channel.get_queue(topic)
            expected = queue.declaration_result.message_count
            arrived: asyncio.Queue[Any] = asyncio.Queue()
            await queue.consume(arrived.put, no_ack=True)
            while len(events) < (expected or 0):
                message = await arrived.get()
                headers = {name: str(value) for name, value in message.headers.items()}
                if message.content_type:
                    headers["content-type"] = message.content_type
                events.append(decode(AMQP, headers, message.body))
        return events


class KafkaRig(Rig):
    name = "kafka"
    kind = Kafka
    server: Kafka
    broker = KafkaBroker
    too_large = 1_000_001

    def __init__(self, server: Service) -> None:
        super().__init__(server)
        self.values: list[bytes | None] = []
        """As they are on the wire, of all that was received."""

    def url(self, port: int | None = None, **options: str) -> str:
        places = [("127.0.0.1", port)] if port else self._places()
        return f"kafka://{','.join(f'{host}:{port}' for host, port in places)}?{urlencode(options)}"

    def _places(self) -> list[tuple[str, int]]:
        assert isinstance(self.server, Kafka)
        return self.server.places()

    def ports(self) -> set[int]:
        return {port for _, port in self._places()}

    def _consumer(self) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": ",".join(f"{host}:{port}" for host, port in self._places()),
                "group.id": "test",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "allow.auto.create.topics": True,
            }
        )

    async def declare(self, topic: str) -> None:
        consumer = self._consumer()
        while consumer.list_topics(topic, timeout=10).topics[topic].error is not None:
            pass
        consumer.close()

    async def received(self, topic: str) -> list[Incoming]:
        return await asyncio.to_thread(self._received, topic)

    def _received(self, topic: str) -> list[Incoming]:
        consumer = self._consumer()
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        events: list[Incoming] = []
        at_end: set[int | None] = set()
        while len(at_end) < len(partitions):
            for message in consumer.consume(1000, timeout=0.1):
                if message.error() is not None:
                    at_end.add(message.partition())
                    continue
                self.values.append(message.value())
                headers: Any = message.headers() or []
                events.append(decode(KAFKA, {name: value.decode() for name, value in headers}, message.value()))
        consumer.close()
        return events


class HttpRig(Rig):
    name = "http"
    kind = Receiver
    broker = HttpBroker
    too_large = LARGEST + 1
    many = 2000  # each is a request, in batches of any size
    greets = False
    topics = False
    not_set_up: ClassVar[set[type[Outcome]]] = {Unreached, NotSent}

    def url(self, port: int | None = None, **options: str) -> str:
        ours = urlencode({f"postroom.{name}": value for name, value in {"private": "true", **options}.items()})
        return f"http://127.0.0.1:{port or self.server.port}/hook?tenant=a+b&{ours}"

    def _ask(self, method: str, path: str) -> bytes:
        assert isinstance(self.server, Receiver)
        return self.server.request(method, path)

    async def unroutable(self) -> tuple[str, str, str]:
        return self.url(), "status-422", "HTTP_422"

    async def declare(self, topic: str) -> None:
        self._ask("PUT", f"/{topic}")

    async def received(self, topic: str) -> list[Incoming]:
        kept = [json.loads(line) for line in self._ask("GET", f"/{topic}").splitlines()]
        assert {one["path"] for one in kept} <= {"/hook?tenant=a+b"}
        return [decode(HTTP, one["headers"], base64.b64decode(one["body"])) for one in kept]


RIGS: list[type[Rig]] = [NatsRig, RedisRig, RabbitRig, KafkaRig, HttpRig]
