"""Latency from commit to publish, with a producer in another process and wake-ups."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from postroom.relay import Relay
from postroom.runtime.waiting import wait_for
from postroom.store.outbox.leases import new_token
from postroom.store.sql.names import channel
from postroom.store.sql.operations import DEFAULT_QUEUE

if TYPE_CHECKING:
    from postroom.bench.floors import Floor
    from postroom.bench.scratch import Scratch
    from postroom.message import Message

RATE = 200
MESSAGES = 1000
WARM_UP = 100


class Latency(NamedTuple):
    """Milliseconds from commit to publish."""

    p50: float
    p95: float
    p99: float


Arrived = dict[int, float]
"""When each message was published, by number."""


async def of_relay(place: Scratch, *, cdc: bool = False) -> Latency:
    """Measure the whole relay, woken by LISTEN and NOTIFY if available, or by the write-ahead log."""
    arrived: Arrived = {}

    async def receive(messages: list[Message]) -> None:
        now = time.monotonic()
        for message in messages:
            arrived[int(message.payload or b"0")] = now

    schema, prefix = place.schema, place.prefix
    async with Relay(place.url, receive, schema=schema, table_prefix=prefix, notify=not cdc, brokers={}, cdc=cdc):
        return await _measured(place, arrived, cdc=cdc)


async def of_floor(place: Scratch, floor: Floor) -> Latency:
    """Measure a bare loop that listens, claims and acks."""
    arrived: Arrived = {}
    woken = asyncio.Event()
    listening = await floor.connect()
    await listening.add_listener(channel(place.names, DEFAULT_QUEUE), lambda *_: woken.set())
    connection = await floor.connect()

    async def loop() -> None:
        token, after = 0, 0
        positions: list[int] = []
        while True:
            woken.clear()
            fresh = new_token()
            rows = await floor.step(connection, positions, token, fresh, after)
            now = time.monotonic()
            for row in rows:
                arrived[int(row[1])] = now
            token, positions = fresh, sorted([row[0] for row in rows])
            after = max([after, *positions])
            if not positions:
                await wait_for(woken, 0.5)

    task = asyncio.create_task(loop())
    try:
        return await _measured(place, arrived)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await listening.close()
        await connection.close()


async def _measured(place: Scratch, arrived: Arrived, *, cdc: bool = False) -> Latency:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "postroom.bench.producer",
        json.dumps(
            {
                "url": place.url,
                "schema": place.schema,
                "prefix": place.prefix,
                "rate": RATE,
                "count": MESSAGES,
                "cdc": cdc,
            }
        ),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await program.communicate()
    committed: list[float] = json.loads(out)
    async with asyncio.timeout(60):
        while len(arrived) < MESSAGES:  # noqa: ASYNC110 - see below
            await asyncio.sleep(0.01)  # polling disturbs the measurement less than an event for each message
    waits = sorted((arrived[n] - committed[n]) * 1000 for n in range(WARM_UP, MESSAGES))
    return Latency(*(waits[int(len(waits) * share)] for share in (0.5, 0.95, 0.99)))
