"""The relay with each broker, next to that broker's client library in a bare loop of claim and ack.

``python -m benchmarks brokers [--messages N] [--rounds R] [--json] [nats redis rabbitmq kafka]``
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.broker_clients import CLIENTS, TOPIC, Client
from postroom import Message
from postroom.bench.drains import drain
from postroom.bench.floors import Floor
from postroom.bench.scratch import Scratch, scratch
from postroom.brokers.port import Accepted
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from postroom.brokers.port import Broker

TARGETS = {"nats": 2.0, "redis": 1.5, "rabbitmq": 3.2, "kafka": 0.95}
"""The lowest acceptable ratio."""


@dataclass(frozen=True, slots=True)
class Row:
    """One broker's result: medians of the rounds, every message confirmed."""

    name: str
    way: str
    floor_messages_per_second: int
    relay_messages_per_second: int
    ratio_to_floor: float
    target: float


def main(arguments: Sequence[str] = ()) -> None:
    """Measure the named brokers, or all."""
    given = _parser().parse_args(arguments)
    with closing(PostgreSQL()) as server:
        server.start()
        server.create_database("bench")
        with scratch(server.url("bench")) as place:
            rows = [_measured(CLIENTS[name], place, given.messages, given.rounds) for name in given.brokers or CLIENTS]
    if given.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print("\nto each broker, every message confirmed, messages/s")
    for row in rows:
        rates = f"{row.way:<24} {row.floor_messages_per_second:>8,}   relay {row.relay_messages_per_second:>8,}"
        print(f"  {row.name:<10} {rates}   ratio {row.ratio_to_floor:.2f} (target {row.target:g})")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks brokers")
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("brokers", nargs="*", choices=[*CLIENTS, []], metavar="BROKER")
    return parser


def _measured(kind: type[Client], place: Scratch, messages: int, rounds: int) -> Row:
    server = kind.kind()
    with closing(server):
        server.start()
        floor, relay = asyncio.run(_rounds(kind(server), place, messages, rounds))
    return Row(kind.name, kind.way, round(floor), round(relay), round(relay / floor, 2), TARGETS[kind.name])


async def _rounds(client: Client, place: Scratch, messages: int, rounds: int) -> tuple[float, float]:
    """Run both in turn, so that they meet the same conditions; returns the medians."""
    floor, relay = [], []
    async with _opened(client) as broker:
        gc.collect()
        gc.freeze()  # as `postroom relay` does
        for number in range(rounds):
            print(f"{client.name}: round {number + 1} of {rounds}", file=sys.stderr)
            floor.append(await _round(client, place, messages, Floor(place, full=True, send=client.publish).drain))
            relay.append(await _round(client, place, messages, lambda: drain(place, messages, broker)))
    return median(floor), median(relay)


@asynccontextmanager
async def _opened(client: Client) -> AsyncIterator[Broker]:
    """Client and broker, both connected."""
    await client.open()
    broker = client.broker()
    [outcome] = await broker.publish([Message.new(TOPIC, "first")], 10.0)
    if type(outcome) is not Accepted:
        raise AssertionError(f"{client.name}: {outcome}")
    yield broker
    await broker.close()
    await client.close()


async def _round(
    client: Client, place: Scratch, messages: int, run: Callable[[], Coroutine[object, object, float]]
) -> float:
    await client.empty()
    await asyncio.to_thread(place.fill, messages)
    gc.collect()
    rate = await run()
    found = (*place.counts(), await client.arrived())
    if found not in {(0, messages, messages), (0, messages, None)}:
        raise AssertionError(f"{client.name}: left, receipts and arrived are {found}, and not 0 and twice {messages}")
    return rate
