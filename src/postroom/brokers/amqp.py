"""A connection to RabbitMQ that does one thing: publish whole batches, and hear what became of them.

Client libraries wait for each message to be written before they write the next; here a batch is one write, and a
confirmation for many is one frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, TypeVar

from pamqp import body, commands, frame, header, heartbeat
from pamqp.base import Frame

from postroom.brokers.batches import too_large
from postroom.brokers.port import ACCEPTED, Outcome, TargetUnavailable

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from postroom.brokers.batches import Batch

PUBLISHING = 1
DECLARING = 2
NOT_FOUND = 404
HEARTBEAT = 30
CHUNK = 256 * 1024
FRAME_HEAD = 7
FRAME_MARGIN = 8
FAREWELL = 1.0
CAPABILITIES = {"publisher_confirms": True, "authentication_failure_close": True, "connection.blocked": True}

R = TypeVar("R", bound=Frame)
TOO_LARGE = re.compile(r"is larger than configured max size (\d+)")
FORBIDDEN = re.compile(r"access to topic '(.*)' in exchange", re.DOTALL)
Rejected = TargetUnavailable("a queue has refused it: it is full, or not available")


class Closed(ConnectionError):
    """The server has closed the connection or a channel, or the connection broke."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


class _AnyName:
    """A frame with whatever names it is given: the server takes more of them than the library would let pass."""

    def validate(self) -> None:
        """The server is the judge."""


class QueueDeclare(_AnyName, commands.Queue.Declare):
    """A queue is to be there."""


class QueueBind(_AnyName, commands.Queue.Bind):
    """An exchange is to put messages to a queue."""


class ExchangeDeclare(_AnyName, commands.Exchange.Declare):
    """An exchange is to be there."""


class Publish(_AnyName, commands.Basic.Publish):
    """A message comes."""


class Consume(_AnyName, commands.Basic.Consume):
    """A queue's messages are wanted."""


class Letter:
    """A message as it goes out."""

    __slots__ = ("content", "id", "index", "payload", "publish", "topic")

    def __init__(
        self, index: int, publish: commands.Basic.Publish, properties: commands.Basic.Properties, payload: bytes
    ) -> None:
        self.index = index
        self.id = properties.message_id
        self.topic = publish.routing_key
        self.publish = frame.marshal(publish, PUBLISHING)
        self.content = frame.marshal(header.ContentHeader(body_size=len(payload), properties=properties), PUBLISHING)
        self.payload = payload


