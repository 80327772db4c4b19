"""The benchmark suite: what is measured, in which order, and the results."""

from __future__ import annotations

import asyncio
import gc
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, text

from postroom.bench import drains, latency
from postroom.bench.floors import Floor
from postroom.store.connections.urls import resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from postroom.bench.scratch import Scratch

MANY_KEYS = 10_000
SLOW = 10
"""A hot key is sent one message at a time: a tenth of the messages is enough."""
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the results. Rates have no percentiles, latencies no rate; both have a ratio to the floor."""

    name: str
    messages_per_second: float | None = None
    ratio_to_floor: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """Something to measure: a backlog, and a function that drains it and returns messages per second."""

    name: str
    messages: int
    keys: int | None
    drain: Callable[[], Coroutine[object, object, float]]
    streamed: bool = False


class Suite:
    """Measures on one database. `report` is called with each step."""

    def __init__(self, place: Scratch, messages: int, rounds: int, report: Callable[[str], None]) -> None:
        self._place = place
        self._messages = messages
        self._rounds = rounds
        self._report = report

    def run(self, *, large: bool) -> list[Row]:
        """Measure everything."""
        postgresql = self._place.dialect == "postgresql"
        gc.collect()
        gc.freeze()  # as `postroom relay` does
        with asyncio.Runner() as runner:
            streams = self._place.can_stream()
            rates = self._rates(runner, [*self._variants(floors=postgresql), *(self._streamed() if streams else ())])
            if large:
                rates |= self._large(runner)
            full = rates.get("full floor")
            rows = [Row(name, round(rate), round(rate / full, 3) if full else None) for name, rate in rates.items()]
            return rows + self._latencies(runner, floor=postgresql, stream=streams)

    def _variants(self, *, floors: bool) -> list[Variant]:
        n = self._messages
        variants = [
            Variant("relay", n, None, lambda: drains.drain(self._place, n)),
            Variant("relay-ordered, 10,000 keys", n, MANY_KEYS, lambda: drains.drain(self._place, n)),
            Variant("relay-ordered, one hot key", n // SLOW, 1, lambda: drains.drain(self._place, n // SLOW)),
            Variant("relay-ordered, unique keys", n, n, lambda: drains.drain(self._place, n)),
        ]
        if not floors:
            return variants
        return [
            Variant("lean floor", n, None, lambda: self._floor(full=False)),
            Variant("full floor", n, None, lambda: self._floor(full=True)),
            *variants,
        ]

    def _streamed(self) -> list[Variant]:
        """The same from the write-ahead log."""

        async def drain(messages: int) -> float:
            return await drains.drain(self._place, messages, cdc=True)

        n, few = self._messages, self._messages // SLOW
        return [
            Variant("cdc", n, None, lambda: drain(n), streamed=True),
            Variant("cdc-ordered, 10,000 keys", n, MANY_KEYS, lambda: drain(n), streamed=True),
            Variant("cdc-ordered, one hot key", few, 1, lambda: drain(few), streamed=True),
        ]

    def _rates(self, runner: asyncio.Runner, variants: list[Variant]) -> dict[str, float]:
        """Run every variant once per round, so that all meet the same conditions; returns the medians."""
        rates: dict[str, list[float]] = {variant.name: [] for variant in variants}
        for number in range(1, self._rounds + 1):
            for variant in variants:
                self._report(f"round {number} of {self._rounds}: {variant.name}")
                rates[variant.name].append(self._measure(runner, variant))
        return {name: median(measured) for name, measured in rates.items()}

    def _measure(self, runner: asyncio.Runner, variant: Variant) -> float:
        if variant.streamed:
            self._place.fill(0)
            runner.run(drains.open_stream(self._place))
        self._place.fill(variant.messages, variant.keys, streamed=variant.streamed)
        gc.collect()
        rate = runner.run(variant.drain())
        left, receipts = self._place.counts()
        expected = 0 if variant.name == "lean floor" else variant.messages
        if (left, receipts) != (0, expected):
            raise AssertionError(f"{variant.name}: {left:,} messages are left, {receipts:,} have a receipt")
        return rate

    async def _floor(self, *, full: bool) -> float:
        return await Floor(self._place, full=full).drain()

    def _large(self, runner: asyncio.Runner) -> dict[str, float]:
        """A million messages waiting; and the same while another session holds an old snapshot."""

        def variant(name: str) -> Variant:
            return Variant(name, MILLION, None, lambda: drains.drain(self._place, MILLION))

        rates = {}
        plain = variant("relay, a million waiting")
        self._report(plain.name)
        rates[plain.name] = self._measure(runner, plain)
        if self._place.dialect == "postgresql":
            held = variant("relay, a million waiting, a snapshot held")
            self._report(held.name)
            self._place.fill(0)
            with self._old_snapshot():
                rates[held.name] = self._measure(runner, held)
        return rates

    @contextmanager
    def _old_snapshot(self) -> Iterator[None]:
        engine = create_engine(resolve(self._place.url), isolation_level="REPEATABLE READ")
        try:
            with engine.connect() as connection:
                connection.execute(text("SELECT 1"))
                yield
        finally:
            engine.dispose()

    def _latencies(self, runner: asyncio.Runner, *, floor: bool, stream: bool) -> list[Row]:
        rows = []
        base: float | None = None
        if floor:
            self._report("latency of the floor")
            self._place.fill(0)
            found = runner.run(latency.of_floor(self._place, Floor(self._place, full=False)))
            base = found.p50
            rows.append(_waited("latency, floor", found, base))
        self._report("latency of the relay")
        self._place.fill(0)
        rows.append(_waited("latency, relay", runner.run(latency.of_relay(self._place)), base))
        if stream:
            self._report("latency from the write-ahead log")
            self._place.fill(0)
            runner.run(drains.open_stream(self._place))
            rows.append(_waited("latency, cdc", runner.run(latency.of_relay(self._place, cdc=True)), base))
        return rows


def _waited(name: str, found: latency.Latency, base: float | None) -> Row:
    ratio = round(found.p50 / base, 2) if base else None
    return Row(name, None, ratio, *(round(wait, 2) for wait in found))
