"""Kafka: an idempotent producer that waits for all replicas, with a thread of its own for its callbacks."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from postroom.brokers import urls
from postroom.brokers.batches import Batch, Leaving, check_time, invalid_target, sealed, too_large, unsendable
from postroom.brokers.cloudevents import KAFKA
from postroom.brokers.port import NOT_SENT, Accepted, Capabilities, Outcome, Refused, TargetUnavailable, Unreached
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules import topics
from postroom.rules.failures import Failure, Reason

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ImportError as error:
    raise urls.client_missing("kafka", "kafka", error) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message

PORTS = {"kafka": 9092, "kafka+ssl": 9093}
LOOKING = 0.2
"""The part of the timeout for asking after a topic."""
GLANCE = 0.1
"""Seconds after which the polling thread looks whether it should end."""
_OF_THE_TOPIC = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - the client's public name for it, as all with an underscore
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - as above
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
_NOT_SET_UP = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - as above
        KafkaError._TRANSPORT,  # noqa: SLF001 - as above
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - as above
        KafkaError._PURGE_QUEUE,  # noqa: SLF001 - as above
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001 - as above
        KafkaError._FATAL,  # noqa: SLF001 - as above
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
_TOO_LARGE = Refused(Reason.MESSAGE_TOO_LARGE, "the bytes of the message are more than the topic's max.message.bytes")
_GONE = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._FATAL})  # noqa: SLF001 - as above

silence = logging.getLogger(
    "postroom.brokers.kafka"
)  # the relay says once that the broker is gone, and that it is back
silence.addHandler(logging.NullHandler())
silence.propagate = False


Letter = tuple[int, str, bytes | None, list[tuple[str, str | bytes | None]], bytes | None]
"""Place in the batch, topic, key, headers, body."""


class Options(urls.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the URL's query may hold."""

    sasl: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    """How user and password are shown to the server."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1000, le=1_000_000_000)] = 1_000_000
    """The most bytes that a message may have."""
    group: str | None = None
    """Receiving: the consumer group."""
    session_timeout_ms: Annotated[int, msgspec.Meta(ge=1000, le=1_800_000)] = 45_000
    """Receiving: after how long a dead receiver's partitions go to another."""