class Link:
    """One connection, for as long as it lasts, with a channel that confirms."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.unroutable: Outcome = TargetUnavailable("there is no queue of this name; ?declare=true makes it")
        """What becomes of messages that are returned."""
        self._answer: asyncio.Future[Frame] | None = None
        self._tag = 0
        self._unconfirmed: dict[int, tuple[Batch, Letter]] = {}
        self._by_id: dict[str | None, tuple[Batch, Letter]] = {}
        self.frame_max = CHUNK
        """The most bytes of a frame. A message's properties, headers among them, are one; its payload may be many."""
        self.lost: str | None = None
        self.nacked = False
        """Whether the server has refused something. It may be one that has lost its queue's leader, and others not."""
        self.batches = 0
        """How many are under way."""
        self.leaving = False
        self.blocked: str | None = None
        """Why the server takes no messages for now."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

    @classmethod
    async def open(cls, host: str, port: int, tls: ssl.SSLContext | None, user: str, password: str, vhost: str) -> Link:
        """Connect, log in, and have a channel that confirms. Raises `Closed` or `OSError`."""
        link = cls(*await asyncio.open_connection(host, port, ssl=tls))
        try:
            await link._log_in(user, password, vhost)
        except BaseException:
            link.lose("the login failed")  # there is nobody to say goodbye to
            await link.close()
            raise
        return link

    async def _log_in(self, user: str, password: str, vhost: str) -> None:
        self._writer.write(header.ProtocolHeader().marshal())
        await self._answered(commands.Connection.Start)
        properties: Any = {"product": "postroom", "capabilities": CAPABILITIES}
        secret = f"\0{user}\0{password}"
        tune = await self._ask(
            commands.Connection.StartOk(properties, "PLAIN", secret, "en_US"), 0, commands.Connection.Tune
        )
        self.frame_max = tune.frame_max or CHUNK
        self._send(commands.Connection.TuneOk(tune.channel_max, self.frame_max, HEARTBEAT), 0)
        await self._ask(commands.Connection.Open(vhost), 0, commands.Connection.OpenOk)
        await self._ask(commands.Channel.Open(), PUBLISHING, commands.Channel.OpenOk)
        await self._ask(commands.Confirm.Select(), PUBLISHING, commands.Confirm.SelectOk)

    async def declare(self, question: Frame, declaration: Frame, answer: type[Frame]) -> None:
        """Make what `question`, a passive declaration, does not find."""
        await self._ask(commands.Channel.Open(), DECLARING, commands.Channel.OpenOk)
        try:
            await self._ask(question, DECLARING, answer)
        except Closed as closed:
            if closed.code != NOT_FOUND or self.lost:
                raise
            await self._ask(commands.Channel.Open(), DECLARING, commands.Channel.OpenOk)
            await self._ask(declaration, DECLARING, answer)
        await self._ask(commands.Channel.Close(200, "", 0, 0), DECLARING, commands.Channel.CloseOk)

    async def send(self, letters: Sequence[Letter], batch: Batch) -> None:
        """Write a batch; what becomes of each message, the batch is told."""
        if self.lost:
            raise Closed(self.lost)
        frames: list[bytes] = []
        limit = self.frame_max - FRAME_MARGIN
        for letter in letters:
            self._tag += 1
            self._unconfirmed[self._tag] = (batch, letter)
            self._by_id[letter.id] = (batch, letter)
            frames += (letter.publish, letter.content)
            for start in range(0, len(letter.payload), limit):
                frames.append(frame.marshal(body.ContentBody(letter.payload[start : start + limit]), PUBLISHING))
        self._writer.write(b"".join(frames))
        await self._writer.drain()

    async def close(self) -> None:
        """Say goodbye, if the server still listens, and leave nothing behind."""
        with contextlib.suppress(Closed, OSError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                if not self.lost:
                    await self._ask(commands.Connection.Close(200, "", 0, 0), 0, commands.Connection.CloseOk)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.lose("the connection is closed")
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _send(self, command: Frame, channel: int) -> None:
        self._writer.write(frame.marshal(command, channel))

    async def _ask(self, command: Frame, channel: int, answer: type[R]) -> R:
        if self.lost:
            raise Closed(self.lost)
        self._send(command, channel)
        return await self._answered(answer)

    async def _answered(self, kind: type[R]) -> R:
        self._answer = asyncio.get_running_loop().create_future()
        try:
            found = await self._answer
        finally:
            self._answer = None
        if not isinstance(found, kind):
            raise Closed(f"the server answered {found.name} instead of {kind.name}")
        return found

    async def _beat(self) -> None:
        """A server that hears nothing for long takes us for dead."""
        while True:
            await asyncio.sleep(HEARTBEAT / 3)
            self._writer.write(heartbeat.Heartbeat().marshal())

    async def _read(self) -> None:
        """Read frames until the connection ends."""
        buffer = bytearray()
        try:
            while chunk := await self._reader.read(CHUNK):
                buffer += chunk
                start = 0
                while len(buffer) - start >= FRAME_HEAD:
                    end = start + FRAME_HEAD + int.from_bytes(buffer[start + 3 : start + FRAME_HEAD]) + 1
                    if len(buffer) < end:
                        break
                    self._arrived(*self._unmarshal(bytes(buffer[start:end])))
                    start = end
                del buffer[:start]
            self.lose("the connection is lost")
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing more is heard
            self.lose(str(error) or type(error).__name__)

    def _unmarshal(self, raw: bytes) -> tuple[int, Any]:
        """Channel and content of a frame."""
        _, channel, found = frame.unmarshal(raw)
        return channel, found

    def _arrived(self, channel: int, found: Any) -> None:
        match found:
            case commands.Basic.Ack():
                self._settled(found.delivery_tag, ACCEPTED, multiple=found.multiple)
            case commands.Basic.Nack():
                self.nacked = True
                self._settled(found.delivery_tag, Rejected, multiple=found.multiple)
            case commands.Basic.Return() | body.ContentBody() | heartbeat.Heartbeat():
                pass
            case header.ContentHeader():  # of a message that is returned: its confirmation follows
                self._returned(found.properties.message_id)
            case commands.Connection.Blocked():
                self.blocked = f"it takes no messages for now: {found.reason}"
            case commands.Connection.Unblocked():
                self.blocked = None
            case commands.Connection.Close():
                self._send(commands.Connection.CloseOk(), 0)
                self.lose(found.reply_text, found.reply_code or 0)
            case commands.Channel.Close():
                self._send(commands.Channel.CloseOk(), channel)
                if channel == PUBLISHING:
                    self.lose(found.reply_text, found.reply_code or 0)
                else:
                    self._reply(Closed(found.reply_text, found.reply_code or 0))
            case _:
                self._reply(found)

    def _returned(self, message_id: str | None) -> None:
        if message_id in self._by_id:
            batch, letter = self._by_id[message_id]
            batch.answer(letter.index, self.unroutable)

    def _settled(self, tag: int, outcome: Outcome, *, multiple: bool) -> None:
        if not multiple:
            tags = [tag]
        else:
            tags = []
            for one in self._unconfirmed:  # in the order in which they were sent
                if one > tag:
                    break
                tags.append(one)
        for one in tags:
            batch, letter = self._unconfirmed.pop(one)
            if self._by_id.get(letter.id) == (batch, letter):  # and not its next attempt, when this one ran out of time
                del self._by_id[letter.id]
            batch.answer(letter.index, outcome)

    def _reply(self, found: Frame | Closed) -> None:
        if self._answer is not None and not self._answer.done():
            if isinstance(found, Closed):
                self._answer.set_exception(found)
            else:
                self._answer.set_result(found)

    def lose(self, reason: str, code: int = 0) -> None:
        """The connection is gone, or not to be used any more: those without an answer were not reached."""
        self.lost = self.lost or reason
        self._reply(Closed(self.lost, code))
        self._refuse_too_large(reason)
        self._refuse_forbidden(reason)
        for batch in {id(batch): batch for batch, _ in self._unconfirmed.values()}.values():
            batch.lose(self.lost)
        self._unconfirmed.clear()
        self._by_id.clear()

    def _refuse_too_large(self, reason: str) -> None:
        """For one that is too large the server closes the channel: it is that one's fault, and none of the others'."""
        found = TOO_LARGE.search(reason)
        if found is not None:
            limit = int(found[1])
            for batch, letter in self._unconfirmed.values():
                if len(letter.payload) > limit:
                    batch.answer(letter.index, too_large(len(letter.payload), limit))

    def _refuse_forbidden(self, reason: str) -> None:
        """Nor is it the fault of others that we may not publish under one routing key."""
        found = FORBIDDEN.search(reason)
        if found is not None:
            for batch, letter in self._unconfirmed.values():
                if letter.topic == found[1]:
                    batch.answer(letter.index, TargetUnavailable(reason))
