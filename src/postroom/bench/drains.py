"""Draining a backlog with the whole relay, to a function that does nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from postroom.relay import Relay

if TYPE_CHECKING:
    from postroom.bench.scratch import Scratch
    from postroom.message import Message
    from postroom.telemetry import Event


async def nowhere(messages: list[Message]) -> None:
    """A broker that takes everything, at once."""
    del messages


async def drain(place: Scratch, messages: int) -> float:
    """Send exactly so many messages with a relay as it comes; returns how many a second, from start to last receipt."""
    done = asyncio.Event()
    ended = 0.0

    def listen(_event: Event) -> None:
        nonlocal ended
        if relay.report.sent >= messages and not done.is_set():
            ended = time.perf_counter()
            done.set()

    relay = Relay(place.url, nowhere, schema=place.schema, table_prefix=place.prefix, hook=listen)
    started = time.perf_counter()
    running = asyncio.create_task(relay.run())
    finished = asyncio.create_task(done.wait())
    await asyncio.wait({running, finished}, return_when=asyncio.FIRST_COMPLETED)
    relay.stop()
    await running
    finished.cancel()
    if relay.report.sent != messages:
        raise AssertionError(f"{relay.report.sent:,} messages were sent, and not {messages:,}")
    return messages / (ended - started)
