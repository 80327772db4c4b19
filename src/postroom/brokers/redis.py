"""Redis Streams: a batch is one write of XADD commands."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Annotated

import msgspec

from postroom.brokers import urls
from postroom.brokers.batch import Batch, encode_each
from postroom.brokers.cloudevents import REDIS, Sealer
from postroom.brokers.port import Accepted, Capabilities, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.refusals import invalid_target, too_large
from postroom.errors import BrokerUnavailable, InvalidSetting
from postroom.rules import topics

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    from postroom.brokers import redis_protocol as protocol
except ImportError as error:
    raise urls.client_missing("redis", "redis", error) from error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
        self._sealer = Sealer(self.options.envelope(REDIS), self._start)
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
            protocol=2,  # without messages that the server pushes between its answers
            retry=Retry(NoBackoff(), 0),  # the relay itself retries, and counts attempts
        )

    async def publish(self, messages: Sequence[Message], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        """Add all messages in one round trip. Raises `BrokerUnavailable`."""
        batch = Batch(len(messages))
        entries = list(encode_each(messages, batch, self._entry))
        commands = [command for _, command in entries]
        if self.options.replicas:
            patience = str(int(timeout * 1000 * REPLICAS_SHARE))
            commands.append(protocol.command("WAIT", str(self.options.replicas), patience))
        pool = self.client.connection_pool
        connection = None
        try:
            async with asyncio.timeout(timeout):
                # Connect first: a failure to connect must not count as an attempt.
                connection = await pool.get_connection()  # type: ignore[no-untyped-call]  # the client has no type here
                answers = await protocol.ask(connection, commands)
        except (TimeoutError, RedisTimeoutError):
            if connection is None:
                raise BrokerUnavailable(f"{self.name} does not answer within {timeout:g} s") from None
            return batch.outcomes(timeout)
        except (RedisError, OSError) as error:
            raise BrokerUnavailable(f"{self.name}: {error}") from error
        finally:
            if connection is not None:
                await pool.release(connection)
        short = self.options.replicas > 0 and _replicas(answers.pop()) < self.options.replicas
        for (index, _), answer in zip(entries, answers, strict=True):
            batch.settle(index, _outcome(answer, short=short))
        return batch.outcomes(timeout)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()

    def _entry(self, index: int, message: Message) -> Refused | tuple[int, bytes]:
        """Place in the batch, and the command for the message. All text in it is encoded here, which can fail."""
        if problem := topics.stream(message.topic):
            return invalid_target(message.topic, problem)
        _, (count, start), own, body = self._sealer.seal(message)
        largest = max([protocol.size(value) for _, value in own], default=0)
        if body is not None:
            largest = max(largest, len(body))
        if largest > self.options.max_bytes:
            return too_large(largest, self.options.max_bytes)
        fields = protocol.arguments([text for header in own for text in header])
        count += 2 * len(own)
        if body is None:
            return index, f"*{count}\r\n{start}{fields}".encode()
        head = f"*{count + 2}\r\n{start}{fields}$4\r\ndata\r\n${len(body)}\r\n"
        return index, b"%b%b\r\n" % (head.encode(), body)

    def _start(self, message: Message, headers: Mapping[str, str]) -> tuple[int, str]:
        """The start of each such message's command, and the number of arguments in it."""
        start = ["XADD", self.options.prefix + message.topic]
        if not self.options.declare:
            start.append("NOMKSTREAM")
        if self.options.maxlen:
            start += ("MAXLEN", "~", str(self.options.maxlen))
        start += ("*", *(text for header in headers.items() for text in header))
        return len(start), protocol.arguments(start)


def _replicas(answer: bytes) -> int:
    return int(answer[1:]) if answer.startswith(b":") else 0


def _outcome(answer: bytes, *, short: bool) -> Outcome:
    """The server never refuses a message for what it holds, only because of its own setup or state."""
    if answer[:1].isdigit():
        return Unreached("too few replicas have it") if short else Accepted(answer.decode())
    if answer == protocol.NIL:
        return TargetUnavailable("there is no such stream; ?declare=true creates it")
    if not answer.startswith(b"-"):
        return Unreached("this is not an answer of Redis")
    text = answer[1:].decode(errors="replace")
    return TargetUnavailable(text) if STREAM_ERROR.search(text) else Unreached(text)
