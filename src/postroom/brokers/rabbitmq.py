"""RabbitMQ: persistent messages, mandatory, with publisher confirms."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import unquote

import msgspec

from postroom.brokers import urls
from postroom.brokers.batch import Batch, encode_each
from postroom.brokers.cloudevents import AMQP, Sealer
from postroom.brokers.connecting import ClosingConnections, check_time_left
from postroom.brokers.port import Capabilities, Outcome, Refused, TargetUnavailable
from postroom.brokers.refusals import invalid_header, invalid_target, too_large
from postroom.errors import BrokerUnavailable
from postroom.rules import topics
from postroom.rules.failures import Failure, Reason

try:
    from pamqp import commands

    from postroom.brokers.rabbitmq_connection import Closed, ExchangeDeclare, QueueDeclare, RabbitConnection
    from postroom.brokers.rabbitmq_frames import CommonFrames, Outgoing
except ImportError as error:
    raise urls.client_missing("amqp", "rabbitmq", error) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message

PORTS = {"amqp": 5672, "amqps": 5671}
MAX_BYTES = 16 * 1024 * 1024
"""What a server accepts by default (`max_message_size`; RabbitMQ 3 accepts more)."""
SHORT = 255
LONGEST_NAME = 128
"""The longest header name in AMQP, in bytes; the codec would cut a longer one."""
UNROUTABLE = TargetUnavailable("the exchange has no queue for this routing key", by_message=True)
"""Depends on the routing key, and on the headers too if the exchange routes by them."""


class RabbitOptions(urls.UrlOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options in the URL's query."""

    exchange: str = ""
    """Where messages are published, with the topic as routing key. By default the topic is the name of a queue."""
    exchange_type: str = "topic"
    """With `declare`: the type of the new exchange."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = MAX_BYTES
    """The largest payload, in bytes."""
    queue: str | None = None
    """Receiving: the queue."""


class RabbitBroker:
    """Publishes on one connection, and reconnects after any failure."""

    def __init__(self, url: str) -> None:
        self._url, self._options = urls.parse(url, PORTS, RabbitOptions)
        self.capabilities = Capabilities(ordered=True, max_bytes=self._options.max_bytes)
        self._tls = self._options.tls() if self._url.scheme == "amqps" else None
        self._hosts = deque(self._url.hosts)
        self.name = self._url.name
        self._sealer = Sealer(self._options.envelope(AMQP), self._common)
        self._connecting = asyncio.Lock()
        self._closing = ClosingConnections()
        self._connection: RabbitConnection | None = None
        self._declared: set[str] = set()

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Publish all messages, then wait for their confirmations. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        connection = await self._connected(timeout)
        batch = Batch(len(messages))
        outgoing = list(encode_each(messages, batch, partial(self._outgoing, connection.frame_max)))
        connection.batches_in_flight += 1
        try:
            if self._options.declare:
                outgoing = await self._declared_for(connection, outgoing, messages, batch, deadline)
            check_time_left(self.name, deadline, timeout)
            await self._send(connection, outgoing, batch, deadline)
        finally:
            connection.batches_in_flight -= 1
            self._replace_if_nacked(connection)
        outcomes = batch.outcomes(timeout)
        if connection.lost or batch.silent:
            self._drop(connection, "it did not answer")
        return outcomes

    async def close(self) -> None:
        """Close the connection in order."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.closing = True
            await connection.close()
        await self._closing.wait()

    async def _send(
        self, connection: RabbitConnection, outgoing: Sequence[Outgoing], batch: Batch, deadline: float
    ) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await connection.send(outgoing, batch)
                await batch.complete()
        except TimeoutError:
            if connection.blocked:
                batch.lose(connection.blocked)
        except OSError as error:
            batch.lose(f"{self.name}: {error}")

    def _outgoing(self, frame_max: int, index: int, message: Message) -> Outgoing | Refused:
        exchange = self._options.exchange
        problem = topics.routing_key(message.topic) if exchange else topics.queue(message.topic)
        if problem:
            return invalid_target(message.topic, problem)
        if len(message.content_type.encode()) > SHORT:
            return invalid_header(f"the content type has more than {SHORT} bytes")
        name, common, own, body = self._sealer.seal(message)
        body = body or b""
        if len(body) > self._options.max_bytes:
            return too_large(len(body), self._options.max_bytes)
        for header, _ in own:
            if len(header.encode()) > LONGEST_NAME:
                return invalid_header(f"header {header[:20]!r}… has more than {LONGEST_NAME} bytes in its name")
        one = Outgoing(index, name, message.topic, common.publish, common.content(name, own, len(body)), body)
        if len(one.content) > frame_max:  # it cannot be split, and the server would close the connection
            problem = f"{len(one.content)} bytes of headers; the server takes frames of {frame_max}"
            return Refused(Reason.MESSAGE_TOO_LARGE, problem, Failure.PERMANENT)
        return one

    def _common(self, message: Message, headers: dict[str, str]) -> CommonFrames:
        return CommonFrames(self._options.exchange, message.topic, headers)

    async def _connected(self, timeout: float) -> RabbitConnection:  # noqa: ASYNC109 - as publish
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._connection is None or self._connection.lost:
                    if self._connection is not None:
                        self._drop(self._connection, "it is lost")
                    self._connection = await self._connect()
                    self._declared.clear()
                    if self._options.exchange:
                        self._connection.unroutable = UNROUTABLE
                return self._connection
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except OSError as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error

    async def _connect(self) -> RabbitConnection:
        url = self._url
        user, password = url.user or "guest", url.password or "guest"
        trouble: OSError | None = None
        for _ in url.hosts:
            host, port = self._hosts[0]
            self._hosts.rotate(-1)  # a host that never answers uses up the timeout: try another one next time
            try:
                path = unquote(url.path) or "/"
                return await RabbitConnection.open(host.strip("[]"), port, self._tls, user, password, path)
            except OSError as error:
                trouble = error
        raise trouble or OSError("no host")

    async def _declared_for(
        self,
        connection: RabbitConnection,
        outgoing: list[Outgoing],
        messages: Sequence[Message],
        batch: Batch,
        deadline: float,
    ) -> list[Outgoing]:
        """Declare the exchange or queues that the messages need. Settle and leave out messages whose queue fails."""
        exchange = self._options.exchange
        names = {exchange} if exchange else {messages[one.number].topic for one in outgoing}
        if names <= self._declared:
            return outgoing
        try:
            async with asyncio.timeout_at(deadline), self._connecting:
                declare = self._declare_exchange if exchange else self._declare_queues
                problems = await declare(connection, names - self._declared)
        except TimeoutError:
            self._drop(connection, "it did not answer")  # a late answer would be taken for that to another question
            raise BrokerUnavailable(f"{self.name} does not answer in time") from None
        except OSError as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error
        if not problems:
            return outgoing
        for one in outgoing:
            if problem := problems.get(messages[one.number].topic):
                batch.settle(one.number, TargetUnavailable(problem))
        return [one for one in outgoing if messages[one.number].topic not in problems]

    async def _declare_exchange(self, connection: RabbitConnection, names: set[str]) -> dict[str, str]:
        for name in names:
            await connection.declare(
                ExchangeDeclare(0, name, self._options.exchange_type, passive=True),
                ExchangeDeclare(0, name, self._options.exchange_type, durable=True),
                commands.Exchange.DeclareOk,
            )
            self._declared.add(name)
        return {}

    async def _declare_queues(self, connection: RabbitConnection, names: set[str]) -> dict[str, str]:
        """Declare a durable quorum queue for each topic. Returns the problems, by topic."""
        problems = {}
        for name in sorted(names):
            try:
                await connection.declare(
                    QueueDeclare(0, name, passive=True),
                    QueueDeclare(0, name, durable=True, arguments={"x-queue-type": "quorum"}),
                    commands.Queue.DeclareOk,
                )
            except Closed as closed:
                if connection.lost:
                    raise
                problems[name] = str(closed)
            else:
                self._declared.add(name)
        return problems

    def _replace_if_nacked(self, connection: RabbitConnection) -> None:
        """After a refusal, let the next batch connect anew: another node may reach a leader that this one does not.

        The old connection is closed after the last batch in flight on it.
        """
        if connection.nacked and self._connection is connection:
            self._connection = None
        if self._connection is not connection and not connection.batches_in_flight:
            self._close(connection, "it has refused a message")

    def _drop(self, connection: RabbitConnection, reason: str) -> None:
        """Give up the connection; the next batch gets a new one."""
        if self._connection is connection:
            self._connection = None
        self._close(connection, reason)

    def _close(self, connection: RabbitConnection, reason: str) -> None:
        if not connection.closing:
            connection.closing = True
            connection.lose(f"{self.name}: the connection was given up: {reason}")
            self._closing.add(connection.close())
