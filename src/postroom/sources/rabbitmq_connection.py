"""A connection to RabbitMQ that receives: queues what is delivered, and acknowledges many messages at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from pamqp import body, commands, frame, header

from postroom.brokers.rabbitmq_connection import (
    CAPABILITIES,
    CLOSE_TIMEOUT,
    HEARTBEAT,
    Closed,
    Consume,
    ExchangeDeclare,
    QueueBind,
    QueueDeclare,
    RabbitConnection,
)
from postroom.brokers.rabbitmq_frames import PUBLISHING
from postroom.sources.rabbitmq_frames import Properties, Start, unmarshal

if TYPE_CHECKING:
    import ssl
    from collections.abc import Collection, Sequence

RECEIVING = PUBLISHING
"""The connection's only channel."""
MAX_PREFETCH = 65_535
ABILITIES: Any = {**CAPABILITIES, "consumer_cancel_notify": True}


class Delivery(NamedTuple):
    """A message as received."""

    start: Start
    properties: Properties
    payload: bytes


class ReceivingConnection(RabbitConnection):
    """One connection, for as long as it lasts, and the messages received on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.waiting: deque[Delivery] = deque()
        """Messages that arrived and were not taken yet."""
        self.news = asyncio.Event()
        self._out: dict[int, None] = {}  # in order of arrival
        self._prefetch = 0
        self._consumers: list[str] = []
        self._started = Start(0, "")
        self._properties = Properties(0, None)
        self._size = 0
        self._parts: list[bytes] = []
        self._heard = time.monotonic()

    @classmethod
    async def connect(
        cls, hosts: Sequence[tuple[str, int]], tls: ssl.SSLContext | None, user: str, password: str, vhost: str
    ) -> ReceivingConnection:
        """Connect to the first host that answers. Raises `Closed` or `OSError`."""
        trouble: OSError | None = None
        for host, port in hosts:
            try:
                connection = await cls.open(host.strip("[]"), port, tls, user, password, vhost)
            except OSError as error:
                trouble = error
            else:
                assert isinstance(connection, cls)  # noqa: S101 - `open` makes what it is called on
                return connection
        raise trouble or OSError("no host")

    async def ensure_queue(self, name: str, *, declare: bool) -> None:
        """Check that the queue exists; with `declare`, create it durable and replicated. Raises `Closed`."""
        question = QueueDeclare(0, name, passive=True)
        if declare:
            durable = QueueDeclare(0, name, durable=True, arguments={"x-queue-type": "quorum"})
            await self.declare(question, durable, commands.Queue.DeclareOk)
        else:
            await self._ask(question, RECEIVING, commands.Queue.DeclareOk)

    async def ensure_exchange(self, name: str, kind: str) -> None:
        """Check that the exchange exists, or create it. Raises `Closed`."""
        question = ExchangeDeclare(0, name, kind, passive=True)
        await self.declare(question, ExchangeDeclare(0, name, kind, durable=True), commands.Exchange.DeclareOk)

    async def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Route messages with this key to the queue. Raises `Closed`."""
        await self._ask(QueueBind(0, queue, exchange, routing_key), RECEIVING, commands.Queue.BindOk)

    async def ask_for(self, queues: Sequence[str], most: int) -> None:
        """Raise the prefetch limit so that up to `most` more messages can arrive. Raises `Closed`."""
        prefetch = min(len(self._out) + most, MAX_PREFETCH)
        if prefetch <= self._prefetch:
            return
        for consumer in self._consumers:  # a consumer's limit cannot be changed
            await self._ask(commands.Basic.Cancel(consumer), RECEIVING, commands.Basic.CancelOk)
        self._consumers.clear()
        await self._ask(commands.Basic.Qos(0, prefetch), RECEIVING, commands.Basic.QosOk)
        for queue in queues:
            answer = await self._ask(Consume(0, queue), RECEIVING, commands.Basic.ConsumeOk)
            self._consumers.append(answer.consumer_tag or "")
        self._prefetch = prefetch

    async def acknowledge(self, tags: Collection[int]) -> None:
        """Acknowledge the leading messages among these with one frame, and the rest one by one."""
        last = 0
        for tag in self._out:
            if tag not in tags:
                break
            last = tag
        single = [tag for tag in tags if tag > last and tag in self._out]
        frames = [commands.Basic.Ack(last, multiple=True)] if last else []
        await self._settle(tags, [*frames, *map(commands.Basic.Ack, single)])

    async def requeue(self, tags: Collection[int]) -> None:
        """Requeue them in order of arrival."""
        await self._settle(tags, [commands.Basic.Nack(tag, requeue=True) for tag in self._out if tag in tags])

    async def close(self) -> None:
        """Close the channel, which confirms that the server has all acknowledgements; then the connection."""
        if not self.lost:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self._ask(commands.Channel.Close(200, "", 0, 0), RECEIVING, commands.Channel.CloseOk)
        await super().close()

    @property
    def silent(self) -> bool:
        """Whether the server has missed its heartbeats."""
        return time.monotonic() - self._heard > 2 * HEARTBEAT

    async def _settle(self, tags: Collection[int], frames: Sequence[Any]) -> None:
        if self.lost:
            raise Closed(self.lost)
        for tag in tags:
            self._out.pop(tag, None)
        self._writer.write(b"".join(frame.marshal(one, RECEIVING) for one in frames))
        await self._writer.drain()

    def _send(self, command: Any, channel: int) -> None:
        if isinstance(command, commands.Connection.StartOk):  # else the server would not report that a queue is gone
            command.client_properties = {**command.client_properties, "capabilities": ABILITIES}
        super()._send(command, channel)

    def _arrived(self, channel: int, found: Any) -> None:
        self._heard = time.monotonic()
        match found:
            case commands.Basic.Deliver():
                self._started = Start(found.delivery_tag or 0, found.routing_key or "")
            case Start():
                self._started = found
            case header.ContentHeader():
                self._begin(Properties(found.body_size, found.properties))
            case Properties():
                self._begin(found)
            case body.ContentBody():
                self._parts.append(found.value)
                self._size -= len(found.value)
                self._complete()
            case commands.Basic.Cancel():
                self.lose("the server has ended the delivery: the queue was deleted, or has moved")
            case _:
                super()._arrived(channel, found)

    def _unmarshal(self, raw: bytes) -> tuple[int, Any]:
        return unmarshal(raw)

    def _begin(self, properties: Properties) -> None:
        self._properties, self._size, self._parts = properties, properties.size, []
        self._complete()

    def _complete(self) -> None:
        if self._size == 0:
            self._out[self._started.tag] = None
            self.waiting.append(Delivery(self._started, self._properties, b"".join(self._parts)))
            self.news.set()

    def lose(self, reason: str, code: int = 0) -> None:
        """Mark the connection as lost, and wake the receiver."""
        super().lose(reason, code)
        self.news.set()
