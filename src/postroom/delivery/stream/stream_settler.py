"""The stream's settler: receipts for what was sent, deliveries for what was not, recorded together."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from postroom.delivery.pending import unsent_keys
from postroom.delivery.settler import MOST, Settler
from postroom.rules.failures import cut
from postroom.rules.lifecycle import Stored
from postroom.rules.ordering import NO_LANE, key_hash
from postroom.rules.stream.taking_along import together
from postroom.store.outbox.leases import Dead, Duplicate, Expired, GivenBack, Postponed, Rerouted, Retry, Sent
from postroom.store.outbox.parking import Failed
from postroom.store.outbox.settlements import ANSWER_LENGTH, failure_fields, receipt_fields
from postroom.store.stream.log_messages import UnsentOfLog
from postroom.store.stream.records import NewDelivery, NewReceipts
from postroom.telemetry.events import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.stream.recording import Recording
    from postroom.store.outbox.leases import Settlement

A_LITTLE = 0.005
"""Seconds until the fate of what is being sent is asked for again."""


@dataclass(slots=True, eq=False, kw_only=True)
class StreamSettler(Settler):
    """Writes what was decided about messages of the stream."""

    recording: Recording

    async def flush(self) -> None:
        """Record all that is decided. Raises `TermEnded`."""
        decided = self.pending.take_pending()
        while decided:
            chunk, decided = decided[:MOST], decided[MOST:]
            await self._record(chunk, decided)

    async def _record(self, settlements: Sequence[Settlement], rest: Sequence[Settlement]) -> None:
        started = time.monotonic()
        settlements = self._with_those_behind(settlements, rest)
        if not settlements:
            await asyncio.sleep(A_LITTLE)
            return
        in_table = [one for one in settlements if one.claimed.position > 0]
        receipts, deliveries = self._records_of(in_table)
        of_log = [] if len(in_table) == len(settlements) else self._unsent_of_log(settlements)
        batches = Counter([one.claimed.token for one in settlements])
        await self.recording.write(receipts, deliveries, batches, of_log)
        if self.failed_keys:
            later = {*unsent_keys(rest), *self.pending.unsent_keys()}
            self.failed_keys.settled([key for key in {*unsent_keys(settlements)} if key not in later])
        self.in_flight.land([one.claimed for one in settlements])
        self.queue.hook(Phase("commit", len(settlements), time.monotonic() - started, queue=self.queue.name))
        self.report(settlements)

    def _records_of(self, settlements: Sequence[Settlement]) -> tuple[NewReceipts, list[NewDelivery]]:
        sent = [one for one in settlements if type(one) is Sent]
        positions = [one.claimed.position for one in sent]
        answers = [one.answer and _cut(one.answer) for one in sent]
        outcomes = ["sent"] * len(sent)
        deliveries: list[NewDelivery] = []
        if len(sent) < len(settlements):
            for one in settlements:
                if isinstance(one, Duplicate | Expired):
                    outcome, answer, _ = receipt_fields(one)
                    positions.append(one.claimed.position)
                    outcomes.append(outcome)
                    answers.append(answer and _plain(answer))
                elif type(one) is not Sent:
                    deliveries.append(self._delivery(one))
        return NewReceipts(positions, outcomes, answers), deliveries

    def _unsent_of_log(self, settlements: Sequence[Settlement]) -> list[UnsentOfLog]:
        """Messages without a row that must get one, because they were not sent."""
        unsent: list[UnsentOfLog] = []
        for one in settlements:
            if one.claimed.position < 0 and not isinstance(one, Sent | Duplicate):
                queue, failed = self.queue.name, None
                if isinstance(one, Retry | Dead):
                    delay = one.delay if isinstance(one, Retry) else None
                    failed = Failed(one.code, _plain(one.message), delay)
                elif isinstance(one, Rerouted):
                    queue = one.queue
                unsent.append(UnsentOfLog(queue, replace(one.claimed.message, position=None), failed))
        return unsent

    def _with_those_behind(self, settlements: Sequence[Settlement], rest: Sequence[Settlement]) -> Sequence[Settlement]:
        """What to record now: with all that was read behind what was not sent, and without what is too early."""
        first: dict[str, int] = {}
        for one in [one for one in settlements if type(one) is not Sent]:
            key, position = one.claimed.message.key, one.claimed.position
            if key is not None:
                first[key] = min(position, first.get(key, position))
        if not first:
            return settlements
        decided = {one.claimed.lease for one in (*settlements, *rest)} | self.pending.leases()
        undecided = [one for one in self.in_flight.claims() if one.lease not in decided]
        found = together(first, [(one.message.key, one.position) for one in undecided])
        if found.too_early:
            self.pending.add([one for one in settlements if one.claimed.message.key in found.too_early])
            settlements = [one for one in settlements if one.claimed.message.key not in found.too_early]
        if not found.along:
            return settlements
        behind = {*found.along}
        along = [one for one in undecided if one.position in behind and one.message.key not in found.too_early]
        return [*settlements, *map(GivenBack, along)]

    def _delivery(self, settlement: Settlement) -> NewDelivery:
        one = settlement.claimed
        queue, state, delay, attempts, code, message = self.queue.name, int(Stored.READY), 0.0, 0, "", ""
        claims = one.claims - 1  # this one was not ended by anything that it did
        match settlement:
            case Retry() | Postponed() | Dead():
                state, delay, attempts, code, message = failure_fields(settlement)
            case Rerouted():
                queue = settlement.queue
            case _:
                pass
        hashed = None if one.lane == NO_LANE else key_hash(one.message.key or "")
        return NewDelivery(
            one.position, queue, state, one.lane, hashed, one.size, delay, attempts, claims, code, _plain(message)
        )


def _cut(answer: str) -> str:
    return _plain(cut(answer, ANSWER_LENGTH))


def _plain(text: str) -> str:
    """A text without what PostgreSQL cannot store."""
    return text.replace("\0", " ") if "\0" in text else text
