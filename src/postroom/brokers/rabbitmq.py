"""RabbitMQ: persistent messages, mandatory, with publisher confirms."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import msgspec

from postroom.brokers import urls
from postroom.brokers.batches import Batch, Leaving, check_time, invalid_target, too_large
from postroom.brokers.cloudevents import AMQP, CONTENT_TYPE
from postroom.brokers.port import Capabilities, Outcome, Refused, TargetUnavailable
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Failure

try:
    from pamqp import commands

    from postroom.brokers.amqp import Letter, Link
except ImportError as error:
    raise urls.client_missing("amqp", "rabbitmq", error) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message

PORTS = {"amqp": 5672, "amqps": 5671}
MOST_BYTES = 16 * 1024 * 1024
"""What a server takes, unless it is set up otherwise (`max_message_size`; RabbitMQ 3 takes more)."""
SHORT = 255
LONGEST_NAME = 128
"""Bytes of a header's name in AMQP, beyond which the codec would cut it."""
PERSISTENT = 2
UNROUTABLE = TargetUnavailable("the exchange has no queue for this routing key", by_message=True)
"""By the routing key; by the headers too, where the exchange goes by these."""


class Options(urls.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the URL's query may hold."""

    exchange: str = ""
    """Where messages are published, with the topic as routing key. Without one the topic is a queue's name."""
    exchange_type: str = "topic"
    """With `declare`: what the new exchange is."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = MOST_BYTES
    """The most bytes that a payload may have."""
    queue: str | None = None
    """Receiving: the queue."""


class RabbitBroker:
    """Publishes on one connection, which is made anew after any trouble."""

    def __init__(self, url: str) -> None:
        self._address, self._options = urls.parse(url, PORTS, Options)
        self.capabilities = Capabilities(ordered=True, max_bytes=self._options.max_bytes)
        self._tls = self._options.tls() if self._address.scheme == "amqps" else None
        self._hosts = deque(self._address.hosts)
        self.name = self._address.name
        self._envelope = self._options.envelope(AMQP)
        self._connecting = asyncio.Lock()
        self._leaving = Leaving()
        self._link: Link | None = None
        self._declared: set[str] = set()

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Publish all, then wait for their confirmations. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        batch = Batch(len(messages))
        letters = self._letters(messages, batch)
        link = await self._linked(timeout, {message.topic for message in messages})
        check_time(self.name, deadline, timeout)
        try:
            async with asyncio.timeout_at(deadline):
                await link.send(letters, batch)
                await batch.complete()
        except TimeoutError:
            if link.blocked:
                batch.lose(link.blocked)
        except OSError as error:
            batch.lose(f"{self.name}: {error}")
        outcomes = batch.outcomes(timeout)
        if link.lost or batch.silent:
            self._drop(link, "it did not answer")
        return outcomes

    async def close(self) -> None:
        """End the connection, with a goodbye."""
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()
        await self._leaving.end()

    def _letters(self, messages: Sequence[Message], batch: Batch) -> list[Letter]:
        letters = []
        for index, message in enumerate(messages):
            if len(message.topic.encode()) > SHORT:
                batch.settle(index, invalid_target(message.topic, f"has more than {SHORT} bytes"))
            elif len(message.payload or b"") > self._options.max_bytes:
                batch.settle(index, too_large(len(message.payload or b""), self._options.max_bytes))
            else:
                try:
                    letters.append(self._letter(index, message))
                except ValueError as error:
                    batch.settle(index, Refused("INVALID_HEADER", str(error), Failure.PERMANENT))
        return letters

    def _letter(self, index: int, message: Message) -> Letter:
        headers, body = self._envelope.seal(message)
        for name in headers:
            if len(name.encode()) > LONGEST_NAME:
                raise ValueError(f"header {name[:20]!r}… has more than {LONGEST_NAME} bytes in its name")
        properties = commands.Basic.Properties(
            content_type=headers.pop(CONTENT_TYPE, None),
            headers=dict(headers),
            delivery_mode=PERSISTENT,
            message_id=str(message.id),
        )
        publish = commands.Basic.Publish(0, self._options.exchange, message.topic, mandatory=True)
        return Letter(index, publish, properties, body or b"")

    async def _linked(self, timeout: float, topics: set[str]) -> Link:  # noqa: ASYNC109 - as publish
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._link is None or self._link.lost:
                    if self._link is not None:
                        self._drop(self._link, "it is lost")
                    self._link = await self._connect()
                    self._declared.clear()
                    if self._options.exchange:
                        self._link.unroutable = UNROUTABLE
                if self._options.declare:
                    await self._declare(self._link, topics)
                return self._link
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except OSError as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error

    async def _connect(self) -> Link:
        address = self._address
        user, password = address.user or "guest", address.password or "guest"
        trouble: OSError | None = None
        for _ in address.hosts:
            host, port = self._hosts[0]
            self._hosts.rotate(-1)  # one that does not even refuse takes all the time there is: the next comes next
            try:
                return await Link.open(host.strip("[]"), port, self._tls, user, password, unquote(address.path) or "/")
            except OSError as error:
                trouble = error
        raise trouble or OSError("no host")

    async def _declare(self, link: Link, topics: set[str]) -> None:
        """The exchange; or, without one, a durable quorum queue for each topic."""
        exchange = self._options.exchange
        for name in [one for one in ([exchange] if exchange else sorted(topics)) if one not in self._declared]:
            if exchange:
                kind = self._options.exchange_type
                await link.declare(
                    commands.Exchange.Declare(0, name, kind, passive=True),
                    commands.Exchange.Declare(0, name, kind, durable=True),
                    commands.Exchange.DeclareOk,
                )
            else:
                await link.declare(
                    commands.Queue.Declare(0, name, passive=True),
                    commands.Queue.Declare(0, name, durable=True, arguments={"x-queue-type": "quorum"}),
                    commands.Queue.DeclareOk,
                )
            self._declared.add(name)

    def _drop(self, link: Link, reason: str) -> None:
        """The next batch gets a new connection."""
        if self._link is link:
            self._link = None
            link.lose(f"{self.name}: the connection was given up: {reason}")
            self._leaving.begin(link.close())