class _Link:
    """A producer and its thread. After trouble it is thrown away with all that it holds, lest that be sent late."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._told: deque[tuple[Batch | None, int, Any, Any]] = deque()
        told = self._told  # the producer must not hold on to us, or it would not end with us
        self._producer: Producer | None = Producer(
            {**settings, "error_cb": lambda error: told.append((None, 0, error, None))}, logger=silence
        )
        self._loop = asyncio.get_running_loop()
        self._batches: set[Batch] = set()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="postroom-kafka", daemon=True)
        self.lost: str | None = None
        self.missing: set[str] = set()
        """Topics that the producer takes to be missing, which it would for minutes."""

    async def open(self, timeout: float) -> None:  # noqa: ASYNC109 - as publish
        """Ask a server for its brokers. Raises `KafkaException`."""
        assert self._producer is not None  # noqa: S101 - just made
        self._thread.start()
        await asyncio.to_thread(self._producer.list_topics, "__postroom", timeout)

    async def look_again(self, topics: set[str], seconds: float) -> None:
        """Have the producer ask whether topics are there by now."""
        for topic in self.missing & topics:
            if self._producer is not None:
                self.missing.discard(topic)
                with suppress(KafkaException):  # then the messages are told
                    await asyncio.to_thread(self._producer.list_topics, topic, seconds)

    def send(self, letters: Sequence[Letter], batch: Batch, limit: int) -> None:
        """Hand the messages to the producer."""
        if self._producer is None or self.lost:
            batch.lose(self.lost or "the connection is closed")
            return
        self._batches.add(batch)
        told, produce = self._told, self._producer.produce
        for index, topic, key, headers, body in letters:

            def delivered(error: Any, record: Any, index: int = index) -> None:
                told.append((batch, index, error, record))

            try:
                produce(topic, body, key, on_delivery=delivered, headers=headers)
            except BufferError:
                batch.settle(index, NOT_SENT)
            except KafkaException as error:
                batch.settle(index, _refused(error.args[0], len(body or b""), limit))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is this message's, and none of the others'
                batch.settle(index, unsendable(error))

    def forget(self, batch: Batch) -> None:
        """What is told later is of no interest."""
        self._batches.discard(batch)

    async def close(self) -> None:
        """Throw away what is not sent, and end."""
        self.lose("the connection is closed")
        if self._producer is not None:
            self._producer.purge()
            self._producer = None  # the thread has the last hold on it, and waits for its end
            self._ending.set()
            await asyncio.to_thread(self._thread.join)

    def _poll(self) -> None:
        producer = self._producer
        assert producer is not None  # noqa: S101 - the thread starts with it
        while not self._ending.is_set():
            producer.poll(GLANCE)
            if self._told and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        while self._told:
            batch, index, error, record = self._told.popleft()
            if batch is None:
                if error.code() in _GONE:
                    self.lose(error.str())
            elif error is None:
                batch.answer(index, Accepted(f"{record.partition()}:{record.offset()}"))
            else:
                batch.answer(index, _refused(error, len(record.value() or b""), 0))

    def lose(self, reason: str) -> None:
        """No more answers are to be expected: those without one were not reached."""
        self.lost = self.lost or reason
        for batch in self._batches:
            batch.lose(self.lost)


class KafkaBroker:
    """Produces to the topic that a message names, its key deciding on the partition."""

    def __init__(self, url: str) -> None:
        self._address, self.options = urls.parse(url, PORTS, Options)
        if self.options.declare:
            raise InvalidSetting("kafka: topics are not declared here: make them with the replication that you need")
        self.name = self._address.name
        self.capabilities = Capabilities(ordered=True, places=True, max_bytes=self.options.max_bytes)
        self._envelope = self.options.envelope(KAFKA)
        self._connecting = asyncio.Lock()
        self._leaving = Leaving()
        self._link: _Link | None = None

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Produce all, then wait until each is delivered or refused. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        batch = Batch(len(messages))
        letters = sealed(messages, batch, self._letter)
        link = await self._linked(timeout)
        if link.missing:
            await link.look_again({message.topic for message in messages}, timeout * LOOKING)
        check_time(self.name, deadline, timeout)
        late = False
        try:
            async with asyncio.timeout_at(deadline):
                link.send(letters, batch, self.options.max_bytes)
                await batch.complete()
        except TimeoutError:
            late = True
        finally:
            link.forget(batch)
        outcomes = batch.outcomes(timeout)
        if late or link.lost or any(isinstance(outcome, Unreached) for outcome in outcomes):
            self._drop(link)
        link.missing.update(
            message.topic
            for message, outcome in zip(messages, outcomes, strict=True)
            if isinstance(outcome, TargetUnavailable)
        )
        if len(messages) > 1 and _TOO_LARGE in outcomes:
            return await self._each_alone(messages, outcomes, deadline)
        return outcomes

    def _letter(self, index: int, message: Message) -> Letter | Refused:
        """All text is encoded here: where the client cannot, it takes the whole process down."""
        if problem := topics.kafka_topic(message.topic):
            return invalid_target(message.topic, problem)
        headers, body = self._envelope.seal(message)
        key = None if message.key is None else message.key.encode()
        return index, message.topic, key, [(name, value.encode()) for name, value in headers.items()], body

    async def _each_alone(
        self, messages: Sequence[Message], outcomes: Sequence[Outcome], deadline: float
    ) -> Sequence[Outcome]:
        """The server refuses what it was sent together: find out which of them it is."""
        found = list(outcomes)
        for index, outcome in enumerate(outcomes):
            if outcome == _TOO_LARGE:
                left = deadline - asyncio.get_running_loop().time()
                [found[index]] = await self.publish([messages[index]], left) if left > 0 else [NOT_SENT]
        return found

    async def close(self) -> None:
        """End the producer and its thread."""
        if self._link is not None:
            self._drop(self._link)
        await self._leaving.end()

    async def _linked(self, timeout: float) -> _Link:  # noqa: ASYNC109 - as publish
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._link is None or self._link.lost:
                    if self._link is not None:
                        self._drop(self._link)
                    self._link = await self._connect(timeout)
                return self._link
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except KafkaException as error:
            raise BrokerUnavailable(f"{self.name}: {error.args[0].str()}") from None

    async def _connect(self, timeout: float) -> _Link:  # noqa: ASYNC109 - as publish
        link = _Link(self.settings())
        try:
            await link.open(timeout)
        except BaseException:
            self._leaving.begin(link.close())
            raise
        return link

    def settings(self) -> dict[str, Any]:
        """What any client of this cluster is set to."""
        address, options = self._address, self.options
        encrypted = address.scheme == "kafka+ssl"
        settings: dict[str, Any] = {
            "bootstrap.servers": address.places(),
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
        if address.user:
            settings |= {
                "security.protocol": "SASL_SSL" if encrypted else "SASL_PLAINTEXT",
                "sasl.mechanism": options.sasl,
                "sasl.username": address.user,
                "sasl.password": address.password or "",
            }
        return settings | ({"ssl.ca.location": options.ca} if options.ca else {})

    def _drop(self, link: _Link) -> None:
        """The next batch gets a new producer."""
        if self._link is link:
            self._link = None
            link.lose(f"{self.name}: the producer was given up")
            self._leaving.begin(link.close())


def _refused(error: Any, size: int, limit: int) -> Outcome:
    code = error.code()
    if code == KafkaError.MSG_SIZE_TOO_LARGE:
        return too_large(size, limit) if limit else _TOO_LARGE
    if code in _OF_THE_TOPIC:
        return TargetUnavailable(error.str())
    if code in _NOT_SET_UP:
        return Unreached(error.str())
    if code == KafkaError.TOPIC_EXCEPTION:
        return Refused(Reason.INVALID_TARGET, error.str(), Failure.PERMANENT)
    return Refused(f"KAFKA_{error.name()}"[:64], error.str())
