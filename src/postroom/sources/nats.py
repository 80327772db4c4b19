"""Messages from NATS JetStream: a durable consumer, from which batches are pulled."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from postroom.brokers import nats as publisher
from postroom.brokers.cloudevents import NATS, incoming
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.sources import patterns
from postroom.sources.nats_frames import Frame, RawClient, head_of
from postroom.sources.nats_setup import ALL, durable_name, ensure_consumer, filters_of, find_stream
from postroom.sources.port import Received
from postroom.sources.reading import text, undecodable

import nats.errors  # isort: skip - after the publisher, which says what is missing
import nats.js.errors  # isort: skip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.js.api import ConsumerConfig

ANSWER_TIMEOUT = 5.0
"""Seconds that the server has for an answer, beside those that it is asked to wait."""
CLOSE_TIMEOUT = 2.0
POLL_SECONDS = 0.1
"""Seconds between two looks at whether the connection is still there."""
NANOSECONDS = 1_000_000_000
NO_MESSAGES, EXPIRED, CONFLICT, NO_RESPONDERS = "404", "408", "409", "503"
COMPLETED = "Batch Completed"
ACK, NAK, IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"


class _Pull:
    """A request for messages: over when all have come, or the server says why no more do."""

    def __init__(self, subject: str, batch: int) -> None:
        self.subject = subject
        self.missing = batch
        self.over = asyncio.Event()
        self.trouble: str | None = None


class PullConnection:
    """One connection, for as long as it lasts, and what came by it."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self._inbox = client.new_inbox()
        self._numbers = count()
        self._pull: _Pull | None = None
        self._next = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = asyncio.Event()
        self.waiting: deque[Received] = deque()
        """Came, and was not yet received."""
        self.out: dict[str, None] = {}
        """Where to acknowledge what came and is not settled."""
        self.lost: str | None = None
        self.complaint: str | None = None

    async def listen(self, stream: str, durable: str, config: ConsumerConfig) -> None:
        """Be ready to pull."""
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        await self.client.take(f"{self._inbox}.*", self._arrived)
        patience = min([config.ack_wait or ANSWER_TIMEOUT, *(config.backoff or [])])
        self._tasks = [asyncio.create_task(self._keep(patience / 3)), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def pull(self, batch: int, seconds: float = 0.0) -> None:
        """Have up to so many put to `waiting`; without seconds those that are there. Raises `BrokerUnavailable`."""
        pull = self._pull = _Pull(f"{self._inbox}.{next(self._numbers)}", batch)
        terms = {"expires": max(1, int(seconds * NANOSECONDS))} if seconds else {"no_wait": True}
        try:
            async with asyncio.timeout(seconds + ANSWER_TIMEOUT):
                await self.client.publish(self._next, msgspec.json.encode({"batch": batch, **terms}), pull.subject)
                if not self.lost:
                    await pull.over.wait()
        except TimeoutError:
            raise BrokerUnavailable(self.complaint or "the server does not answer") from None
        finally:
            self._pull = None
        if trouble := self.lost or pull.trouble:
            raise BrokerUnavailable(trouble)

    def ours(self, received: Sequence[Received]) -> list[str]:
        """Where to settle those of these that came by this connection."""
        return [one.receipt for one in received if one.receipt in self.out]

    async def say(self, word: bytes, places: Sequence[str]) -> None:
        """Say what becomes of messages, and see that the server has heard it."""
        for place in places:
            await self.client.publish(place, word)
            self.out.pop(place, None)
        flushing = asyncio.create_task(self.client.flush(timeout=int(ANSWER_TIMEOUT)))
        gone = asyncio.create_task(self._gone.wait())
        try:
            await asyncio.wait({flushing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not flushing.done():  # the client would wait until the time is up
                raise nats.errors.ConnectionClosedError
            await flushing
        finally:
            flushing.cancel()
            gone.cancel()

    def lose(self, reason: str) -> None:
        """The connection is gone."""
        self.lost = self.lost or reason
        self._gone.set()
        if self._pull is not None:
            self._pull.over.set()

    async def close(self) -> None:
        """Give back what is out, if the server still listens, and leave nothing behind."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self.lost:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self.say(NAK, list(self.out))
        self.lose("the connection is closed")
        await self.client.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Without one of its tasks a connection is of no use: the next one has them again."""
        if not task.cancelled():
            error = task.exception()
            self.lose(self.complaint or (f"{type(error).__name__}: {error}" if error else "the connection is lost"))

    async def _keep(self, seconds: float) -> None:
        """Ask for more time for all that is out, again and again."""
        with contextlib.suppress(nats.errors.Error, OSError):
            while True:
                await asyncio.sleep(seconds)
                for place in list(self.out):
                    await self.client.publish(place, IN_PROGRESS)

    async def _watch(self) -> None:
        """Notice that the connection is gone: the client does not say so where it still had something to send."""
        while not self.client.is_closed:  # noqa: ASYNC110 - there is nothing else to wait for
            await asyncio.sleep(POLL_SECONDS)
        self.lose(self.complaint or "the connection is lost")

    def _arrived(self, frame: Frame) -> None:
        pull = self._pull
        if frame.subject.startswith(self._inbox.encode()):
            if pull is not None and pull.subject == text(frame.subject):
                pull.trouble = _trouble(frame.head)
                pull.over.set()
            return
        received = _received(frame)
        self.waiting.append(received)
        self.out[received.receipt] = None
        if pull is not None:
            pull.missing -= 1
            if not pull.missing:
                pull.over.set()


class NatsSource:
    """Receives from one stream, as one of those that share a durable consumer."""

    def __init__(self, url: str, consumer: str, topics: Sequence[str]) -> None:
        self._publisher = publisher.NatsBroker(url)  # it knows how to connect, and how to declare a stream
        self._options = self._publisher.options
        self._hosts = deque(self._publisher.url.hosts)
        self.name = self._publisher.name
        self._filters = filters_of(patterns.check_topics(topics))
        self._durable = self._options.durable or durable_name(consumer)
        if self._filters == [ALL] and self._options.stream is None:
            raise InvalidSetting("nats: to receive every topic, name the stream: ?stream=…")
        self._connection: PullConnection | None = None

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` messages: those that are there, else the first that comes. Raises `BrokerUnavailable`."""
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
        """Acknowledge what came by this connection, and wait until the server has heard it.

        The rest comes again: a stream that was made anew meanwhile would take it for its own messages, of the same
        numbers. Raises `BrokerUnavailable`.
        """
        connection = self._connection
        if connection is None or connection.lost:
            raise BrokerUnavailable(f"{self.name}: {connection.lost if connection else 'the connection is lost'}")
        try:
            await connection.say(ACK, connection.ours(received))
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None

    async def give_back(self, received: Sequence[Received]) -> None:
        """Have them sent again at once; where the server cannot be told, it finds out after `ack_wait`."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(nats.errors.Error, OSError):
                await connection.say(NAK, connection.ours(received))

    async def close(self) -> None:
        """Give back what is out, and end the connection."""
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

        async def complain(error: Exception) -> None:
            reasons.append(_why(error))
            connection.complaint = reasons[-1]

        async def closed() -> None:
            connection.lose(reasons[-1] if reasons else "the connection is lost")

        try:
            async with asyncio.timeout(ANSWER_TIMEOUT * 2):
                self._hosts.rotate(-1)  # after one that is not there, the next
                settings = self._publisher.connection_settings(*self._hosts[-1])
                await connection.client.connect(**settings, error_cb=complain, closed_cb=closed)
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
        """The next call gets a new connection."""
        if self._connection is connection:
            self._connection = None
        await connection.close()


def _received(frame: Frame) -> Received:
    reply = text(frame.reply)
    try:
        headers, topic = head_of(frame.head).headers, frame.subject.decode()
        message = incoming(NATS, headers, frame.body, id=headers.get("Nats-Msg-Id") or _place(reply), topic=topic)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this message's fault alone
        message = undecodable(text(frame.subject), frame.body, error, id=_place(reply), headers=frame.head)
    return Received(message, reply)


def _place(reply: str) -> str:
    """Stream, sequence and time, as the place to acknowledge at has them.

    That is `$JS.ACK.[domain.account.]stream.consumer.delivered.sequence.sequence.time…`. The time is when the server
    stored the message: a stream that is made anew gives out the same sequences again, but not at the same nanosecond.
    """
    tokens = reply.split(".")
    first = 2 if len(tokens) == 9 else 4  # noqa: PLR2004 - the short form has nine
    return f"{tokens[first]}:{tokens[first + 3]}:{tokens[first + 5]}"


def _trouble(raw: bytes) -> str | None:
    """Why the server ends a request, where that is not for want of messages."""
    try:
        status, description, _ = head_of(raw)
    except ValueError:
        return "the server's answer cannot be read"
    if status in (NO_MESSAGES, EXPIRED) or description == COMPLETED:
        return None
    return "there is no such consumer any more" if status == NO_RESPONDERS else description or f"status {status}"


def _why(error: BaseException) -> str:
    if isinstance(error, nats.js.errors.ServiceUnavailableError):
        return "JetStream is not available there"
    if isinstance(error, nats.js.errors.APIError):
        return error.description or type(error).__name__
    if isinstance(error, TimeoutError):
        return "the server does not answer"
    return str(error) or type(error).__name__
