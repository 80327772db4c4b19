"""Drain a backlog with the whole relay, into a function that does nothing or into a broker."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from postroom.brokers.function import stops_at_failure
from postroom.relay import Relay
from postroom.telemetry.events import Lifecycle, StreamChanged

if TYPE_CHECKING:
    from postroom.bench.scratch import Scratch
    from postroom.brokers.port import Broker
    from postroom.message import Message
    from postroom.telemetry.events import Event


async def discard(messages: list[Message]) -> None:
    """A broker that accepts everything at once."""
    del messages


@stops_at_failure
async def discard_in_order(messages: list[Message]) -> None:
    """The same, with all messages of a key at once."""
    del messages


async def open_stream(place: Scratch) -> None:
    """Put the outbox into the stream, with all that was logged before read and confirmed.

    Else the server would read it once more at the next start, and that would count. What one relay has read, the next
    one confirms.
    """
    place.log_snapshot()
    for _ in range(2):
        await Relay(place.url, discard, schema=place.schema, brokers={}, cdc=True).run_until_empty()


async def drain(place: Scratch, messages: int, broker: Broker | None = None, *, cdc: bool = False) -> float:
    """Send exactly this many messages with a default relay. Returns messages per second.

    Measured from the relay's start, when its connections are open, until the last receipt is written. One that reads
    the write-ahead log has started when it has the lease.
    """
    done = asyncio.Event()
    started = ended = 0.0

    def listen(event: Event) -> None:
        nonlocal started, ended
        begins = StreamChanged if cdc else Lifecycle
        if isinstance(event, begins) and event.what in {"started", "leads"}:
            started = time.perf_counter()
        if relay.report.sent >= messages and not done.is_set():
            ended = time.perf_counter()
            done.set()

    relay = Relay(
        *(place.url, broker or discard),
        schema=place.schema,
        table_prefix=place.prefix,
        hook=listen,
        brokers={},
        cdc=cdc,
    )
    running = asyncio.create_task(relay.run())
    finished = asyncio.create_task(done.wait())
    await asyncio.wait({running, finished}, return_when=asyncio.FIRST_COMPLETED)
    relay.stop()
    await running
    finished.cancel()
    if relay.report.sent != messages:
        raise AssertionError(f"{relay.report.sent:,} messages were sent, and not {messages:,}")
    return messages / (ended - started)
