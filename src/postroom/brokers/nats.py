"""NATS JetStream: whole batches are published, and their acknowledgements come back on one subscription."""

from __future__ import annotations

import asyncio
import re
import ssl
from itertools import count
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from postroom.brokers import urls
from postroom.brokers.batches import Batch, invalid_target, too_large
from postroom.brokers.cloudevents import NATS
from postroom.brokers.port import Accepted, Capabilities, Outcome, Refused, Unreached
from postroom.errors import BrokerUnavailable, InvalidSetting

try:
    import nats
    import nats.errors
    import nats.js.api
    import nats.js.errors
    from nats.aio.client import Client
except ImportError as error:
    raise urls.client_missing("nats", "nats", error) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nats.aio.msg import Msg

    from postroom.message import Message

PORTS = {"nats": 4222, "nats+tls": 4222}
HEAD = len("NATS/1.0\r\n\r\n")
BETWEEN = len(": \r\n")
NO_RESPONDERS = "503"
UNAVAILABLE = 503
MESSAGE_EXCEEDS_MAXIMUM = 10054
NOT_THE_EXPECTED_STREAM = 10060
_SUBJECT = re.compile(r"[^\s*>.]+(?:\.[^\s*>.]+)*")


class Options(urls.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the URL's query may hold."""

    stream: str | None = None
    """Messages must go to this stream; with `declare` it is made if it is not there."""
    subjects: str | None = None
    """With `declare`: the new stream's subjects, with commas."""
    credentials: str | None = None
    """A file with the user's JWT and key."""
    durable: str | None = None
    """Receiving: the stream's consumer."""
    ack_wait: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 30.0
    """Receiving: seconds after which what a dead receiver had comes again; of a consumer that is made here."""


class _Error(msgspec.Struct):
    code: int
    err_code: int = 0
    description: str = ""


class _Acknowledgement(msgspec.Struct):
    stream: str = ""
    seq: int = 0
    error: _Error | None = None


_acknowledgement = msgspec.json.Decoder(_Acknowledgement)


class _Link:
    """One connection, for as long as it lasts; nothing is replayed on another."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._inbox = client.new_inbox()
        self._numbers = count()
        self._batches: dict[str, Batch] = {}
        self.lost: str | None = None
        self.complaint: str | None = None

    async def listen(self) -> None:
        """Subscribe to all acknowledgements at once."""
        await self.client.subscribe(f"{self._inbox}.*.*", cb=self._acknowledged)

    async def send(self, letters: Sequence[_Letter], batch: Batch) -> str:
        """Publish; returns the batch's name for `forget`."""
        name = str(next(self._numbers))
        self._batches[name] = batch
        self.complaint = None
        reply = f"{self._inbox}.{name}."
        publish = self.client.publish
        for letter in letters:
            await publish(letter.subject, letter.body, f"{reply}{letter.index}", letter.headers)
        return name

    def forget(self, batch: Batch) -> None:
        """What is acknowledged later is of no interest."""
        self._batches = {name: one for name, one in self._batches.items() if one is not batch}

    def lose(self, reason: str) -> None:
        """The connection is gone."""
        self.lost = self.lost or reason
        for batch in self._batches.values():
            batch.lose(self.lost)

    async def _acknowledged(self, message: Msg) -> None:
        _, name, index = message.subject.rsplit(".", 2)
        batch = self._batches.get(name)
        if batch is not None:
            batch.answer(int(index), _outcome(message))


class _Letter(msgspec.Struct, frozen=True, gc=False):
    """A message as it goes out."""

    index: int
    subject: str
    headers: dict[str, Any]
    body: bytes

    @property
    def size(self) -> int:
        """Bytes, as the server counts them."""
        headers = sum(len(name) + len(value) + BETWEEN for name, value in self.headers.items())
        return HEAD + headers + len(self.body)


class NatsBroker:
    """Publishes to JetStream, on one connection, which is made anew after any trouble."""

    capabilities = Capabilities()

    def __init__(self, url: str) -> None:
        self._address, self._options = urls.parse(url, PORTS, Options)
        if self._options.declare and not (self._options.stream and self._options.subjects):
            raise InvalidSetting("nats: to declare a stream, give its name and its subjects too: ?stream=…&subjects=…")
        self.name = self._address.name
        self._envelope = self._options.envelope(NATS)
        self._connecting = asyncio.Lock()
        self._link: _Link | None = None

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Publish all, then wait for their acknowledgements. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        link = await self._linked(timeout)
        batch = Batch(len(messages))
        letters = self._letters(messages, batch, link.client.max_payload)
        try:
            async with asyncio.timeout_at(deadline):
                await link.send(letters, batch)
                if link.lost:
                    batch.lose(link.lost)
                await batch.complete()
        except TimeoutError:
            if link.complaint:  # the server does not answer what it does not permit, but says so
                batch.lose(link.complaint)
        except (nats.errors.Error, OSError) as error:
            batch.lose(_why(error))
        finally:
            link.forget(batch)
        if batch.lost or batch.silent:
            await self._drop(link)
        return batch.outcomes(timeout)

    async def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            await self._drop(self._link)

    def _letters(self, messages: Sequence[Message], batch: Batch, limit: int) -> list[_Letter]:
        letters = []
        for index, message in enumerate(messages):
            headers, body = self._envelope.seal(message)
            headers["Nats-Msg-Id"] = str(message.id)
            if self._options.stream:
                headers["Nats-Expected-Stream"] = self._options.stream
            letter = _Letter(index, message.topic, headers, body or b"")
            if not _SUBJECT.fullmatch(message.topic):
                batch.settle(index, invalid_target(message.topic, "is not a subject: no spaces, * or >"))
            elif letter.size > limit:
                batch.settle(index, too_large(letter.size, limit))
            else:
                letters.append(letter)
        return letters

    async def _linked(self, timeout: float) -> _Link:  # noqa: ASYNC109 - as publish
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._link is None or self._link.lost:
                    self._link = await self._connect()
                return self._link
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from error

    async def _connect(self) -> _Link:
        client = Client()
        link = _Link(client)
        reasons: list[str] = []

        async def complain(error: Exception) -> None:
            reasons.append(_why(error))
            link.complaint = reasons[-1]

        async def closed() -> None:
            link.lose(f"{self.name}: {reasons[-1] if reasons else 'the connection is lost'}")

        try:
            await client.connect(**self._connection_settings(), error_cb=complain, closed_cb=closed)
            await link.listen()
            if self._options.declare:
                await self._declare(client)
        except nats.errors.NoServersError as error:
            raise BrokerUnavailable(f"{self.name}: {reasons[-1] if reasons else _why(error)}") from error
        except BaseException:
            await client.close()
            raise
        return link

    def _connection_settings(self) -> dict[str, Any]:
        address = self._address
        tls = address.scheme.endswith("+tls")
        return {
            "servers": [f"{'tls' if tls else 'nats'}://{host}:{port}" for host, port in address.hosts],
            "user": address.user if address.password else None,
            "password": address.password,
            "token": None if address.password else address.user,
            "user_credentials": self._options.credentials,
            "tls": ssl.create_default_context() if tls else None,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "name": "postroom",
        }

    async def _declare(self, client: Client) -> None:
        stream = self._options.stream or ""
        jetstream = client.jetstream()
        try:
            await jetstream.stream_info(stream)
        except nats.js.errors.NotFoundError:
            subjects = (self._options.subjects or "").split(",")
            await jetstream.add_stream(name=stream, subjects=subjects, storage=nats.js.api.StorageType.FILE)

    async def _drop(self, link: _Link) -> None:
        """The next batch gets a new connection."""
        if self._link is link:
            self._link = None
        link.lose("the connection is closed")
        await link.client.close()


def _outcome(message: Msg) -> Outcome:
    if message.headers and message.headers.get("Status") == NO_RESPONDERS:
        return Unreached("no stream takes this subject")
    try:
        acknowledgement = _acknowledgement.decode(message.data)
    except msgspec.DecodeError as error:
        return Unreached(f"the answer is not JetStream's: {error}")
    problem = acknowledgement.error
    if problem is None:
        return Accepted(f"{acknowledgement.stream}:{acknowledgement.seq}")
    if problem.err_code == MESSAGE_EXCEEDS_MAXIMUM:
        return Refused("MESSAGE_TOO_LARGE", problem.description)
    if problem.code == UNAVAILABLE or problem.err_code == NOT_THE_EXPECTED_STREAM:
        return Unreached(problem.description)
    return Refused(f"NATS_{problem.err_code}", problem.description)


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
