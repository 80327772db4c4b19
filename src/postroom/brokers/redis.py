"""Redis Streams: a batch is one pipeline of XADD."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from postroom.brokers import urls
from postroom.brokers.batches import Batch, invalid_target, sealed, too_large
from postroom.brokers.cloudevents import REDIS
from postroom.brokers.port import Accepted, Capabilities, Outcome, Refused, TargetUnavailable, Unreached
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules import topics

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError, ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError
except ImportError as error:
    raise urls.client_missing("redis", "redis", error) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.message import Message

PORTS = {"redis": 6379, "rediss": 6379}
MOST_BYTES = 512 * 1024 * 1024
"""What a server takes in one field, unless it is set up otherwise (`proto-max-bulk-len`)."""


OF_THE_STREAM = re.compile(r"WRONGTYPE|(?i:no permissions to access a key|the keys used as arguments)")
"""What the server says of one stream; all else that it refuses is a matter of the whole server."""
PATIENCE = 0.8
"""The part of the timeout that replicas have: the rest is for the answer's way back."""


class Options(urls.Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the URL's query may hold."""

    prefix: str = ""
    """Before the topic, in the stream's name."""
    maxlen: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """About how many entries a stream keeps."""
    replicas: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """How many replicas must have a message before it counts as sent."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = MOST_BYTES
    """The most bytes that a payload may have."""
    group: str | None = None
    """Receiving: the consumer group."""
    claim_idle_ms: Annotated[int, msgspec.Meta(ge=50, le=86_400_000)] = 60_000
    """Receiving: after how long what a dead receiver had is taken over."""


class RedisBroker:
    """Adds each message to the stream that its topic names."""

    def __init__(self, url: str) -> None:
        address, self.options = urls.parse(url, PORTS, Options)
        if len(address.hosts) > 1:
            raise InvalidSetting(f"{address.name}: give one host; clusters are not supported")
        if address.path and not address.path.isdecimal():
            raise InvalidSetting(f"{address.name}: after the slash comes the number of a database")
        self.name = address.name
        self.capabilities = Capabilities(ordered=True, places=True, max_bytes=self.options.max_bytes)
        self._envelope = self.options.envelope(REDIS)
        [(host, port)] = address.hosts
        self.client = Redis(
            host=host.strip("[]"),
            port=port,
            db=int(address.path or 0),
            username=address.user,
            password=address.password,
            ssl=address.scheme == "rediss",
            ssl_ca_certs=self.options.ca,
            client_name="postroom",
            retry=Retry(NoBackoff(), 0),  # the relay tries again, and knows what it has tried
        )

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Add all in one round trip. Raises `BrokerUnavailable`."""
        batch = Batch(len(messages))
        entries = sealed(messages, batch, self._entry)
        connected = False
        try:
            async with asyncio.timeout(timeout), self.client.pipeline(transaction=False) as pipeline:
                # The connection comes first: one that cannot be had was no attempt.
                pipeline.connection = await self.client.connection_pool.get_connection()  # type: ignore[no-untyped-call]  # the client has no type here
                connected = True
                for _, command in entries:
                    pipeline.execute_command(*command)
                if self.options.replicas:
                    pipeline.execute_command("WAIT", self.options.replicas, int(timeout * 1000 * PATIENCE))
                answers = await pipeline.execute(raise_on_error=False)
        except (TimeoutError, RedisTimeoutError):
            if not connected:
                raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
            return batch.outcomes(timeout)
        except (RedisError, OSError) as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error
        short = self.options.replicas > 0 and _replicas(answers.pop()) < self.options.replicas
        for (index, _), answer in zip(entries, answers, strict=True):
            batch.settle(index, _outcome(answer, short=short))
        return batch.outcomes(timeout)

    async def close(self) -> None:
        """End the connections."""
        await self.client.aclose()

    def _entry(self, index: int, message: Message) -> Refused | tuple[int, list[Any]]:
        """Place in the batch, and the command for a message; all text in it is encoded, which can fail."""
        if problem := topics.stream(message.topic):
            return invalid_target(message.topic, problem)
        headers, body = self._envelope.seal(message)
        fields = [text.encode() for header in headers.items() for text in header]
        if body is not None:
            fields += (b"data", body)
        largest = max(map(len, fields))
        if largest > self.options.max_bytes:
            return too_large(largest, self.options.max_bytes)
        command: list[Any] = ["XADD", self.options.prefix + message.topic]
        if not self.options.declare:
            command.append("NOMKSTREAM")
        if self.options.maxlen:
            command += ["MAXLEN", "~", self.options.maxlen]
        return index, [*command, "*", *fields]


def _replicas(answer: object) -> int:
    return answer if isinstance(answer, int) else 0


def _outcome(answer: object, *, short: bool) -> Outcome:
    """Whatever the server refuses is a matter of how it is set up or how it fares, and none of the message's."""
    match answer:
        case bytes() | str():
            if short:
                return Unreached("too few replicas have it")
            return Accepted(answer.decode() if isinstance(answer, bytes) else answer)
        case None:
            return TargetUnavailable("there is no such stream; ?declare=true makes it")
        case ResponseError():
            text = str(answer)
            return TargetUnavailable(text) if OF_THE_STREAM.search(text) else Unreached(text)
        case _:
            return Unreached(f"the answer is not that of Redis: {type(answer).__name__}")
