"""Collectors: claim what is due, and hand it to the couriers."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from postroom.delivery.failed_keys import NO_READ
from postroom.delivery.publisher import Batch, Batches
from postroom.delivery.sweeps import Sweeps
from postroom.rules import ordering
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.leases import Claim, Claimed, Refiled, new_token
from postroom.store.sql.names import ROWS
from postroom.telemetry.events import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from postroom.delivery.queue_state import Office
    from postroom.delivery.settler import Settler
    from postroom.store.connections.reconnecting import ReconnectingConnection
    from postroom.store.sql.steps import Steps

T = TypeVar("T")

QUICKEST_POLL = 0.005
HURRY = 0.05
"""Seconds between two looks at what is due, while there is more than one look brings."""
HELP = "help"
"""What one collector calls for."""


class Collected(NamedTuple):
    """What a look for work gave: deliveries that were done something with, and messages that are on their way."""

    found: int
    sent: int


class Collector(ABC):
    """Looks for work: at once when it is woken or has just found some, else after pauses that grow."""

    kind: ClassVar[str]
    """Which wake-ups are for it."""

    def __init__(self, office: Office, line: ReconnectingConnection, settler: Settler) -> None:
        self._office = office
        self._line = line
        self._settler = settler
        self._sweeps = Sweeps(office.options.poll_interval)
        self._bell = asyncio.Event()
        self._pause = QUICKEST_POLL
        self._due_at = 0.0
        self._freed = 0
        """How many messages had been freed when last all that was due had come."""
        self._connection: int | None = None
        """The only one on which what this collector remembers is true; None where nothing depends on it."""
        office.bells.setdefault(self.kind, []).append(self._bell)

    async def run(self) -> None:
        """Claim until the relay stops."""
        while not self._office.stopping.is_set():
            self._bell.clear()
            found = 0
            with suppress(Outage):
                found = await self.collect()
            if found:
                self._pause = QUICKEST_POLL
            else:
                await self._rest()

    async def collect(self, *, everything: bool = False) -> int:
        """Claim once, as much as there is room for; returns how many deliveries were found.

        `everything` looks from the beginning, and at what is due, whether or not it is time to. Raises `Outage`.
        """
        office = self._office
        limit = await office.admit()
        if not limit:
            return 0
        probing = office.circuit.down is not None
        started = time.monotonic()
        sweep = everything or self._sweeps.due()
        due = everything or started >= self._due_at
        try:
            collected = await self._collect(limit, sweep=sweep, due=due)
        except Outage:
            self._sweeps.now()
            if probing:
                office.circuit.nothing_to_probe()
            raise
        if probing and not collected.sent:
            office.circuit.nothing_to_probe()
        if sweep:
            self._sweeps.done(time.monotonic() - started)
        if due:
            self._due_at = started + self._due_pause(collected.found < limit)
        return collected.found

    def _due_pause(self, all_came: bool) -> float:  # noqa: FBT001 - called once
        """Seconds until what is due is looked at again: soon while much is, because a topic's messages are freed."""
        freed = self._office.freed
        hurry = freed > self._freed and not all_came
        if all_came:
            self._freed = freed
        return min(HURRY, self._office.options.poll_interval) if hurry else self._office.options.poll_interval

    @abstractmethod
    async def _collect(self, limit: int, *, sweep: bool, due: bool) -> Collected:
        """Claim and hand over."""

    async def _ask(self, steps: Steps[T]) -> T:
        return await self._line.attempt(steps, self._connection)

    async def _hand_over(
        self, claim: Claim, started: float, lease: float, dispatch: Callable[[list[Claimed]], None]
    ) -> Collected:
        """Put the messages in flight; settle what was sent before, where that is asked for."""
        office = self._office
        # A message without a key counts each claim; one of a lane only those that come after a lease that ran out.
        taken_over = sum([one.claims > (one.lane == ordering.NO_LANE) for one in claim.messages])
        office.hook(Phase("claim", len(claim.messages), time.monotonic() - started, taken_over))
        self._settler.report(claim.settled)
        messages, found = claim.messages, claim.found
        if office.queue_of is not None and messages:
            messages = self._without_strangers(messages, started + lease)
        if office.options.dedup and messages:
            messages, later = await self._deduplicated(messages)
            found -= later
        if not messages:
            return Collected(found, 0)
        await office.wait_until_shared()
        if not claim.alone:
            office.flight.take_off(messages, started + lease)
            dispatch(messages)
            return Collected(found, len(messages))
        office.unshared.clear()
        try:
            await office.flight.wait_until_empty()
            office.flight.take_off(messages, started + lease)
            dispatch(messages)
            await office.flight.wait_until_empty()
        finally:
            office.unshared.set()
        return Collected(found, len(messages))

    def _without_strangers(self, messages: list[Claimed], deadline: float) -> list[Claimed]:
        """What is left to send: the patterns have changed since the others were sorted into this queue."""
        office = self._office
        here, queue_of = office.deliveries.queue, office.queue_of
        strangers = [
            Refiled(one, queue) for one in messages if queue_of and (queue := queue_of(one.message.topic)) != here
        ]
        if not strangers:
            return messages
        gone = {one.claimed.position for one in strangers}
        office.flight.take_off([one.claimed for one in strangers], deadline)
        office.settle(strangers)
        return [one for one in messages if one.position not in gone]

    async def _deduplicated(self, messages: list[Claimed]) -> tuple[list[Claimed], int]:
        """What is left to send, and how many wait for a twin that is in flight."""
        office = self._office
        in_flight = {(one.message.topic, one.message.digest) for one in office.flight.messages.values()}
        sorted_out = await self._ask(office.deliveries.deduplicate(messages, in_flight))
        self._settler.report(sorted_out.duplicates)
        for one in sorted_out.later:
            office.flight.read_again(one.lane, one.position)
        office.rows_given_back = office.rows_given_back or any(not one.ordered for one in sorted_out.later)
        if sorted_out.lost:
            await self._settler.audit(sorted_out.lost)
        return sorted_out.send, len(sorted_out.later)

    async def _rest(self) -> None:
        """Wait to be woken, or for a moment that grows while there is nothing to do."""
        office = self._office
        pause = max(self._pause, office.circuit.pause())
        self._pause = min(self._pause * 2, office.options.poll_interval)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._bell.wait()
                self._pause = QUICKEST_POLL
        if office.circuit.pause() and not office.stopping.is_set():
            await self._sit_out()

    async def _sit_out(self) -> None:
        """Wait until the broker may be tried again; what is committed meanwhile changes nothing."""
        office = self._office
        with suppress(TimeoutError):
            async with asyncio.timeout(office.circuit.pause()):
                await office.stopping.wait()


