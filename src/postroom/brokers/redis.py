"""Redis Streams: a batch is one pipeline of XADD."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from postroom.brokers import urls
from postroom.brokers.batch import Batch, encode_each
from postroom.brokers.cloudevents import REDIS
from postroom.brokers.port import Accepted, Capabilities, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.refusals import invalid_target, too_large
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
MAX_BYTES = 512 * 1024 * 1024
"""What a server accepts in one field by default (`proto-max-bulk-len`)."""


STREAM_ERROR = re.compile(r"WRONGTYPE|(?i:no permissions to access a key|the keys used as arguments)")
"""Errors that concern one stream; every other refusal concerns the whole server."""
REPLICAS_SHARE = 0.8
"""The share of the timeout that replicas get; the rest is for the answer's way back."""


class RedisOptions(urls.UrlOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options in the URL's query."""

    prefix: str = ""
    """Prefix of the stream's name, before the topic."""
    maxlen: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Approximate number of entries that a stream keeps."""
    replicas: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Replicas that must have a message before it counts as sent."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1)] = MAX_BYTES
    """The largest payload, in bytes."""
    group: str | None = None
    """Receiving: the consumer group."""
    claim_idle_ms: Annotated[int, msgspec.Meta(ge=50, le=86_400_000)] = 60_000
    """Receiving: how long until a dead receiver's messages are taken over."""


class RedisBroker:
    """Adds each message to the stream that its topic names."""

    def __init__(self, url: str) -> None:
        parsed, self.options = urls.parse(url, PORTS, RedisOptions)
        if len(parsed.hosts) > 1:
            raise InvalidSetting(f"{parsed.name}: give one host; clusters are not supported")
        if parsed.path and not parsed.path.isdecimal():
            raise InvalidSetting(f"{parsed.name}: write the number of a database after the slash")
        self.name = parsed.name
        self.capabilities = Capabilities(ordered=True, places=True, max_bytes=self.options.max_bytes)
        self._envelope = self.options.envelope(REDIS)
        [(host, port)] = parsed.hosts
        self.client = Redis(
            host=host.strip("[]"),
            port=port,
            db=int(parsed.path or 0),
            username=parsed.user,
            password=parsed.password,
            ssl=parsed.scheme == "rediss",
            ssl_ca_certs=self.options.ca,
            client_name="postroom",
            retry=Retry(NoBackoff(), 0),  # the relay itself retries, and counts attempts
        )

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Add all messages in one round trip. Raises `BrokerUnavailable`."""
        batch = Batch(len(messages))
        entries = encode_each(messages, batch, self._entry)
        connected = False
        try:
            async with asyncio.timeout(timeout), self.client.pipeline(transaction=False) as pipeline:
                # Connect first: a failure to connect must not count as an attempt.
                pipeline.connection = await self.client.connection_pool.get_connection()  # type: ignore[no-untyped-call]  # the client has no type here
                connected = True
                for _, command in entries:
                    pipeline.execute_command(*command)
                if self.options.replicas:
                    pipeline.execute_command("WAIT", self.options.replicas, int(timeout * 1000 * REPLICAS_SHARE))
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
        """Close the connections."""
        await self.client.aclose()

    def _entry(self, index: int, message: Message) -> Refused | tuple[int, list[Any]]:
        """Place in the batch, and the command for the message. All text in it is encoded here, which can fail."""
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
    """The server never refuses a message for what it holds, only because of its own setup or state."""
    match answer:
        case bytes() | str():
            if short:
                return Unreached("too few replicas have it")
            return Accepted(answer.decode() if isinstance(answer, bytes) else answer)
        case None:
            return TargetUnavailable("there is no such stream; ?declare=true creates it")
        case ResponseError():
            text = str(answer)
            return TargetUnavailable(text) if STREAM_ERROR.search(text) else Unreached(text)
        case _:
            return Unreached(f"this is not an answer of Redis: {type(answer).__name__}")
