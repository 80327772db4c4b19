"""Receive from NATS JetStream: pull batches from a durable consumer."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

from postroom.brokers import nats as publisher
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.sources import patterns
from postroom.sources.nats_connection import ACK, ANSWER_TIMEOUT, NAK, PullConnection
from postroom.sources.nats_frames import RawClient
from postroom.sources.nats_setup import ALL, durable_name, ensure_consumer, filters_of, find_stream

import nats.errors  # isort: skip - after the publisher, which says what is missing
import nats.js.errors  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.sources.port import Received


class NatsSource:
    """Receives from one stream; all sources with the same durable consumer share its messages."""

    def __init__(self, url: str, consumer: str, topics: Sequence[str]) -> None:
        self._publisher = publisher.NatsBroker(url)  # it can connect, and declare a stream
        self._options = self._publisher.options
        self._hosts = deque(self._publisher.url.hosts)
        self.name = self._publisher.name
        self._filters = filters_of(patterns.check_topics(topics))
        self._durable = self._options.durable or durable_name(consumer)
        if self._filters == [ALL] and self._options.stream is None:
            raise InvalidSetting("nats: to receive every topic, name the stream: ?stream=…")
        self._connection: PullConnection | None = None

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` messages: those available now, else the first one to come. Raises `BrokerUnavailable`."""
        connection = await self._connected()
        try:
            if not connection.waiting:
                await connection.pull(most)
            if not connection.waiting and seconds > 0:
                await connection.pull(1, seconds)
        except (BrokerUnavailable, nats.errors.Error, OSError) as error:
            await self._drop(connection)
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None
        return [connection.waiting.popleft() for _ in range(min(most, len(connection.waiting)))]

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Acknowledge what came on this connection, and wait until the server has received that.

        Other messages come again: if the stream was recreated meanwhile, it would take the acknowledgements for its own
        messages with the same sequence numbers. Raises `BrokerUnavailable`.
        """
        connection = self._connection
        if connection is None or connection.lost:
            raise BrokerUnavailable(f"{self.name}: {connection.lost if connection else 'the connection is lost'}")
        try:
            await connection.respond(ACK, connection.ours(received))
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None

    async def give_back(self, received: Sequence[Received]) -> None:
        """Have them redelivered at once, or after `ack_wait` if the server cannot be reached."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await connection.respond(NAK, connection.ours(received))

    async def close(self) -> None:
        """Give back what is not settled, and close the connection."""
        if self._connection is not None:
            await self._drop(self._connection)

    async def _connected(self) -> PullConnection:
        if self._connection is not None and not self._connection.lost:
            return self._connection
        if self._connection is not None:
            reason = self._connection.lost
            await self._drop(self._connection)
            raise BrokerUnavailable(f"{self.name}: {reason}")
        connection = PullConnection(RawClient())
        reasons: list[str] = []

        async def failed(error: Exception) -> None:
            reasons.append(_why(error))
            connection.server_error = reasons[-1]

        async def closed() -> None:
            connection.lose(reasons[-1] if reasons else "the connection is lost")

        try:
            async with asyncio.timeout(ANSWER_TIMEOUT * 2):
                self._hosts.rotate(-1)  # another host at the next attempt
                settings = self._publisher.connection_settings(*self._hosts[-1])
                await connection.client.connect(**settings, error_cb=failed, closed_cb=closed)
                await self._set_up(connection)
        except (BrokerUnavailable, nats.errors.Error, OSError, TimeoutError) as error:
            await connection.close()
            raise BrokerUnavailable(f"{self.name}: {reasons[-1] if reasons else _why(error)}") from None
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        return connection

    async def _set_up(self, connection: PullConnection) -> None:
        options = self._options
        if options.declare:
            await self._publisher.declare(connection.client)
        jetstream = connection.client.jetstream(timeout=ANSWER_TIMEOUT)
        stream = options.stream or await find_stream(jetstream, self._filters)
        config = await ensure_consumer(jetstream, stream, self._durable, self._filters, options)
        await connection.listen(stream, self._durable, config)

    async def _drop(self, connection: PullConnection) -> None:
        """Give up the connection; the next call gets a new one."""
        if self._connection is connection:
            self._connection = None
        await connection.close()


def _why(error: BaseException) -> str:
    if isinstance(error, nats.js.errors.ServiceUnavailableError):
        return "JetStream is not available there"
    if isinstance(error, nats.js.errors.APIError):
        return error.description or type(error).__name__
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    return str(error) or type(error).__name__