class Rows(Collector):
    """Claims messages without a key."""

    kind = ROWS

    def __init__(self, office: Office, line: ReconnectingConnection, settler: Settler, batches: Batches) -> None:
        super().__init__(office, line, settler)
        self._batches = batches
        self._cursor = 0
        self.unknown: list[int] = []
        """Tokens of claims whose answer never came, or whose messages were not handed over."""

    async def _collect(self, limit: int, *, sweep: bool, due: bool) -> Collected:
        office = self._office
        options = office.options
        for token in list(self.unknown):
            await self._line.attempt(office.deliveries.forget(token))
            self.unknown.remove(token)
        sweep = sweep or office.rows_given_back
        probing = office.circuit.down is not None
        office.rows_given_back = probing  # a probe passes by what stands before it
        after = office.probe_from if probing else 0 if sweep else self._cursor
        started = time.monotonic()
        token = new_token()
        self.unknown.append(token)
        claim = await self._line.attempt(
            office.deliveries.claim(
                options.worker,
                limit,
                options.lease,
                token=token,
                after=after,
                due=due and not (probing and after),
                most_bytes=options.most_bytes,
            )
        )
        if probing and not claim.messages:
            office.probe_from = 0
        if claim.messages and not probing:
            self._cursor = max(claim.messages[-1].position, 0 if sweep else self._cursor)
        if claim.found >= limit > 1:
            office.wake(HELP)
        collected = await self._hand_over(
            claim, started, options.lease, lambda some: self._batches.put_nowait(Batch(NO_READ, some))
        )
        self.unknown.remove(token)
        return collected


class HelpingRows(Rows):
    """Claims too while there is more than one can claim: while one makes messages, the database works for the other."""

    kind = HELP

    async def _rest(self) -> None:
        await self._bell.wait()
