"""A connection to RabbitMQ that publishes whole batches and collects their confirmations.

Client libraries wait for each message to be written before they write the next. Here a batch is one write, and one
frame can confirm many messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
from typing import TYPE_CHECKING, Any, Self, TypeVar

from pamqp import body, commands, frame, header, heartbeat
from pamqp.base import Frame

from postroom.brokers.port import ACCEPTED, Outcome, TargetUnavailable
from postroom.brokers.rabbitmq_frames import PUBLISHING
from postroom.brokers.refusals import too_large

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from postroom.brokers.batch import Batch
    from postroom.brokers.rabbitmq_frames import Outgoing

DECLARING = 2
NOT_FOUND = 404
HEARTBEAT = 30
CHUNK = 256 * 1024
FRAME_HEAD = 7
ACK = struct.pack(">BHIHH", 1, PUBLISHING, 13, 60, 80)
"""How a confirmation starts; then the tag follows, and whether it stands for all before."""
_confirmed = struct.Struct(">Q?").unpack_from
CLOSE_TIMEOUT = 1.0
CAPABILITIES = {"publisher_confirms": True, "authentication_failure_close": True, "connection.blocked": True}

R = TypeVar("R", bound=Frame)
TOO_LARGE = re.compile(r"is larger than configured max size (\d+)")
FORBIDDEN = re.compile(r"access to topic '(.*)' in exchange", re.DOTALL)
Rejected = TargetUnavailable("a queue has refused it: it is full, or not available")


class Closed(ConnectionError):
    """The server closed the connection or a channel, or the connection broke."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(reason)
        self.code = code


class _AnyName:
    """A frame that accepts any names: the server allows more than the library does."""

    def validate(self) -> None:
        """Leave validation to the server."""


class QueueDeclare(_AnyName, commands.Queue.Declare):
    """Declares a queue."""


class QueueBind(_AnyName, commands.Queue.Bind):
    """Binds a queue to an exchange."""


class ExchangeDeclare(_AnyName, commands.Exchange.Declare):
    """Declares an exchange."""


class Consume(_AnyName, commands.Basic.Consume):
    """Subscribes to a queue."""


