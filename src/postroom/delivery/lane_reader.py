"""Lane readers: read the lanes that the relay holds, in order, and hand what is in them to the couriers."""

from __future__ import annotations

import time
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from postroom.delivery.claimer import Collected, Collector
from postroom.delivery.horizon import Horizon, Reached
from postroom.delivery.publisher import Batch, Batches
from postroom.rules import ordering
from postroom.store.outbox.leases import Claim, Claimed
from postroom.store.sql.names import LANES

if TYPE_CHECKING:
    from postroom.delivery.in_flight import HeldLane
    from postroom.delivery.queue_state import Office
    from postroom.delivery.settler import Settler
    from postroom.store.connections.reconnecting import ReconnectingConnection

NOTED_EVERY = 1.0
ASKED_EVERY = 0.02
CANDIDATES = 8
"""Messages of each lane of which one tries a broker that is down: not always the same one."""


class Lanes(Collector):
    """Reads lanes that are held, for messages with a key. Each share of the lanes has its own courier.

    There are several readers, each with its own part of them, for the same reason as there are `HelpingRows`.
    """

    READERS = 2
    kind = LANES

    def __init__(
        self, office: Office, line: ReconnectingConnection, settler: Settler, batches: list[Batches], reader: int
    ) -> None:
        super().__init__(office, line, settler)
        self._reader = reader
        self._batches = batches
        self._busy = ordering.LANES // self.READERS
        self._note_at = 0.0
        self._horizon = Horizon()
        self._ask_at = 0.0

    async def _collect(self, limit: int, *, sweep: bool, due: bool) -> Collected:
        office = self._office
        await self._trust_connection()
        mine = {number: one for number, one in office.flight.lanes.items() if number % self.READERS == self._reader}
        held = {number: one for number, one in mine.items() if not one.leaving}
        if not held:
            return Collected(0, 0)
        lanes = [one.lane for one in held.values()]
        if due:
            for number, position in (await self._ask(office.deliveries.promote(lanes))).items():
                office.flight.read_again(number, position)
        for one in held.values():
            one.begin_read()
            if sweep:
                one.cursor = 0
        read = office.failed_keys.next_read()
        try:
            return await self._read(read, held, limit)
        finally:
            office.failed_keys.carried(read)

    async def _trust_connection(self) -> None:
        """On a new connection all is forgotten: a failover or a restore moves positions and transactions back."""
        office = self._office
        connection = await office.continuity.on(self._line)
        if connection != self._connection:
            self._connection = connection
            self._horizon, self._ask_at = Horizon(), 0.0
            mine = [one for number, one in office.flight.lanes.items() if number % self.READERS == self._reader]
            office.flight.forget_reads(mine)

    async def _read(self, read: int, held: dict[int, HeldLane], limit: int) -> Collected:
        office = self._office
        safe = await self._safe(held)
        started = time.monotonic()
        each = max(CANDIDATES if limit == 1 else 1, limit // self._busy)
        # The heart renews the lanes. A read does it now and then, because it also notes how far it has come.
        renew = started >= self._note_at
        claim = await self._ask(
            office.deliveries.read_lanes(
                [one.lane for one in held.values()],
                each,
                office.options.lane_lease,
                after={number: one.cursor for number, one in held.items()},
                in_flight=office.flight.behind_cursors(),
                most_bytes=office.options.most_bytes,
                renew=renew,
            )
        )
        if renew:
            self._note_at = started + NOTED_EVERY
        for number in claim.freed:
            office.flight.read_again(number, 1)
        self._move_cursors(held, claim, safe)
        if claim.freed:
            await self._ask(office.deliveries.look_back([held[number].lane for number in claim.freed]))
        claim = self._still_held(held, claim)
        if limit == 1 and len(claim.messages) > 1:
            claim = self._only_one(claim)

        def dispatch(messages: list[Claimed]) -> None:
            self._dispatch(read, messages)

        collected = await self._hand_over(claim, started, office.options.lane_lease if renew else 0.0, dispatch)
        return collected._replace(found=collected.found + len(claim.freed))

    async def _safe(self, held: dict[int, HeldLane]) -> Reached:
        """From where on the next read may start. Not asked before every read: to start earlier is never wrong."""
        if time.monotonic() < self._ask_at:
            return []
        ages = await self._ask(self._office.deliveries.ages())
        self._ask_at = time.monotonic() + ASKED_EVERY
        return self._horizon.safe(ages, held.values())

    def _move_cursors(self, held: dict[int, HeldLane], claim: Claim, safe: Reached) -> None:
        furthest: dict[int, int] = {}
        for message in claim.messages:  # in the order of their positions
            furthest[message.lane] = message.position
        safe_of = {one.lane.number: position for one, position in safe if held.get(one.lane.number) is one}
        for number, one in held.items():
            # A read that was cut short may not have come to all that is safe.
            reached = safe_of.get(number, 0)
            if claim.cut_short:
                reached = min(reached, furthest.get(number, 0))
            one.end_read(furthest.get(number), reached)
            if one.lane.interrupted:
                one.lane = msgspec.structs.replace(one.lane, interrupted=False)
        for message in claim.kept_back:
            self._office.flight.read_again(message.lane, message.position)
        self._busy = max(1, len(furthest))

    def _still_held(self, held: dict[int, HeldLane], claim: Claim) -> Claim:
        """Without what is in lanes that were given up or lost while they were read: others send it.

        To lose one is a conflict, to give one up is none.
        """
        lanes = self._office.flight.lanes
        gone = {number for number, one in held.items() if lanes.get(number) is not one}
        if not gone:
            return claim
        self._office.drop([one for one in claim.messages if one.lane in gone and not held[one.lane].leaving])
        kept = [one for one in claim.messages if one.lane not in gone]
        return Claim(kept, claim.settled, claim.found, alone=claim.alone, freed=claim.freed)

    def _only_one(self, claim: Claim) -> Claim:
        """The broker is tried with one message, the first of its key; the others are read again."""
        firsts = {one.message.key: one for one in reversed(claim.messages)}
        in_order = sorted(firsts.values(), key=attrgetter("position"))
        chosen = next((one for one in in_order if one.position > self._office.probe_from), in_order[0])
        for one in claim.messages:
            if one is not chosen:
                self._office.flight.read_again(one.lane, one.position)
        return Claim([chosen], claim.settled, claim.found, alone=claim.alone, freed=claim.freed)

    def _dispatch(self, read: int, messages: list[Claimed]) -> None:
        shares: list[list[Claimed]] = [[] for _ in self._batches]
        count = len(shares)
        for message in messages:
            shares[message.lane % count].append(message)
        for share, batches in zip(shares, self._batches, strict=True):
            if share:
                self._office.failed_keys.handed_over(read)
                batches.put_nowait(Batch(read, share))
