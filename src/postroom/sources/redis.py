"""Receive from Redis Streams as a member of a consumer group.

What a member reads stays pending under its name until it is acknowledged. What is given back, or held by a member that
leaves, is claimed by the name `RETURNED`; any member takes it from there. What a dead member held is taken over when it
has been idle for `claim_idle_ms`; live members touch their messages three times as often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from postroom.brokers.cloudevents import REDIS, incoming
from postroom.brokers.redis import RedisBroker
from postroom.errors import BrokerUnavailable
from postroom.runtime.waiting import wait_for
from postroom.sources import patterns
from postroom.sources.port import Received
from postroom.sources.reading import fingerprint, text, undecodable

from redis.exceptions import RedisError, ResponseError  # isort: skip - after the publisher, which says what is missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Place = tuple[str, bytes]
"""A stream and an entry's id."""

RETURNED = "returned"
LONG_AGO_MS = 86_400_000
ANSWER_TIMEOUT = 5.0
MAX_BLOCK = 2.0
"""Seconds; the client gives up on a server that stays silent much longer."""
TAKE_OVER_EVERY = 5.0
"""Seconds between two searches for messages that were returned, or belong to a dead member."""
PAGE = 1000


class RedisSource:
    """Receives from one stream for each topic, as a member of a group."""

    def __init__(self, url: str, consumer: str, topics: Sequence[str]) -> None:
        self._publisher = RedisBroker(url)
        options = self._publisher.options
        self._client: Any = self._publisher.client
        self.name = self._publisher.name
        self._topics: dict[str, str] = {}
        for topic in patterns.check_topics(topics):
            patterns.no_pattern("redis", topic, "name each topic")
            self._topics[options.prefix + topic] = topic
        self._group = options.group or consumer
        self._idle_ms = options.claim_idle_ms
        self._me = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._joined = False
        self._unsure = True
        """Whether entries may be pending under our name that we have not seen."""
        self._take_over_at = 0.0
        self._waiting: deque[Received] = deque()
        self._out: dict[Place, Received] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()

    async def receive(self, most: int, seconds: float) -> Sequence[Received]:
        """Up to `most` entries: our own that got lost on their way, then returned ones, then new ones.

        Raises `BrokerUnavailable`; unacknowledged messages come again then.
        """
        try:
            self._check_keeper()
            if not self._joined:
                await self._join()
            if not self._waiting:
                await self._fill(most, seconds)
        except (RedisError, OSError, TimeoutError) as error:
            self._joined = False
            self._forget()
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]

    def _check_keeper(self) -> None:
        """Raise if the task that keeps our entries has ended: they come again, with a new task."""
        if self._keeper is not None and self._keeper.done():
            keeper, self._keeper = self._keeper, None
            error = None if keeper.cancelled() else keeper.exception()
            raise OSError(f"the task that keeps what is out has ended: {type(error).__name__}: {error}")

    async def acknowledge(self, received: Sequence[Received]) -> None:
        """Acknowledge these in one round trip. Raises `BrokerUnavailable`."""
        places = self._places(received)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT), self._client.pipeline(transaction=False) as pipeline:
                for stream, entries in _by_stream(places):
                    pipeline.xack(stream, self._group, *entries)
                await pipeline.execute()
        except (RedisError, OSError, TimeoutError) as error:
            self._unsure = True
            raise BrokerUnavailable(f"{self.name}: {_why(error)}") from None
        finally:
            self._settle(places)

    async def give_back(self, received: Sequence[Received]) -> None:
        """Return them so that any member can take them; if that fails, we take them again ourselves."""
        places = self._places(received)
        self._settle(places)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                await self._claim(places, RETURNED, LONG_AGO_MS)
            self._take_over_at = 0.0
        except (RedisError, OSError, TimeoutError):
            self._unsure = True

    async def close(self) -> None:
        """Return what is pending, leave the group, and close the connections."""
        if self._keeper is not None:
            self._leaving.set()  # not cancelled: the client may swallow the cancellation
            await asyncio.wait([self._keeper])
            self._keeper = None
        self._forget()
        if self._joined:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    await self._leave()
        self._joined = False
        await self._publisher.close()

    async def _join(self) -> None:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            for stream in self._topics:
                try:
                    await self._client.xgroup_create(stream, self._group, id="0", mkstream=True)
                except ResponseError as error:
                    if "BUSYGROUP" not in str(error):
                        raise
        if self._keeper is None:
            self._leaving.clear()
            self._keeper = asyncio.create_task(self._keep())
        self._joined = True

    async def _leave(self) -> None:
        for stream in self._topics:
            while pending := await self._client.xpending_range(stream, self._group, "-", "+", PAGE, self._me):
                await self._claim([(stream, entry["message_id"]) for entry in pending], RETURNED, LONG_AGO_MS)
            await self._client.xgroup_delconsumer(stream, self._group, self._me)

    async def _fill(self, most: int, seconds: float) -> None:
        """Fill `waiting`. Until this has succeeded, entries may be pending under our name that we have not seen."""
        async with asyncio.timeout(seconds + ANSWER_TIMEOUT):
            if self._unsure:
                await self._recover()
            self._unsure = True
            if not self._waiting and time.monotonic() >= self._take_over_at:
                await self._take_over(most)
            if not self._waiting:
                await self._read(most, seconds)
            self._unsure = False

    async def _recover(self) -> None:
        """Read entries that are pending under our name and not in our hands."""
        for stream in self._topics:
            last = b"0"
            while True:
                found = await self._client.xreadgroup(self._group, self._me, {stream: last}, count=PAGE)
                entries = found[0][1] if found else []
                if not entries:
                    break
                await self._arrived(stream, entries)
                last = entries[-1][0]

    async def _take_over(self, most: int) -> None:
        for stream in self._topics:
            start = b"0-0"
            while len(self._waiting) < most:
                start, entries, *_ = await self._client.xautoclaim(
                    stream, self._group, self._me, self._idle_ms, start, count=most
                )
                await self._arrived(stream, entries)
                if start == b"0-0":
                    break
        if len(self._waiting) < most:
            self._take_over_at = time.monotonic() + min(TAKE_OVER_EVERY, self._idle_ms / 2000)

    async def _read(self, most: int, seconds: float) -> None:
        streams = dict.fromkeys(self._topics, ">")
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            block = max(1, int(min(left, MAX_BLOCK) * 1000)) if left > 0 else None
            found = await self._client.xreadgroup(self._group, self._me, streams, count=most, block=block)
            for stream, entries in found or ():
                await self._arrived(stream.decode(), entries)
            if self._waiting or time.monotonic() >= deadline:
                return

    async def _arrived(self, stream: str, entries: Iterable[tuple[bytes, Mapping[bytes, bytes] | None]]) -> None:
        for entry, fields in entries:
            place = (stream, entry)
            if place in self._out:
                continue
            if not fields:  # the stream was trimmed, and the entry is gone
                await self._client.xack(stream, self._group, entry)
                continue
            self._out[place] = _received(place, self._topics[stream], fields)
            self._waiting.append(self._out[place])

    async def _keep(self) -> None:
        """Keep touching our entries, so that nobody takes them over."""
        while not self._leaving.is_set():
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    await self._claim(list(self._out), self._me, 0)
            await wait_for(self._leaving, self._idle_ms / 3000)

    async def _claim(self, places: Sequence[Place], member: str, idle_ms: int) -> None:
        for stream, entries in _by_stream(places):
            await self._client.xclaim(stream, self._group, member, 0, entries, idle=idle_ms, justid=True)

    def _places(self, received: Sequence[Received]) -> list[Place]:
        """The places of those that we hold. Others come again: a recreated stream may hold something else there."""
        return [one.receipt for one in received if self._out.get(one.receipt) is one]

    def _settle(self, places: Iterable[Place]) -> None:
        for place in places:
            self._out.pop(place, None)

    def _forget(self) -> None:
        self._out.clear()
        self._waiting.clear()
        self._unsure = True


