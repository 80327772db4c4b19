"""Receive from one or several queues of RabbitMQ, with explicit acknowledgements."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from postroom.brokers import urls
from postroom.brokers.cloudevents import AMQP, CONTENT_TYPE, incoming
from postroom.brokers.rabbitmq import PORTS, RabbitOptions
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.runtime.waiting import wait_for
from postroom.sources import patterns
from postroom.sources.port import Received
from postroom.sources.rabbitmq_connection import Delivery, ReceivingConnection
from postroom.sources.reading import text, undecodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.incoming import Incoming

ANSWER_TIMEOUT = 10.0
"""Seconds for logging in, and for each answer."""


class RabbitSource:
    """Receives on one connection, and reconnects after any failure.

    By default each topic is a queue, as it is for a relay. With `exchange` or `queue` in the URL there is one queue.
    """

    def __init__(self, url: str, consumer: str, topics: Sequence[str]) -> None:
        self._url, self._options = urls.parse(url, PORTS, RabbitOptions)
        self.name = self._url.name
        self._tls = self._options.tls() if self._url.scheme == "amqps" else None
        topics = patterns.check_topics(topics)
        if self._options.exchange or self._options.queue:
            self._queues: Sequence[str] = [self._options.queue or consumer]
            self._keys = [_routing_key(topic, self._options.exchange_type) for topic in topics]
        else:
            for topic in topics:
                patterns.no_pattern("amqp", topic, "give an exchange, with ?exchange=…, or name each queue")
            self._queues, self._keys = topics, []
        self._connection: ReceivingConnection | None = None

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` of the messages that the server has sent. Raises `BrokerUnavailable`."""
        connection = await self._connected()
        try:
            if not connection.waiting:
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    await connection.ask_for(self._queues, most)
                await self._wait(connection, seconds)
        except (OSError, TimeoutError) as error:
            await self._drop(connection)
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None
        if not connection.waiting and (connection.lost or connection.silent):
            reason = connection.lost or "the server has gone silent"
            await self._drop(connection)
            raise BrokerUnavailable(f"{self.name}: {reason}")
        found = [connection.waiting.popleft() for _ in range(min(most, len(connection.waiting)))]
        return [_received(connection, delivery) for delivery in found]

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Acknowledge what came on this connection; the rest comes again anyway. Raises `BrokerUnavailable`."""
        connection = self._connection
        if connection is not None and (tags := _tags(connection, received)):
            try:
                await connection.acknowledge(tags)
            except OSError as error:
                raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None

    async def give_back(self, received: Sequence[Received]) -> None:
        """Requeue what came on this connection; the rest is back in its queue already."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                await connection.requeue(_tags(connection, received))

    async def close(self) -> None:
        """Close the connection: the server requeues what is not acknowledged."""
        if self._connection is not None:
            await self._drop(self._connection)

    async def _wait(self, connection: ReceivingConnection, seconds: float) -> None:
        connection.news.clear()
        if not connection.waiting and not connection.lost:
            await wait_for(connection.news, seconds)

    async def _connected(self) -> ReceivingConnection:
        if self._connection is not None and not self._connection.lost:
            return self._connection
        if self._connection is not None:
            reason = self._connection.lost
            await self._drop(self._connection)
            raise BrokerUnavailable(f"{self.name}: {reason}")
        connection: ReceivingConnection | None = None
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                connection = await self._connect()
                await self._set_up(connection)
        except (OSError, TimeoutError) as error:
            if connection is not None:
                await connection.close()
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None
        except BaseException:
            if connection is not None:
                await connection.close()
            raise
        self._connection = connection
        return connection

    async def _connect(self) -> ReceivingConnection:
        url = self._url
        user, password = url.user or "guest", url.password or "guest"
        return await ReceivingConnection.connect(url.hosts, self._tls, user, password, unquote(url.path) or "/")

    async def _set_up(self, connection: ReceivingConnection) -> None:
        options = self._options
        if options.declare and options.exchange:
            await connection.ensure_exchange(options.exchange, options.exchange_type)
        for queue in self._queues:
            await connection.ensure_queue(queue, declare=options.declare)
            for key in self._keys if options.declare and options.exchange else []:
                await connection.bind(queue, options.exchange, key)

    async def _drop(self, connection: ReceivingConnection) -> None:
        """Give up the connection; the next call gets a new one."""
        if self._connection is connection:
            self._connection = None
        await connection.close()


def _routing_key(topic: str, exchange_type: str) -> str:
    """A topic as a binding key: a star, which matches one word or more, becomes `*.#`."""
    if not patterns.is_pattern(topic) or exchange_type == "fanout":
        return topic
    if exchange_type != "topic":
        raise InvalidSetting(f"amqp: topic {topic!r}: an exchange of the type {exchange_type} knows no patterns")
    words = patterns.whole_words("amqp", topic)
    return ".".join("*.#" if word == patterns.STAR else word for word in words) if len(words) > 1 else "#"


def _tags(connection: ReceivingConnection, received: Sequence[Received]) -> set[int]:
    return {one.receipt[1] for one in received if one.receipt[0] is connection}


def _received(connection: ReceivingConnection, delivery: Delivery) -> Received:
    try:
        message = _read(delivery)
    except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault
        message = _unread(delivery, f"it cannot be read: {type(error).__name__}")
    return Received(message, (connection, delivery.start.tag))


def _read(delivery: Delivery) -> Incoming:
    start, properties = delivery.start, delivery.properties
    if problem := start.problem or properties.problem:
        return _unread(delivery, problem)
    known = properties.known
    headers = {name: _text(value) for name, value in (known.headers or {}).items()}
    if known.content_type:
        headers[CONTENT_TYPE] = known.content_type
    return incoming(AMQP, headers, delivery.payload, id=known.message_id or str(uuid4()), topic=start.routing_key)


def _unread(delivery: Delivery, problem: str) -> Incoming:
    start, properties = delivery.start, delivery.properties
    raw = properties.raw or (properties.known.marshal() if properties.known else b"")
    return undecodable(start.routing_key, delivery.payload, problem, id=str(uuid4()), headers=raw)


def _text(value: Any) -> str:
    return text(bytes(value)) if isinstance(value, (bytes, bytearray)) else str(value)


def _why(error: Exception) -> str:
    return str(error) or "the server does not answer"
