"""RabbitMQ: persistent messages, mandatory, with publisher confirms."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import msgspec

from postroom.brokers import urls
from postroom.brokers.batches import Batch, Leaving, check_time, invalid_header, invalid_target, sealed, too_large
from postroom.brokers.cloudevents import AMQP, CONTENT_TYPE
from postroom.brokers.port import Capabilities, Outcome, Refused, TargetUnavailable
from postroom.errors import BrokerUnavailable
from postroom.rules import topics
from postroom.rules.failures import Failure, Reason

try:
    from pamqp import commands

    from postroom.brokers.amqp import Closed, ExchangeDeclare, Letter, Link, Publish, QueueDeclare
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
        link = await self._linked(timeout)
        batch = Batch(len(messages))
        letters = sealed(messages, batch, partial(self._letter, link.frame_max))
        link.batches += 1
        try:
            if self._options.declare:
                letters = await self._declared_for(link, letters, messages, batch, deadline)
            check_time(self.name, deadline, timeout)
            await self._send(link, letters, batch, deadline)
        finally:
            link.batches -= 1
            self._look_at(link)
        outcomes = batch.outcomes(timeout)
        if link.lost or batch.silent:
            self._drop(link, "it did not answer")
        return outcomes

    async def close(self) -> None:
        """End the connection, with a goodbye."""
        if self._link is not None:
            link, self._link = self._link, None
            link.leaving = True
            await link.close()
        await self._leaving.end()

    async def _send(self, link: Link, letters: Sequence[Letter], batch: Batch, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await link.send(letters, batch)
                await batch.complete()
        except TimeoutError:
            if link.blocked:
                batch.lose(link.blocked)
        except OSError as error:
            batch.lose(f"{self.name}: {error}")

    def _letter(self, frame_max: int, index: int, message: Message) -> Letter | Refused:
        exchange = self._options.exchange
        problem = topics.routing_key(message.topic) if exchange else topics.queue(message.topic)
        if problem:
            return invalid_target(message.topic, problem)
        headers, body = self._envelope.seal(message)
        body = body or b""
        if len(body) > self._options.max_bytes:
            return too_large(len(body), self._options.max_bytes)
        content_type = headers.pop(CONTENT_TYPE, None)
        if content_type is not None and len(content_type.encode()) > SHORT:
            return invalid_header(f"the content type has more than {SHORT} bytes")
        for name in headers:
            if len(name.encode()) > LONGEST_NAME:
                return invalid_header(f"header {name[:20]!r}… has more than {LONGEST_NAME} bytes in its name")
        properties = commands.Basic.Properties(
            content_type=content_type,
            headers=dict(headers),
            delivery_mode=PERSISTENT,
            message_id=str(message.id),
        )
        letter = Letter(index, Publish(0, exchange, message.topic, mandatory=True), properties, body)
        if len(letter.content) > frame_max:  # it cannot be parted, and the server would end the connection
            problem = f"{len(letter.content)} bytes of headers; the server takes frames of {frame_max}"
            return Refused(Reason.MESSAGE_TOO_LARGE, problem, Failure.PERMANENT)
        return letter

    async def _linked(self, timeout: float) -> Link:  # noqa: ASYNC109 - as publish
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._link is None or self._link.lost:
                    if self._link is not None:
                        self._drop(self._link, "it is lost")
                    self._link = await self._connect()
                    self._declared.clear()
                    if self._options.exchange:
                        self._link.unroutable = UNROUTABLE
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

    async def _declared_for(
        self, link: Link, letters: list[Letter], messages: Sequence[Message], batch: Batch, deadline: float
    ) -> list[Letter]:
        """Have what the messages go to. Where a queue cannot be had, its messages are told so, and left out."""
        exchange = self._options.exchange
        names = {exchange} if exchange else {messages[letter.index].topic for letter in letters}
        if names <= self._declared:
            return letters
        try:
            async with asyncio.timeout_at(deadline), self._connecting:
                declare = self._declare_exchange if exchange else self._declare_queues
                problems = await declare(link, names - self._declared)
        except TimeoutError:
            self._drop(link, "it did not answer")  # what it may still say would be taken for another answer
            raise BrokerUnavailable(f"{self.name} does not answer in time") from None
        except OSError as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error
        if not problems:
            return letters
        for letter in letters:
            if problem := problems.get(messages[letter.index].topic):
                batch.settle(letter.index, TargetUnavailable(problem))
        return [letter for letter in letters if messages[letter.index].topic not in problems]

    async def _declare_exchange(self, link: Link, names: set[str]) -> dict[str, str]:
        for name in names:
            await link.declare(
                ExchangeDeclare(0, name, self._options.exchange_type, passive=True),
                ExchangeDeclare(0, name, self._options.exchange_type, durable=True),
                commands.Exchange.DeclareOk,
            )
            self._declared.add(name)
        return {}

    async def _declare_queues(self, link: Link, names: set[str]) -> dict[str, str]:
        """A durable quorum queue for each topic; returns why those could not be had that could not."""
        problems = {}
        for name in sorted(names):
            try:
                await link.declare(
                    QueueDeclare(0, name, passive=True),
                    QueueDeclare(0, name, durable=True, arguments={"x-queue-type": "quorum"}),
                    commands.Queue.DeclareOk,
                )
            except Closed as closed:
                if link.lost:
                    raise
                problems[name] = str(closed)
            else:
                self._declared.add(name)
        return problems

    def _look_at(self, link: Link) -> None:
        """After a refusal the next batch gets a new connection, which may find a leader where this one does not.

        The old one ends with the last batch that is under way on it.
        """
        if link.nacked and self._link is link:
            self._link = None
        if self._link is not link and not link.batches:
            self._leave(link, "it has refused a message")

    def _drop(self, link: Link, reason: str) -> None:
        """The next batch gets a new connection."""
        if self._link is link:
            self._link = None
        self._leave(link, reason)

    def _leave(self, link: Link, reason: str) -> None:
        if not link.leaving:
            link.leaving = True
            link.lose(f"{self.name}: the connection was given up: {reason}")
            self._leaving.begin(link.close())