def _by_stream(places: Iterable[Place]) -> Iterator[tuple[str, list[bytes]]]:
    """Group places by stream, in pages that do not burden the server."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for stream, entry in places:
        found[stream].append(entry)
    for stream, entries in found.items():
        for start in range(0, len(entries), PAGE):
            yield stream, entries[start : start + PAGE]


def _received(place: Place, topic: str, fields: Mapping[bytes, bytes]) -> Received:
    stream, entry = place
    body = fields.get(b"data")

    def where() -> str:
        """Place and content: a sender that chooses entry ids may reuse them when the stream is recreated."""
        return f"{stream}:{entry.decode()}:{fingerprint(part for field in fields.items() for part in field)}"

    try:
        headers = {name.decode(): text(value) for name, value in fields.items() if name != b"data"}
        message = incoming(REDIS, headers, body, id=where, topic=topic)
    except Exception as error:  # noqa: BLE001 - whatever it is, only this entry is at fault
        message = undecodable(topic, body, error, id=where(), headers=_raw(fields))
    return Received(message, place)


def _raw(fields: Mapping[bytes, bytes]) -> bytes:
    """All fields except the payload, in wire format."""
    parts = (part for name, value in fields.items() if name != b"data" for part in (name, value))
    return b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def _why(error: Exception) -> str:
    return str(error) or "the server does not answer"
