"""Kafka: publishes with an idempotent producer that waits for all replicas."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from postroom.brokers import urls
from postroom.brokers.batch import Batch, encode_each
from postroom.brokers.cloudevents import KAFKA, Header, Sealer
from postroom.brokers.connecting import ClosingConnections, check_time_left
from postroom.brokers.port import NOT_SENT, Capabilities, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.refusals import invalid_target
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules import topics

try:
    from confluent_kafka import KafkaException

    from postroom.brokers.kafka_producer import TOO_LARGE, Headers, Outgoing, PolledProducer
except ImportError as error:
    raise urls.client_missing("kafka", "kafka", error) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from postroom.message import Message

PORTS = {"kafka": 9092, "kafka+ssl": 9093}
LOOKUP_SHARE = 0.2
"""The share of the timeout for looking up a topic again."""


class KafkaOptions(urls.UrlOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options in the URL's query."""

    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    """How user and password are presented to the server."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1000, le=1_000_000_000)] = 1_000_000
    """The largest message, in bytes."""
    group: str | None = None
    """Receiving: the consumer group."""
    session_timeout_ms: Annotated[int, msgspec.Meta(ge=1000, le=1_800_000)] = 45_000
    """Receiving: how long until a dead receiver's partitions go to another one."""


class KafkaBroker:
    """Produces to the topic that a message names; its key decides the partition."""

    def __init__(self, url: str) -> None:
        self._url, self.options = urls.parse(url, PORTS, KafkaOptions)
        if self.options.declare:
            raise InvalidSetting("kafka: topics are not declared here: make them with the replication that you need")
        self.name = self._url.name
        self.capabilities = Capabilities(ordered=True, places=True, max_bytes=self.options.max_bytes)
        self._sealer = Sealer(self.options.envelope(KAFKA), _common)
        self._connecting = asyncio.Lock()
        self._closing = ClosingConnections()
        self._producer: PolledProducer | None = None

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Produce all messages, then wait until each is delivered or refused. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        batch = Batch(len(messages))
        producer = await self._connected(timeout)
        if producer.missing:
            await producer.look_again({message.topic for message in messages}, timeout * LOOKUP_SHARE)
        check_time_left(self.name, deadline, timeout)
        late = False
        try:
            async with asyncio.timeout_at(deadline):
                producer.send(encode_each(messages, batch, self._outgoing), batch, self.options.max_bytes)
                await batch.complete()
        except TimeoutError:
            late = True
        finally:
            producer.forget(batch)
        outcomes = batch.outcomes(timeout)
        if late or producer.lost or any(isinstance(outcome, Unreached) for outcome in outcomes):
            self._drop(producer)
        producer.missing.update(
            message.topic
            for message, outcome in zip(messages, outcomes, strict=True)
            if isinstance(outcome, TargetUnavailable)
        )
        if len(messages) > 1 and TOO_LARGE in outcomes:
            return await self._each_alone(messages, outcomes, deadline)
        return outcomes

    def _outgoing(self, index: int, message: Message) -> Outgoing | Refused:
        """Encode all text here: an encoding error inside the client would take the whole process down."""
        if problem := topics.kafka_topic(message.topic):
            return invalid_target(message.topic, problem)
        _, common, own, body = self._sealer.seal(message)
        key = None if message.key is None else message.key.encode()
        return index, message.topic, key, common + _encoded(own), body

    async def _each_alone(
        self, messages: Sequence[Message], outcomes: Sequence[Outcome], deadline: float
    ) -> Sequence[Outcome]:
        """Find out which message the server refuses: it refuses everything that was sent with it, too."""
        found = list(outcomes)
        for index, outcome in enumerate(outcomes):
            if outcome == TOO_LARGE:
                left = deadline - asyncio.get_running_loop().time()
                [found[index]] = await self.publish([messages[index]], left) if left > 0 else [NOT_SENT]
        return found

    async def close(self) -> None:
        """End the producer."""
        if self._producer is not None:
            self._drop(self._producer)
        await self._closing.wait()

    async def _connected(self, timeout: float) -> PolledProducer:  # noqa: ASYNC109 - as publish
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._producer is None or self._producer.lost:
                    if self._producer is not None:
                        self._drop(self._producer)
                    self._producer = await self._connect(timeout)
                return self._producer
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except KafkaException as error:
            raise BrokerUnavailable(f"{self.name}: {error.args[0].str()}") from None

    async def _connect(self, timeout: float) -> PolledProducer:  # noqa: ASYNC109 - as publish
        producer = PolledProducer(self.settings())
        try:
            await producer.open(timeout)
        except BaseException:
            self._closing.add(producer.close())
            raise
        return producer

    def settings(self) -> dict[str, Any]:
        """The settings of any client of this cluster."""
        url, options = self._url, self.options
        encrypted = url.scheme == "kafka+ssl"
        settings: dict[str, Any] = {
            "bootstrap.servers": url.places(),
            "client.id": "postroom",
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",  # as Java's clients: the same key on the same partition
            "linger.ms": 1,
            "message.max.bytes": options.max_bytes,
            "allow.auto.create.topics": False,
            "topic.metadata.propagation.max.ms": 1000,
            "security.protocol": "SSL" if encrypted else "PLAINTEXT",
        }
        if url.user:
            settings |= {
                "security.protocol": "SASL_SSL" if encrypted else "SASL_PLAINTEXT",
                "sasl.mechanism": options.sasl,
                "sasl.username": url.user,
                "sasl.password": url.password or "",
            }
        return settings | ({"ssl.ca.location": options.ca} if options.ca else {})

    def _drop(self, producer: PolledProducer) -> None:
        """Give up a producer; the next batch gets a new one."""
        if self._producer is producer:
            self._producer = None
            producer.lose(f"{self.name}: the producer was given up")
            self._closing.add(producer.close())


def _common(_: Message, headers: Mapping[str, str]) -> Headers:
    return _encoded(headers.items())


def _encoded(headers: Iterable[Header]) -> Headers:
    return [(name, value.encode()) for name, value in headers]
