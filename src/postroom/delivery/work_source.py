"""The work-source port, the loop that polls a source, and the way from a claim to a batch in flight."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from postroom.delivery.sweeps import Sweeps
from postroom.rules.ordering import NO_LANE
from postroom.runtime.backoff import Backoff
from postroom.runtime.waiting import wait_for
from postroom.store.connections.reconnecting import ConnectionReplaced, Outage
from postroom.store.outbox.leases import Rerouted
from postroom.telemetry.events import Phase

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from postroom.delivery.admission import Admission
    from postroom.delivery.circuit import Circuit
    from postroom.delivery.in_flight import InFlight
    from postroom.delivery.pending import PendingSettlements
    from postroom.delivery.queue import Queue
    from postroom.delivery.settler import Settler
    from postroom.delivery.signals import Signals
    from postroom.delivery.targets import Targets
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.leases import Claim, Claimed
    from postroom.store.outbox.queue_store import QueueStore

QUICKEST_POLL = 0.005
HURRY = 0.05
"""Seconds between two looks at what is due, while there is more than one look brings."""
REPLACEMENTS = 5
"""How many times `collect_all` starts over because its connection was replaced."""


class Collected(NamedTuple):
    """What a look for work gave: deliveries that were found, and messages that are now in flight."""

    found: int
    sent: int


class WorkSource(Protocol):
    """Finds work for a queue, and hands it over to be delivered: claims of rows, or reads of lanes."""

    @property
    def kind(self) -> str:
        """Which wake-ups are for it."""
        ...

    @property
    def polls(self) -> bool:
        """Whether it looks for work by itself, or only when it is woken."""
        ...

    async def collect(self, limit: int, *, sweep: bool, due: bool) -> Collected:
        """Claim up to `limit` messages and hand them over. Raises `Outage`: what it claimed is released later.

        `sweep` starts at the beginning instead of behind the last position, `due` also looks at what was scheduled or
        is to be retried.
        """
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class Poller:
    """Looks into a work source: at once when it is woken or has just found some work, else after growing pauses."""

    source: WorkSource
    admission: Admission
    circuit: Circuit
    targets: Targets
    signals: Signals
    poll_interval: float
    stopping: asyncio.Event
    _woken: asyncio.Event = field(init=False)
    _backoff: Backoff = field(init=False)
    _sweeps: Sweeps = field(init=False)
    _due_at: float = field(default=0.0, init=False)
    _freed: int = field(default=0, init=False)
    """How many messages had been freed when last all that was due had come."""

    def __post_init__(self) -> None:
        self._woken = self.signals.subscribe(self.source.kind)
        self._backoff = Backoff(QUICKEST_POLL, self.poll_interval)
        self._sweeps = Sweeps(self.poll_interval)

    async def run(self) -> None:
        """Collect until the engine stops."""
        while not self.stopping.is_set():
            self._woken.clear()
            found = 0
            with suppress(Outage):
                found = await self.collect()
            if found:
                self._backoff.reset()
            else:
                await self._rest()

    async def collect_all(self) -> int:
        """Collect from the beginning, also what is due; returns how many deliveries were found. Raises `Outage`.

        Starts over where the connection was replaced meanwhile, because an operation of another part failed.
        """
        for _ in range(REPLACEMENTS):
            with suppress(ConnectionReplaced):
                return await self.collect(everything=True)
        return await self.collect(everything=True)

    async def collect(self, *, everything: bool = False) -> int:
        """Collect once, as much as there is room for; returns how many deliveries were found. Raises `Outage`.

        `everything` looks from the beginning, and at what is due, whether or not it is time to.
        """
        limit = await self.admission.admit()
        if not limit:
            return 0
        probing = self.circuit.down is not None
        started = time.monotonic()
        sweep = everything or self._sweeps.due()
        due = everything or started >= self._due_at
        try:
            collected = await self.source.collect(limit, sweep=sweep, due=due)
        except Outage:
            self._sweeps.now()
            if probing:
                self.circuit.nothing_to_probe()
            raise
        if probing and not collected.sent:
            self.circuit.nothing_to_probe()
        if sweep:
            self._sweeps.done(time.monotonic() - started)
        if due:
            self._due_at = started + self._due_pause(all_came=collected.found < limit)
        return collected.found

    def _due_pause(self, *, all_came: bool) -> float:
        """Seconds until what is due is looked at again: soon while a topic's messages are being freed."""
        freed = self.targets.freed
        hurry = freed > self._freed and not all_came
        if all_came:
            self._freed = freed
        return min(HURRY, self.poll_interval) if hurry else self.poll_interval

    async def _rest(self) -> None:
        """Wait to be woken, or for a pause that grows while there is nothing to do."""
        if not self.source.polls:
            await self._woken.wait()
            return
        if await wait_for(self._woken, max(self._backoff.next(), self.circuit.pause())):
            self._backoff.reset()
        # While the destination is down, what is committed changes nothing.
        if self.circuit.pause() and not self.stopping.is_set():
            await wait_for(self.stopping, self.circuit.pause())