class RabbitConnection:
    """One connection, for as long as it lasts, with a channel in confirm mode."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.unroutable: Outcome = TargetUnavailable("there is no queue of this name; ?declare=true creates it")
        """The outcome of messages that the server returns."""
        self._answer: asyncio.Future[Frame] | None = None
        self._tag = 0
        self._unconfirmed: dict[int, tuple[Batch, Outgoing]] = {}
        self._by_id: dict[str | None, tuple[Batch, Outgoing]] = {}
        self.version = ""
        """The server's own, once it has told it."""
        self.frame_max = CHUNK
        """The largest frame, in bytes. A message's properties and headers are one frame; its payload may be many."""
        self.lost: str | None = None
        self.nacked = False
        """Whether the server has refused a message: it may have lost a queue's leader that other nodes still reach."""
        self.batches_in_flight = 0
        self.closing = False
        self.blocked: str | None = None
        """Why the server accepts no messages for now."""
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._beat())]

    @classmethod
    async def open(cls, host: str, port: int, tls: ssl.SSLContext | None, user: str, password: str, vhost: str) -> Self:
        """Connect, log in, and open a channel in confirm mode. Raises `Closed` or `OSError`."""
        connection = cls(*await asyncio.open_connection(host, port, ssl=tls))
        try:
            await connection._log_in(user, password, vhost)
        except BaseException:
            connection.lose("the login failed")  # then `close` does not wait for the server
            await connection.close()
            raise
        return connection

    async def _log_in(self, user: str, password: str, vhost: str) -> None:
        self._writer.write(header.ProtocolHeader().marshal())
        start = await self._answered(commands.Connection.Start)
        self.version = str(dict(start.server_properties or {}).get("version", ""))
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
        """Send `declaration` if `question`, a passive declaration, finds nothing."""
        await self._ask(commands.Channel.Open(), DECLARING, commands.Channel.OpenOk)
        try:
            await self._ask(question, DECLARING, answer)
        except Closed as closed:
            if closed.code != NOT_FOUND or self.lost:
                raise
            await self._ask(commands.Channel.Open(), DECLARING, commands.Channel.OpenOk)
            await self._ask(declaration, DECLARING, answer)
        await self._ask(commands.Channel.Close(200, "", 0, 0), DECLARING, commands.Channel.CloseOk)

    async def look(self, question: Frame, answer: type[Frame]) -> None:
        """Ask on a channel of its own, which is gone if the server refuses. Raises `Closed` with the server's code."""
        await self._ask(commands.Channel.Open(), DECLARING, commands.Channel.OpenOk)
        await self._ask(question, DECLARING, answer)
        await self._ask(commands.Channel.Close(200, "", 0, 0), DECLARING, commands.Channel.CloseOk)

    async def send(self, outgoing: Sequence[Outgoing], batch: Batch) -> None:
        """Write a batch. The outcome of each message is recorded in `batch` when it arrives."""
        if self.lost:
            raise Closed(self.lost)
        frames: list[bytes] = []
        for one in outgoing:
            self._tag += 1
            self._unconfirmed[self._tag] = self._by_id[one.id] = (batch, one)
            frames += one.frames(self.frame_max)
        self._writer.write(b"".join(frames))
        await self._writer.drain()

    async def close(self) -> None:
        """Close the connection in order if the server still answers, and release everything."""
        with contextlib.suppress(Closed, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
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
        """Send heartbeats: a server that hears nothing for long closes the connection."""
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
                    if buffer.startswith(ACK, start):
                        tag, multiple = _confirmed(buffer, start + len(ACK))
                        self._settled(tag, ACCEPTED, multiple=multiple)
                    else:
                        self._arrived(*self._unmarshal(bytes(buffer[start:end])))
                    start = end
                del buffer[:start]
            self.lose("the connection is lost")
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing more can be read
            self.lose(str(error) or type(error).__name__)

    def _unmarshal(self, raw: bytes) -> tuple[int, Any]:
        """Channel and content of a frame."""
        _, channel, found = frame.unmarshal(raw)
        return channel, found

    def _arrived(self, channel: int, found: Any) -> None:
        match found:
            case commands.Basic.Nack():
                self.nacked = True
                self._settled(found.delivery_tag, Rejected, multiple=found.multiple)
            case commands.Basic.Return() | body.ContentBody() | heartbeat.Heartbeat():
                pass
            case header.ContentHeader():  # of a returned message, whose confirmation follows
                self._returned(found.properties.message_id)
            case commands.Connection.Blocked():
                self.blocked = f"it accepts no messages for now: {found.reason}"
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
            batch, one = self._by_id[message_id]
            batch.answer(one.number, self.unroutable)

    def _settled(self, tag: int, outcome: Outcome, *, multiple: bool) -> None:
        if not multiple:
            tags = [tag]
        else:
            tags = []
            for earlier in self._unconfirmed:  # in the order in which they were sent
                if earlier > tag:
                    break
                tags.append(earlier)
        for confirmed in tags:
            sent = self._unconfirmed.pop(confirmed)
            batch, one = sent
            if self._by_id.get(one.id) is sent:  # else it is the next attempt: this one ran out of time
                del self._by_id[one.id]
            batch.answer(one.number, outcome)

    def _reply(self, found: Frame | Closed) -> None:
        if self._answer is not None and not self._answer.done():
            if isinstance(found, Closed):
                self._answer.set_exception(found)
            else:
                self._answer.set_result(found)

    def lose(self, reason: str, code: int = 0) -> None:
        """Mark the connection as unusable: messages without an answer did not reach the broker."""
        self.lost = self.lost or reason
        self._reply(Closed(self.lost, code))
        self._refuse_too_large(reason)
        self._refuse_forbidden(reason)
        for batch in {id(batch): batch for batch, _ in self._unconfirmed.values()}.values():
            batch.lose(self.lost)
        self._unconfirmed.clear()
        self._by_id.clear()

    def _refuse_too_large(self, reason: str) -> None:
        """Refuse a message that is too large: the server closes the channel for it, but the others are not at fault."""
        found = TOO_LARGE.search(reason)
        if found is not None:
            limit = int(found[1])
            for batch, one in self._unconfirmed.values():
                if len(one.payload) > limit:
                    batch.answer(one.number, too_large(len(one.payload), limit))

    def _refuse_forbidden(self, reason: str) -> None:
        """Refuse messages under a routing key that we may not publish to; the others are not at fault."""
        found = FORBIDDEN.search(reason)
        if found is not None:
            for batch, one in self._unconfirmed.values():
                if one.topic == found[1]:
                    batch.answer(one.number, TargetUnavailable(reason))
