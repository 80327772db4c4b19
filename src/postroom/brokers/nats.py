"""NATS JetStream: publishes whole batches; acknowledgements come back on one subscription."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from postroom.brokers import urls
from postroom.brokers.batch import Batch, encode_each
from postroom.brokers.cloudevents import NATS, Header, Sealer
from postroom.brokers.connecting import ClosingConnections, check_time_left
from postroom.brokers.port import Capabilities, Outcome, Refused
from postroom.brokers.refusals import invalid_target, too_large
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules import topics

try:
    import nats
    import nats.errors
    import nats.js.api
    import nats.js.errors
    from nats.aio.client import Client

    from postroom.brokers.nats_connection import NatsConnection, Outgoing
except ImportError as error:
    raise urls.client_missing("nats", "nats", error) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from postroom.message import Message

PORTS = {"nats": 4222, "nats+tls": 4222}


class NatsOptions(urls.UrlOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options in the URL's query."""

    stream: str | None = None
    """Messages must go to this stream; with `declare` it is created if missing."""
    subjects: str | None = None
    """With `declare`: the new stream's subjects, separated by commas."""
    credentials: str | None = None
    """A file with the user's JWT and key."""
    durable: str | None = None
    """Receiving: the stream's durable consumer."""
    ack_wait: Annotated[float, msgspec.Meta(ge=0.1, le=86_400)] = 30.0
    """Receiving: seconds until a dead receiver's messages are redelivered; applies to a consumer created here."""


class NatsBroker:
    """Publishes to JetStream on one connection, and reconnects after any failure."""

    capabilities = Capabilities(ordered=True, dedup_seconds=120.0, places=True)

    def __init__(self, url: str) -> None:
        self.url, self.options = urls.parse(url, PORTS, NatsOptions)
        if self.options.declare and not (self.options.stream and self.options.subjects):
            raise InvalidSetting(
                "nats: to declare a stream, give its name and its subjects too: ?stream=NAME&subjects=SUBJECTS"
            )
        if self.options.credentials and not Path(self.options.credentials).is_file():
            raise InvalidSetting(f"nats: the credentials file {self.options.credentials} does not exist")
        self.name = self.url.name
        self._tls = self.options.tls() if self.url.scheme == "nats+tls" else None
        self._sealer = Sealer(self.options.envelope(NATS), self._common)
        self._hosts = deque(self.url.hosts)
        self._connecting = asyncio.Lock()
        self._closing = ClosingConnections()
        self._connection: NatsConnection | None = None

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Publish all messages, then wait for their acknowledgements. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        connection = await self._connected(timeout)
        check_time_left(self.name, deadline, timeout)
        batch = Batch(len(messages))
        outgoing = list(encode_each(messages, batch, partial(self._outgoing, connection.client.max_payload)))
        try:
            async with asyncio.timeout_at(deadline):
                await connection.send(outgoing, batch)
                await batch.complete()
        except TimeoutError:
            pass  # the batch knows which messages have no answer
        except (nats.errors.Error, OSError) as error:
            batch.lose(_why(error))
        finally:
            connection.forget(batch)
        if batch.lost or batch.silent:
            self._drop(connection)
        return batch.outcomes(timeout)

    async def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._drop(self._connection)
        await self._closing.wait()

    def _outgoing(self, limit: int, index: int, message: Message) -> Outgoing | Refused:
        if problem := topics.subject(message.topic):
            return invalid_target(message.topic, problem)
        name, common, own, body = self._sealer.seal(message)
        one = Outgoing(index, message.topic, f"{common}{_lines(own)}Nats-Msg-Id: {name}\r\n", body or b"")
        return too_large(one.size, limit) if one.size > limit else one

    def _common(self, _: Message, headers: dict[str, str]) -> str:
        if expected := self.options.stream:
            headers["Nats-Expected-Stream"] = expected
        return _lines(headers.items())

    async def _connected(self, timeout: float) -> NatsConnection:  # noqa: ASYNC109 - as publish
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._connection is None or self._connection.lost:
                    self._connection = await self._connect()
                return self._connection
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from error

    async def _connect(self) -> NatsConnection:
        """Try each host in turn: the client itself tries only one if it is not to reconnect by itself."""
        trouble: Exception | None = None
        for _ in self.url.hosts:
            place = self._hosts[0]
            self._hosts.rotate(-1)  # a host that never answers uses up the timeout: try another one next time
            try:
                return await self._connect_to(*place)
            except (nats.errors.Error, OSError) as error:
                trouble = error
        raise trouble or OSError("no host")

    async def _connect_to(self, host: str, port: int) -> NatsConnection:
        client = Client()
        connection = NatsConnection(client, self.options.stream)
        reasons: list[str] = []

        async def failed(error: Exception) -> None:
            reasons.append(_why(error))
            connection.server_error(reasons[-1])

        async def closed() -> None:
            connection.lose(f"{self.name}: {reasons[-1] if reasons else 'the connection is lost'}")

        try:
            await client.connect(**self.connection_settings(host, port), error_cb=failed, closed_cb=closed)
            await connection.listen()
            if self.options.declare:
                await self.declare(client)
        except nats.errors.NoServersError as error:
            raise nats.errors.Error(reasons[-1] if reasons else _why(error)) from error
        except BaseException:
            self._closing.add(client.close())
            raise
        return connection

    def connection_settings(self, host: str, port: int) -> dict[str, Any]:
        """The settings of any connection to this host."""
        url = self.url
        return {
            "servers": [f"{'tls' if self._tls else 'nats'}://{host}:{port}"],
            "user": url.user if url.password else None,
            "password": url.password,
            "token": None if url.password else url.user,
            "user_credentials": self.options.credentials,
            "tls": self._tls,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "name": "postroom",
        }

    async def declare(self, client: Client) -> None:
        """Create the stream if it is missing."""
        stream = self.options.stream or ""
        jetstream = client.jetstream()
        try:
            await jetstream.stream_info(stream)
        except nats.js.errors.NotFoundError:
            subjects = (self.options.subjects or "").split(",")
            await jetstream.add_stream(name=stream, subjects=subjects, storage=nats.js.api.StorageType.FILE)

    def _drop(self, connection: NatsConnection) -> None:
        """Give up the connection; the next batch gets a new one."""
        if self._connection is connection:
            self._connection = None
            connection.lose(f"{self.name}: the connection was given up")
            self._closing.add(connection.client.close())


def _lines(headers: Iterable[Header]) -> str:
    return "".join([f"{name}: {value}\r\n" for name, value in headers])


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
