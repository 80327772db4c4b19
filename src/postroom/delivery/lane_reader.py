"""Lane reads: read the lanes that this worker holds, in order, and hand what is in them over in batches."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from postroom.delivery.attempt import Batch
from postroom.delivery.held_lanes import NOWHERE, HeldLane
from postroom.delivery.horizon import NOTHING_SAFE, Horizon, Safe
from postroom.delivery.work_source import Collected
from postroom.rules import ordering
from postroom.store.outbox.leases import Claim, Claimed, Cursors
from postroom.store.sql.names import WAKE_LANES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.attempt import Batches
    from postroom.delivery.circuit import Circuit
    from postroom.delivery.continuity import Continuity
    from postroom.delivery.failed_keys import FailedKeys
    from postroom.delivery.in_flight import InFlight
    from postroom.delivery.pending import PendingSettlements
    from postroom.delivery.queue import EngineOptions, Queue
    from postroom.delivery.work_source import Handover
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.queue_store import QueueStore
    from postroom.store.sql.steps import Steps

T = TypeVar("T")

NOTED_EVERY = 1.0
ASKED_EVERY = 0.02
CANDIDATES = 8
"""Messages of each lane to choose a probe from, while the destination is down: not always the same one."""


@dataclass(slots=True, eq=False, kw_only=True)
class LaneReader:
    """Reads held lanes, for messages with a key. Each share of the lanes has its own batches.

    There are several readers, each with its own part of the lanes, for the same reason as there are two `RowClaimer`s.
    """

    READERS = 2
    kind = WAKE_LANES
    polls = True

    queue: Queue
    options: EngineOptions
    store: QueueStore
    connection: Connection
    continuity: Continuity
    in_flight: InFlight
    failed_keys: FailedKeys
    circuit: Circuit
    pending: PendingSettlements
    handover: Handover
    batches: Sequence[Batches]
    reader: int
    _busy: int = field(default=ordering.LANES // READERS, init=False)
    _note_at: float = field(default=0.0, init=False)
    _horizon: Horizon = field(default_factory=Horizon, init=False)
    _ask_at: float = field(default=0.0, init=False)
    _trusted: int | None = field(default=None, init=False)
    """The connection on which what this reader remembers is true."""

    async def collect(self, limit: int, *, sweep: bool, due: bool) -> Collected:
        """Read the lanes of this reader and hand over what is in them. Raises `Outage`."""
        await self._trust_connection()
        mine = self.in_flight.lanes.share(self.reader, self.READERS)
        held = {number: one for number, one in mine.items() if not one.leaving}
        if not held:
            return Collected(0, 0)
        if due:
            lanes = [one.lane for one in held.values()]
            promoted = await self._ask(self.store.lanes.promote(lanes, wait=self._waits))
            for number, position in promoted.items():
                self.in_flight.lanes.read_again(number, position)
        for one in held.values():
            one.begin_read()
            if sweep:
                one.start_over()
        read = self.failed_keys.next_read()
        try:
            return await self._read(read, held, limit)
        finally:
            self.failed_keys.finished(read)

    @property
    def _waits(self) -> bool:
        """Whether it waits for lanes that are locked: not for those in which a destination settles and may hang."""
        return not self.queue.destination.settles_itself

    async def _ask(self, steps: Steps[T]) -> T:
        return await self.connection.attempt(steps, self._trusted)

    async def _trust_connection(self) -> None:
        """On a new connection, forget everything: a failover or a restore moves positions and transactions back."""
        connection = await self.continuity.on(self.connection)
        if connection != self._trusted:
            self._trusted = connection
            self._horizon, self._ask_at = Horizon(), 0.0
            for one in self.in_flight.lanes.share(self.reader, self.READERS).values():
                in_flight = [claimed.position for claimed in self.in_flight.of_lane(one.lane)]
                one.start_over(max(in_flight, default=0))

    async def _read(self, read: int, held: dict[int, HeldLane], limit: int) -> Collected:
        safe = await self._safe(held)
        started = time.monotonic()
        each = max(CANDIDATES if limit == 1 else 1, limit // self._busy)
        # The heartbeat renews the lanes. A read does it now and then, because it also notes how far it has come.
        renew = started >= self._note_at
        claim = await self._ask(
            self.store.lanes.read(
                [one.lane for one in held.values()],
                each,
                self.options.lane_lease,
                after=self._cursors(held),
                in_flight=self.in_flight.behind_cursors(held.values()),
                most_bytes=self.queue.most_bytes,
                renew=renew,
                wait=self._waits,
            )
        )
        for number in claim.freed:
            self.in_flight.lanes.read_again(number, 1)
        self._move_cursors(held, claim, safe)
        if claim.freed:
            await self._ask(self.store.lanes.look_back([held[number].lane for number in claim.freed]))
        claim = self._still_held(held, claim)
        if renew:
            self._note_at = started + NOTED_EVERY
        if renew and self._waits:  # otherwise some may not be renewed: the heartbeat finds out
            renewed = {(one.lane, one.token) for one in claim.messages}
            self.in_flight.lanes.extend(renewed, started + self.options.lane_lease)
        if limit == 1 and len(claim.messages) > 1:
            claim = self._only_one(claim)

        def dispatch(messages: list[Claimed]) -> None:
            self._dispatch(read, messages)

        collected = await self.handover.hand_over(claim, started, started, self.connection, dispatch, self._trusted)
        return collected._replace(found=collected.found + len(claim.freed))

    async def _safe(self, held: dict[int, HeldLane]) -> Safe:
        """From where on the next read may start. Not asked before every read: to start earlier is never wrong."""
        if time.monotonic() < self._ask_at:
            return NOTHING_SAFE
        ages = await self._ask(self.store.lanes.ages())
        self._ask_at = time.monotonic() + ASKED_EVERY
        set_aside = self._horizon.set_aside
        safe = self._horizon.safe(ages, held.values())
        if not set_aside <= self._horizon.set_aside:
            for one in self.in_flight.lanes.share(self.reader, self.READERS).values():
                one.fall_back()
        return safe

    def _cursors(self, held: dict[int, HeldLane]) -> Cursors:
        return Cursors(
            {number: one.cursor for number, one in held.items()},
            {number: one.ahead for number, one in held.items()},
            self._horizon.set_aside,
        )

    def _move_cursors(self, held: dict[int, HeldLane], claim: Claim, safe: Safe) -> None:
        furthest: dict[int, int] = {}
        for message in claim.messages:  # in the order of their positions
            furthest[message.lane] = message.position
        always, meanwhile = dict(safe.always), dict(safe.meanwhile)
        for number, one in held.items():
            # A read that was cut short may not have reached all that is safe.
            most = furthest.get(number, 0) if claim.cut_short else NOWHERE
            one.end_read(furthest.get(number), min(always.get(one, 0), most), min(meanwhile.get(one, 0), most))
            if one.lane.interrupted:
                one.lane = msgspec.structs.replace(one.lane, interrupted=False)
        for message in claim.kept_back:
            self.in_flight.lanes.read_again(message.lane, message.position)
        self._busy = max(1, len(furthest))

    def _still_held(self, held: dict[int, HeldLane], claim: Claim) -> Claim:
        """Leave out lanes that were released or lost while they were read: others send what is in them.

        To lose one is a conflict, to release one is none.
        """
        gone = {number for number, one in held.items() if not self.in_flight.lanes.still_held(one)}
        if not gone:
            return claim
        self.pending.lose([one for one in claim.messages if one.lane in gone and not held[one.lane].leaving])
        kept = [one for one in claim.messages if one.lane not in gone]
        return Claim(kept, claim.settled, claim.found, alone=claim.alone, freed=claim.freed)

    def _only_one(self, claim: Claim) -> Claim:
        """Probe the destination with one message, the first of its key; the others are read again."""
        firsts = {one.message.key: one for one in reversed(claim.messages)}
        in_order = sorted(firsts.values(), key=attrgetter("position"))
        chosen = next((one for one in in_order if one.position > self.circuit.probed), in_order[0])
        for one in claim.messages:
            if one is not chosen:
                self.in_flight.lanes.read_again(one.lane, one.position)
        return Claim([chosen], claim.settled, claim.found, alone=claim.alone, freed=claim.freed)

    def _dispatch(self, read: int, messages: list[Claimed]) -> None:
        shares: list[list[Claimed]] = [[] for _ in self.batches]
        count = len(shares)
        for message in messages:
            shares[message.lane % count].append(message)
        for share, batches in zip(shares, self.batches, strict=True):
            if share:
                self.failed_keys.handed_over(read)
                batches.put_nowait(Batch(read, share))
