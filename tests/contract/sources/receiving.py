"""Sending and receiving, as the tests of sources do it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from postroom import Message
from postroom.brokers.port import Accepted
from postroom.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from postroom.sources.port import Received, Source
    from tests.contract.sources.source_rigs import SourceRig

PATIENCE = 60.0
BATCH = 100
GLANCE = 0.2


class Counter:
    """A topic of its own, to publish to and to receive from."""

    def __init__(self, source_rig: SourceRig, topic: str, closing: AsyncExitStack) -> None:
        self.source_rig = source_rig
        self.topic = topic
        self._closing = closing

    async def publish(self, numbers: Sequence[int], keys: int = 20) -> list[str]:
        """Publish messages; returns their ids. Those of a key are in the order of their numbers."""
        messages = [Message.new(self.topic, {"n": n}, key=f"k{n % keys}") for n in numbers]
        await self.publish_all(messages)
        return [str(message.id) for message in messages]

    async def publish_all(self, messages: Sequence[Message]) -> None:
        broker = self.source_rig.broker()
        outcomes = await broker.publish(messages, PATIENCE)
        await broker.close()
        assert {type(outcome) for outcome in outcomes} <= {Accepted}, outcomes

    def source(self, **options: str) -> Source:
        """A source of the topic, in the one group that this test has."""
        source = self.source_rig.source(f"c{self.topic}", self.topic, **options)
        self._closing.push_async_callback(source.close)
        return source


async def receive(source: Source, number: int, most: int = BATCH) -> list[Received]:
    """Receive so many, whatever the broker says meanwhile."""
    found: list[Received] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < number:
            found += await patiently(source, min(most, number - len(found)))
    return found


async def patiently(source: Source, most: int, seconds: float = GLANCE) -> Sequence[Received]:
    """Nothing where the broker cannot be reached."""
    try:
        return await source.receive(most, seconds)
    except BrokerUnavailable:
        await asyncio.sleep(0.05)  # as a consumer does, lest it try a thousand times a second
        return []


async def acknowledge(source: Source, received: Sequence[Received]) -> None:
    with suppress(BrokerUnavailable):
        await source.acknowledge(received)


async def consume(source: Source, wanted: set[str], most: int = BATCH) -> list[Received]:
    """Receive and acknowledge until all of these have come."""
    found: list[Received] = []
    missing = set(wanted)
    async with asyncio.timeout(PATIENCE):
        while missing:
            some = await patiently(source, most)
            found += some
            await acknowledge(source, some)
            missing -= set(ids(some))
    return found


async def until_unavailable(source: Source) -> list[Received]:
    """Receive and acknowledge until the source says that the broker is gone; what it had until then counts."""
    found: list[Received] = []
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                some = await source.receive(BATCH, GLANCE)
                await source.acknowledge(some)
            except BrokerUnavailable:
                return found
            found += some


def ids(received: Sequence[Received]) -> list[str]:
    return [one.message.id for one in received]


def numbers(received: Sequence[Received]) -> list[int]:
    return [one.message.json()["n"] for one in received]
