"""Messages from RabbitMQ: a queue, or several, with explicit acknowledgements."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from postroom.brokers import urls
from postroom.brokers.cloudevents import AMQP, CONTENT_TYPE, incoming
from postroom.brokers.rabbitmq import PORTS, Options
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.runtime.waiting import wait_for
from postroom.sources import patterns
from postroom.sources.port import Received
from postroom.sources.rabbitmq_link import Delivery, Inbound
from postroom.sources.reading import text, undecodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.incoming import Incoming

PATIENCE = 10.0
"""Seconds that the server has to let us in, and for each answer."""


class RabbitSource:
    """Receives from one queue, on one connection, which is made anew after any trouble.

    Without an exchange, and where no queue is named, each topic is a queue, as it is for a relay.
    """

    def __init__(self, url: str, consumer: str, topics: Sequence[str]) -> None:
        self._address, self._options = urls.parse(url, PORTS, Options)
        self.name = self._address.name
        self._tls = self._options.tls() if self._address.scheme == "amqps" else None
        topics = patterns.check_topics(topics)
        if self._options.exchange or self._options.queue:
            self._queues: Sequence[str] = [self._options.queue or consumer]
            self._keys = [_routing_key(topic, self._options.exchange_type) for topic in topics]
        else:
            for topic in topics:
                patterns.no_pattern("amqp", topic, "give an exchange, with ?exchange=…, or name each queue")
            self._queues, self._keys = topics, []
        self._link: Inbound | None = None

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` messages of those that the server has sent already. Raises `BrokerUnavailable`."""
        link = await self._linked()
        try:
            if not link.waiting:
                async with asyncio.timeout(PATIENCE):
                    await link.ask_for(self._queues, most)
                await self._wait(link, seconds)
        except (OSError, TimeoutError) as error:
            await self._drop(link)
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None
        if not link.waiting and (link.lost or link.silent):
            reason = link.lost or "the server has gone silent"
            await self._drop(link)
            raise BrokerUnavailable(f"{self.name}: {reason}")
        found = [link.waiting.popleft() for _ in range(min(most, len(link.waiting)))]
        return [_received(link, delivery) for delivery in found]

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Acknowledge what came by this connection; the rest comes again by itself. Raises `BrokerUnavailable`."""
        link = self._link
        if link is not None and (tags := _tags(link, received)):
            try:
                await link.acknowledge(tags)
            except OSError as error:
                raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None

    async def give_back(self, received: Sequence[Received]) -> None:
        """Put back what came by this connection; the rest is back already."""
        link = self._link
        if link is not None:
            with contextlib.suppress(OSError):
                await link.requeue(_tags(link, received))

    async def close(self) -> None:
        """End the connection: the server puts back what is out."""
        if self._link is not None:
            await self._drop(self._link)

    async def _wait(self, link: Inbound, seconds: float) -> None:
        link.news.clear()
        if not link.waiting and not link.lost:
            await wait_for(link.news, seconds)

    async def _linked(self) -> Inbound:
        if self._link is not None and not self._link.lost:
            return self._link
        if self._link is not None:
            reason = self._link.lost
            await self._drop(self._link)
            raise BrokerUnavailable(f"{self.name}: {reason}")
        link: Inbound | None = None
        try:
            async with asyncio.timeout(PATIENCE):
                link = await self._connect()
                await self._set_up(link)
        except (OSError, TimeoutError) as error:
            if link is not None:
                await link.close()
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None
        except BaseException:
            if link is not None:
                await link.close()
            raise
        self._link = link
        return link

    async def _connect(self) -> Inbound:
        address = self._address
        user, password = address.user or "guest", address.password or "guest"
        return await Inbound.connect(address.hosts, self._tls, user, password, unquote(address.path) or "/")

    async def _set_up(self, link: Inbound) -> None:
        options = self._options
        if options.declare and options.exchange:
            await link.have_exchange(options.exchange, options.exchange_type)
        for queue in self._queues:
            await link.have_queue(queue, declare=options.declare)
            for key in self._keys if options.declare and options.exchange else []:
                await link.bind(queue, options.exchange, key)

    async def _drop(self, link: Inbound) -> None:
        """The next call gets a new connection."""
        if self._link is link:
            self._link = None
        await link.close()


def _routing_key(topic: str, exchange_type: str) -> str:
    """A topic as a binding's key: a star, which stands for one word or more, is `*.#` there."""
    if not patterns.is_pattern(topic) or exchange_type == "fanout":
        return topic
    if exchange_type != "topic":
        raise InvalidSetting(f"amqp: topic {topic!r}: an exchange of the type {exchange_type} knows no patterns")
    words = patterns.whole_words("amqp", topic)
    return ".".join("*.#" if word == patterns.STAR else word for word in words) if len(words) > 1 else "#"


def _tags(link: Inbound, received: Sequence[Received]) -> set[int]:
    return {one.receipt[1] for one in received if one.receipt[0] is link}


def _received(link: Inbound, delivery: Delivery) -> Received:
    try:
        message = _read(delivery)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this message's fault alone
        message = _unread(delivery, f"it cannot be read: {type(error).__name__}")
    return Received(message, (link, delivery.start.tag))


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
