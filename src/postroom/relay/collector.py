"""The collector: claims what is due, and hands it to the couriers."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from postroom.relay.database import Outage
from postroom.store.leases import Claim, Claimed, new_token
from postroom.telemetry import Phase

if TYPE_CHECKING:
    from postroom.relay.database import Line
    from postroom.relay.office import Office
    from postroom.relay.settler import Settler

Batches = asyncio.Queue[tuple[int, list[Claimed]]]

QUICKEST_POLL = 0.005
SWEEP_SHARE = 20
"""A sweep may take one part in so many of the time: it walks over what a long transaction keeps from being vacuumed."""


class Sweeps:
    """When to look for work from the beginning instead of behind the last position.

    Positions are given when a message is added and seen when it commits, so a lower one may appear later.
    """

    def __init__(self, shortest: float) -> None:
        self._shortest = shortest
        self._next = 0.0

    def due(self) -> bool:
        """Whether it is time."""
        return time.monotonic() >= self._next

    def done(self, seconds: float) -> None:
        """A sweep took so many seconds."""
        self._next = time.monotonic() + max(self._shortest, SWEEP_SHARE * seconds)

    def now(self) -> None:
        """Sweep as soon as possible: something may have been missed."""
        self._next = 0.0


class Collector:
    """Claims messages without a key, and reads the lanes that are held."""

    def __init__(
        self, office: Office, line: Line, settler: Settler, unordered: Batches, ordered: list[Batches]
    ) -> None:
        self._office = office
        self._line = line
        self._settler = settler
        self._unordered = unordered
        self._ordered = ordered
        self._sweeps = Sweeps(office.options.poll_interval)
        self._cursor = 0
        self._due_at = 0.0
        self._unknown: list[int] = []
        self._pause = QUICKEST_POLL

    async def run(self) -> None:
        """Claim until the relay stops."""
        office = self._office
        while not office.stopping.is_set():
            found = 0
            office.wake.clear()
            with suppress(Outage):
                found = await self.collect()
            if found:
                self._pause = QUICKEST_POLL
            else:
                await self._rest()

    async def collect(self, *, everything: bool = False) -> int:
        """Claim once, as much as there is room for; returns how many deliveries were found.

        `everything` looks from the beginning, and at what is due, whether or not it is time to.
        """
        office = self._office
        if office.circuit.is_open and (office.circuit.pause() or office.flight.messages):
            return 0
        await office.flight.wait_for_room(office.options.batch)
        limit = office.circuit.limit(min(office.options.batch, office.flight.room or 1))
        sweep = everything or self._sweeps.due()
        due = everything or time.monotonic() >= self._due_at
        started = time.monotonic()
        try:
            await self._resolve_unknown()
            found = await self._claim(limit, sweep=sweep, due=due)
            found += await self._read(limit, sweep=sweep, due=due)
        except Outage:
            self._sweeps.now()
            raise
        if sweep:
            self._sweeps.done(time.monotonic() - started)
        if due:
            self._due_at = started + office.options.poll_interval
        return found

    async def _claim(self, limit: int, *, sweep: bool, due: bool) -> int:
        office = self._office
        started = time.monotonic()
        token = new_token()
        self._unknown.append(token)
        claim = await self._line.attempt(
            office.deliveries.claim(
                office.options.worker,
                limit,
                office.options.lease,
                token=token,
                after=0 if sweep else self._cursor,
                due=due,
                most_bytes=office.options.most_bytes,
            )
        )
        self._unknown.remove(token)
        messages = await self._accept(claim, started, office.options.lease)
        if messages:
            self._cursor = max(messages[-1].position, 0 if sweep else self._cursor)
            self._unordered.put_nowait((0, messages))
        return claim.found

    async def _read(self, limit: int, *, sweep: bool, due: bool) -> int:
        office = self._office
        held = [lane for lane in office.flight.lanes.values() if not lane.leaving]
        if not held:
            return 0
        lanes = [one.lane for one in held]
        if due:
            for number, position in (await self._line.attempt(office.deliveries.promote(lanes))).items():
                office.flight.read_again(number, position)
        started = time.monotonic()
        read = office.failed_keys.next_read()
        if sweep:
            for one in held:
                one.cursor = 0
        in_flight = [position for one in held for position in one.in_flight if position > one.cursor]
        claim = await self._line.attempt(
            office.deliveries.read_lanes(
                lanes,
                max(1, limit // len(lanes)),
                office.options.lane_lease,
                after={one.lane.number: one.cursor for one in held},
                in_flight=in_flight,
                most_bytes=office.options.most_bytes,
            )
        )
        for one in held:
            one.lane = msgspec.structs.replace(one.lane, interrupted=False)
        messages = await self._accept(claim, started, office.options.lane_lease)
        cursors = {one.lane.number: one for one in held}
        for message in messages:
            one = cursors[message.lane]
            one.cursor = max(one.cursor, message.position)
        self._dispatch(read, messages)
        return claim.found

    def _dispatch(self, read: int, messages: list[Claimed]) -> None:
        """One courier for each share of the lanes, so that a lane's messages stay in order."""
        shares: list[list[Claimed]] = [[] for _ in self._ordered]
        for message in messages:
            shares[message.lane % len(shares)].append(message)
        for share, queue in zip(shares, self._ordered, strict=True):
            if share:
                queue.put_nowait((read, share))

    async def _accept(self, claim: Claim, started: float, lease: float) -> list[Claimed]:
        """Put the messages in flight; settle what was sent before, where that is asked for."""
        office = self._office
        office.hook(Phase("claim", len(claim.messages), time.monotonic() - started))
        self._settler.report(claim.settled)
        messages = claim.messages
        if office.options.dedup and messages:
            messages, duplicates = await self._line.attempt(office.deliveries.deduplicate(messages))
            self._settler.report(duplicates)
        office.flight.take_off(messages, started + lease)
        return messages

    async def _resolve_unknown(self) -> None:
        """Free what a claim may have leased whose answer never came."""
        for token in list(self._unknown):
            await self._line.attempt(self._office.deliveries.forget(token))
            self._unknown.remove(token)

    async def _rest(self) -> None:
        """Wait to be woken, or for a moment that grows while there is nothing to do."""
        office = self._office
        pause = max(self._pause, office.circuit.pause())
        self._pause = min(self._pause * 2, office.options.poll_interval)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await office.wake.wait()
