"""NATS JetStream: whole batches are published, and their acknowledgements come back on one subscription."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from postroom.brokers import urls
from postroom.brokers.batches import Batch, Leaving, check_time, invalid_target, sealed, too_large
from postroom.brokers.cloudevents import NATS
from postroom.brokers.port import Capabilities, Outcome, Refused
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules import topics

try:
    import nats
    import nats.errors
    import nats.js.api
    import nats.js.errors
    from nats.aio.client import Client

    from postroom.brokers.jetstream import Letter, Link
except ImportError as error:
    raise urls.client_missing("nats", "nats", error) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message

PORTS = {"nats": 4222, "nats+tls": 4222}


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


class NatsBroker:
    """Publishes to JetStream, on one connection, which is made anew after any trouble."""

    capabilities = Capabilities(ordered=True, dedup_seconds=120.0, places=True)

    def __init__(self, url: str) -> None:
        self.address, self.options = urls.parse(url, PORTS, Options)
        if self.options.declare and not (self.options.stream and self.options.subjects):
            raise InvalidSetting(
                "nats: to declare a stream, give its name and its subjects too: ?stream=NAME&subjects=SUBJECTS"
            )
        if self.options.credentials and not Path(self.options.credentials).is_file():
            raise InvalidSetting(f"nats: the file of the option credentials, {self.options.credentials}, is not there")
        self.name = self.address.name
        self._tls = self.options.tls() if self.address.scheme == "nats+tls" else None
        self._envelope = self.options.envelope(NATS)
        self._hosts = deque(self.address.hosts)
        self._connecting = asyncio.Lock()
        self._leaving = Leaving()
        self._link: Link | None = None

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Publish all, then wait for their acknowledgements. Raises `BrokerUnavailable`."""
        deadline = asyncio.get_running_loop().time() + timeout
        link = await self._linked(timeout)
        check_time(self.name, deadline, timeout)
        batch = Batch(len(messages))
        letters = sealed(messages, batch, partial(self._letter, link.client.max_payload))
        try:
            async with asyncio.timeout_at(deadline):
                await link.send(letters, batch)
                await batch.complete()
        except TimeoutError:
            pass  # those without an answer are told apart by the batch
        except (nats.errors.Error, OSError) as error:
            batch.lose(_why(error))
        finally:
            link.forget(batch)
        if batch.lost or batch.silent:
            self._drop(link)
        return batch.outcomes(timeout)

    async def close(self) -> None:
        """End the connection."""
        if self._link is not None:
            self._drop(self._link)
        await self._leaving.end()

    def _letter(self, limit: int, index: int, message: Message) -> Letter | Refused:
        if problem := topics.subject(message.topic):
            return invalid_target(message.topic, problem)
        headers, body = self._envelope.seal(message)
        headers["Nats-Msg-Id"] = headers.get("ce-id") or str(message.id)
        if expected := self.options.stream:
            headers["Nats-Expected-Stream"] = expected
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        letter = Letter(index, message.topic, lines, body or b"")
        return too_large(letter.size, limit) if letter.size > limit else letter

    async def _linked(self, timeout: float) -> Link:  # noqa: ASYNC109 - as publish
        try:
            async with asyncio.timeout(timeout), self._connecting:
                if self._link is None or self._link.lost:
                    self._link = await self._connect()
                return self._link
        except TimeoutError:
            raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
        except (nats.errors.Error, OSError) as error:
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from error

    async def _connect(self) -> Link:
        """The client would try one host only, where it is not to reconnect by itself."""
        trouble: Exception | None = None
        for _ in self.address.hosts:
            place = self._hosts[0]
            self._hosts.rotate(-1)  # one that does not even refuse takes all the time there is: the next comes next
            try:
                return await self._connect_to(*place)
            except (nats.errors.Error, OSError) as error:
                trouble = error
        raise trouble or OSError("no host")

    async def _connect_to(self, host: str, port: int) -> Link:
        client = Client()
        link = Link(client, self.options.stream)
        reasons: list[str] = []

        async def complain(error: Exception) -> None:
            reasons.append(_why(error))
            link.complain(reasons[-1])

        async def closed() -> None:
            link.lose(f"{self.name}: {reasons[-1] if reasons else 'the connection is lost'}")

        try:
            await client.connect(**self.connection_settings(host, port), error_cb=complain, closed_cb=closed)
            await link.listen()
            if self.options.declare:
                await self.declare(client)
        except nats.errors.NoServersError as error:
            raise nats.errors.Error(reasons[-1] if reasons else _why(error)) from error
        except BaseException:
            self._leaving.begin(client.close())
            raise
        return link

    def connection_settings(self, host: str, port: int) -> dict[str, Any]:
        """What any connection to this host is made with."""
        address = self.address
        return {
            "servers": [f"{'tls' if self._tls else 'nats'}://{host}:{port}"],
            "user": address.user if address.password else None,
            "password": address.password,
            "token": None if address.password else address.user,
            "user_credentials": self.options.credentials,
            "tls": self._tls,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "name": "postroom",
        }

    async def declare(self, client: Client) -> None:
        """Make the stream if it is not there."""
        stream = self.options.stream or ""
        jetstream = client.jetstream()
        try:
            await jetstream.stream_info(stream)
        except nats.js.errors.NotFoundError:
            subjects = (self.options.subjects or "").split(",")
            await jetstream.add_stream(name=stream, subjects=subjects, storage=nats.js.api.StorageType.FILE)

    def _drop(self, link: Link) -> None:
        """The next batch gets a new connection."""
        if self._link is link:
            self._link = None
            link.lose(f"{self.name}: the connection was given up")
            self._leaving.begin(link.client.close())


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__
