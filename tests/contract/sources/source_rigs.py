"""What the source contract needs to know of each broker: its publisher, its source, and how to send a plain message."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

import aio_pika
import confluent_kafka
import nats
import psutil
import redis.asyncio as redis

from postroom.brokers.memory import MemoryBroker
from postroom.sources.kafka import KafkaSource
from postroom.sources.memory import MemorySource
from postroom.sources.nats import NatsSource
from postroom.sources.rabbitmq import RabbitSource
from postroom.sources.redis import RedisSource
from tests.contract.brokers.rigs import KafkaRig, NatsRig, RabbitRig, RedisRig, Rig
from tests.contract.sources.receiving import GLANCE
from tests.services.databases import need

if TYPE_CHECKING:
    from postroom.brokers.port import Broker
    from postroom.sources.port import Source


class SourceRig(ABC):
    """One kind of broker, where messages are received."""

    name: ClassVar[str]
    hasty: ClassVar[dict[str, str]] = {}
    """Options with which what a dead receiver had comes again within a second or so."""

    @abstractmethod
    async def declare(self, topic: str) -> None:
        """Make what messages of this topic go to."""

    @abstractmethod
    def broker(self) -> Broker:
        """Where to publish; whoever asks closes it."""

    @abstractmethod
    def source(self, consumer: str, *topics: str, **options: str) -> Source:
        """A source; whoever asks closes it."""


class MemorySourceRig(SourceRig):
    name = "memory"

    def __init__(self) -> None:
        self._broker = MemoryBroker()

    async def declare(self, topic: str) -> None:
        pass

    def broker(self) -> Broker:
        return self._broker

    def source(self, consumer: str, *topics: str, **options: str) -> Source:
        assert not options
        return MemorySource(self._broker, consumer, topics)


class ServerSourceRig(SourceRig):
    """A broker that is a server, which tests may kill, and must start again."""

    rig_kind: ClassVar[type[Rig]]
    source_kind: ClassVar[type[KafkaSource | NatsSource | RabbitSource | RedisSource]]

    def __init__(self) -> None:
        self.rig = self.rig_kind(need(self.rig_kind.kind))

    @abstractmethod
    async def send_plain(self, topic: str, body: bytes, headers: dict[str, str]) -> None:
        """Send what is no CloudEvent, with the broker's own client."""

    async def declare(self, topic: str) -> None:
        await self.rig.declare(topic)

    def broker(self) -> Broker:
        return self.rig.broker(self.rig.url())

    def url(self, port: int | None = None, **options: str) -> str:
        return self.rig.url(port, **options)

    def source(self, consumer: str, *topics: str, **options: str) -> Source:
        return self.source_kind(self.url(None, **options), consumer, topics)

    async def settled(self, *sources: Source) -> None:
        """Return when each of these has its share."""
        for source in sources:
            assert await source.receive(1, GLANCE) == []

    def cut(self) -> None:
        """Break all connections of this process to the server, as a network does."""
        for one in psutil.Process().net_connections(kind="tcp"):
            if getattr(one.raddr, "port", None) in self.rig.ports() and one.status == "ESTABLISHED":
                with closing(socket.socket(fileno=os.dup(one.fd))) as broken:
                    broken.shutdown(socket.SHUT_RDWR)


class NatsSourceRig(ServerSourceRig):
    name = "nats"
    rig_kind = NatsRig
    source_kind = NatsSource
    hasty: ClassVar = {"ack_wait": "0.5"}

    async def send_plain(self, topic: str, body: bytes, headers: dict[str, str]) -> None:
        client = await nats.connect(f"nats://127.0.0.1:{self.rig.server.port}")
        await client.jetstream().publish(topic, body, headers=dict(headers))
        await client.close()


class RedisSourceRig(ServerSourceRig):
    name = "redis"
    rig_kind = RedisRig
    source_kind = RedisSource
    hasty: ClassVar = {"claim_idle_ms": "500"}

    async def send_plain(self, topic: str, body: bytes, headers: dict[str, str]) -> None:
        async with redis.Redis(port=self.rig.server.port) as client:
            fields: dict[Any, Any] = {**headers, "data": body}
            await client.xadd(topic, fields)


class RabbitSourceRig(ServerSourceRig):
    name = "rabbitmq"
    rig_kind = RabbitRig
    source_kind = RabbitSource

    async def send_plain(self, topic: str, body: bytes, headers: dict[str, str]) -> None:
        given: dict[str, Any] = dict(headers)
        async with await aio_pika.connect(port=self.rig.server.port) as connection:
            channel = await connection.channel()
            message = aio_pika.Message(body, content_type=given.pop("content-type", None), headers=given)
            await channel.default_exchange.publish(message, topic)


class KafkaSourceRig(ServerSourceRig):
    name = "kafka"
    rig_kind = KafkaRig
    source_kind = KafkaSource

    def url(self, port: int | None = None, **options: str) -> str:
        # The mock cluster has a group wait for a second less than this for members that do not come back.
        return super().url(port, **{"session_timeout_ms": "1500", **options})

    async def send_plain(self, topic: str, body: bytes, headers: dict[str, str]) -> None:
        places = self.rig.url().removeprefix("kafka://").partition("?")[0]
        producer = confluent_kafka.Producer({"bootstrap.servers": places})
        producer.produce(topic, body, headers=list(headers.items()))
        assert producer.flush(10) == 0

    async def settled(self, *sources: Source) -> None:
        members = []
        for source in sources:
            await source.receive(1, 0)
            assert isinstance(source, KafkaSource)
            members.append(source._member)
        while not all(member and member.partitions for member in members):  # noqa: ASYNC110 - its thread notifies nobody
            await asyncio.sleep(0.02)


SERVERS: list[type[ServerSourceRig]] = [NatsSourceRig, RedisSourceRig, RabbitSourceRig, KafkaSourceRig]
SOURCE_RIGS: list[type[SourceRig]] = [MemorySourceRig, *SERVERS]
