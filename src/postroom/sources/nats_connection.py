"""A connection to NATS that pulls messages, and answers for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

import msgspec
import nats.errors

from postroom.brokers.cloudevents import NATS, incoming
from postroom.errors import BrokerUnavailable
from postroom.sources.nats_frames import Frame, RawClient, head_of
from postroom.sources.port import Received
from postroom.sources.reading import text, undecodable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.js.api import ConsumerConfig

ANSWER_TIMEOUT = 5.0
"""Seconds that the server has for an answer, in addition to those that it was asked to wait."""
CLOSE_TIMEOUT = 2.0
POLL_SECONDS = 0.1
"""Seconds between two checks of the connection."""
NANOSECONDS = 1_000_000_000
NO_MESSAGES, EXPIRED, CONFLICT, NO_RESPONDERS = "404", "408", "409", "503"
COMPLETED = "Batch Completed"
ACK, NAK, IN_PROGRESS = b"+ACK", b"-NAK", b"+WPI"


class _Pull:
    """A request for messages; over when all have come, or the server says why no more will."""

    def __init__(self, subject: str, batch: int) -> None:
        self.subject = subject
        self.missing = batch
        self.over = asyncio.Event()
        self.trouble: str | None = None


class PullConnection:
    """One connection, for as long as it lasts, and the messages received on it."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self._inbox = client.new_inbox()
        self._prefix = self._inbox.encode()
        self._numbers = count()
        self._pull: _Pull | None = None
        self._next = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._gone = asyncio.Event()
        self.waiting: deque[Received] = deque()
        """Messages that arrived and were not taken yet."""
        self.out: dict[str, None] = {}
        """Reply subjects of the messages that are not settled."""
        self.lost: str | None = None
        self.server_error: str | None = None

    async def listen(self, stream: str, durable: str, config: ConsumerConfig) -> None:
        """Prepare to pull."""
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{durable}"
        await self.client.take(f"{self._inbox}.*", self._arrived)
        ack_wait = min([config.ack_wait or ANSWER_TIMEOUT, *(config.backoff or [])])
        self._tasks = [asyncio.create_task(self._extend_leases(ack_wait / 3)), asyncio.create_task(self._watch())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def pull(self, batch: int, seconds: float = 0.0) -> None:
        """Fetch up to `batch` messages to `waiting`; by default what is available now. Raises `BrokerUnavailable`."""
        pull = self._pull = _Pull(f"{self._inbox}.{next(self._numbers)}", batch)
        terms = {"expires": max(1, int(seconds * NANOSECONDS))} if seconds else {"no_wait": True}
        try:
            async with asyncio.timeout(seconds + ANSWER_TIMEOUT):
                await self.client.publish(self._next, msgspec.json.encode({"batch": batch, **terms}), pull.subject)
                if not self.lost:
                    await pull.over.wait()
        except TimeoutError:
            raise BrokerUnavailable(self.server_error or "the server does not answer") from None
        finally:
            self._pull = None
        if trouble := self.lost or pull.trouble:
            raise BrokerUnavailable(trouble)

    def ours(self, received: Sequence[Received]) -> list[str]:
        """The reply subjects of those of these messages that came on this connection."""
        return [one.receipt for one in received if one.receipt in self.out]

    async def respond(self, word: bytes, places: Sequence[str]) -> None:
        """Acknowledge or refuse messages, and wait until the server has received that."""
        if places:
            await self.client.publish_to_each(places, word)
        for place in places:
            self.out.pop(place, None)
        flushing = asyncio.create_task(self.client.flush(timeout=int(ANSWER_TIMEOUT)))
        gone = asyncio.create_task(self._gone.wait())
        try:
            await asyncio.wait({flushing, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not flushing.done():  # the client itself would wait for the timeout
                raise nats.errors.ConnectionClosedError
            await flushing
        finally:
            flushing.cancel()
            gone.cancel()

    def lose(self, reason: str) -> None:
        """Mark the connection as lost."""
        self.lost = self.lost or reason
        self._gone.set()
        if self._pull is not None:
            self._pull.over.set()

    async def close(self) -> None:
        """Give back what is not settled if the server still answers, and release everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self.lost:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self.respond(NAK, list(self.out))
        self.lose("the connection is closed")
        await self.client.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Give up the connection when one of its tasks fails; the next connection starts new ones."""
        if not task.cancelled():
            error = task.exception()
            self.lose(self.server_error or (f"{type(error).__name__}: {error}" if error else "the connection is lost"))

    async def _extend_leases(self, seconds: float) -> None:
        """Keep asking for more time for all messages that are not settled."""
        with contextlib.suppress(nats.errors.Error, OSError):
            while True:
                await asyncio.sleep(seconds)
                if places := list(self.out):
                    await self.client.publish_to_each(places, IN_PROGRESS)

    async def _watch(self) -> None:
        """Notice a lost connection: the client does not report it if it still had something to send."""
        while not self.client.is_closed:  # noqa: ASYNC110 - there is nothing else to wait for
            await asyncio.sleep(POLL_SECONDS)
        self.lose(self.server_error or "the connection is lost")

    def _arrived(self, frame: Frame) -> None:
        pull = self._pull
        if frame.subject.startswith(self._prefix):
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


def _received(frame: Frame) -> Received:
    reply = text(frame.reply)
    try:
        headers, topic = head_of(frame.head).headers, frame.subject.decode()
        message = incoming(NATS, headers, frame.body, id=headers.get("Nats-Msg-Id") or _place(reply), topic=topic)
    except Exception as error:  # noqa: BLE001 - whatever it is, only this message is at fault
        message = undecodable(text(frame.subject), frame.body, error, id=_place(reply), headers=frame.head)
    return Received(message, reply)


def _place(reply: str) -> str:
    """Stream, sequence and time, taken from the reply subject.

    That is `$JS.ACK.[domain.account.]stream.consumer.delivered.sequence.sequence.time…`. The time is when the server
    stored the message: a stream that is recreated reuses sequences, but not at the same nanosecond.
    """
    tokens = reply.split(".")
    first = 2 if len(tokens) == 9 else 4  # noqa: PLR2004 - the short form has nine
    return f"{tokens[first]}:{tokens[first + 3]}:{tokens[first + 5]}"


def _trouble(raw: bytes) -> str | None:
    """Why the server ended a request, unless there were no messages."""
    try:
        status, description, _ = head_of(raw)
    except ValueError:
        return "the server's answer cannot be read"
    if status in (NO_MESSAGES, EXPIRED) or description == COMPLETED:
        return None
    return "the consumer no longer exists" if status == NO_RESPONDERS else description or f"status {status}"