@dataclass(slots=True, eq=False, kw_only=True)
class Handover:
    """Puts claimed messages in flight and dispatches them, except those that should not be delivered here and now."""

    queue: Queue
    store: QueueStore
    in_flight: InFlight
    admission: Admission
    signals: Signals
    pending: PendingSettlements
    settler: Settler

    async def hand_over(
        self,
        claim: Claim,
        started: float,
        deadline: float,
        connection: Connection,
        dispatch: Callable[[list[Claimed]], None],
        on: int | None = None,
    ) -> Collected:
        """Take the messages of a claim in flight and dispatch them. Raises `Outage`.

        Moves what belongs to another queue, and settles what the same content was sent with before, if the queue is
        deduplicated.
        """
        # A message without a key counts each claim; one of a lane only those that come after a lease that ran out.
        taken_over = sum([one.claims > (one.lane == NO_LANE) for one in claim.messages])
        seconds = time.monotonic() - started
        self.queue.hook(Phase("claim", len(claim.messages), seconds, taken_over, self.queue.name))
        self.settler.report(claim.settled)
        messages, found = claim.messages, claim.found
        if self.queue.queue_of is not None and messages:
            messages = self._without_misplaced(messages, deadline)
        if self.queue.dedup and messages:
            messages, later = await self._deduplicated(messages, connection, on)
            found -= later
        if not messages:
            return Collected(found, 0)
        await self.admission.wait_until_shared()
        if claim.alone:
            async with self.admission.alone():
                self.in_flight.take(messages, deadline)
                dispatch(messages)
        else:
            self.in_flight.take(messages, deadline)
            dispatch(messages)
        return Collected(found, len(messages))

    def _without_misplaced(self, messages: list[Claimed], deadline: float) -> list[Claimed]:
        """What is left to deliver: the patterns have changed since the others were routed into this queue."""
        here, queue_of = self.queue.name, self.queue.queue_of
        misplaced = [
            Rerouted(one, queue) for one in messages if queue_of and (queue := queue_of(one.message.topic)) != here
        ]
        if not misplaced:
            return messages
        gone = {one.claimed.position for one in misplaced}
        self.in_flight.take([one.claimed for one in misplaced], deadline)
        self.pending.add(misplaced)
        return [one for one in messages if one.position not in gone]

    async def _deduplicated(
        self, messages: Sequence[Claimed], connection: Connection, on: int | None
    ) -> tuple[list[Claimed], int]:
        """What is left to deliver, and how many wait for a twin that is in flight."""
        deduplicate = self.store.deduplication.deduplicate(messages, self.in_flight.contents())
        sorted_out = await connection.attempt(deduplicate, on)
        self.settler.report(sorted_out.duplicates)
        for one in sorted_out.later:
            if one.ordered:
                self.in_flight.lanes.read_again(one.lane, one.position)
            else:
                self.signals.rows_behind()
        if sorted_out.lost:
            await self.settler.audit(sorted_out.lost)
        return sorted_out.send, len(sorted_out.later)
