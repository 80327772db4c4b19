"""One attempt: what happens to a batch of claimed deliveries, from the ledger check to the settlements.

not done before → in waves → lease held, key not failed, target available → deliver → decide → settle

It is the same for a broker and for a handler in this process.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, assert_never

from postroom.brokers.port import Accepted, NotSent, Refused, TargetUnavailable, Unreached
from postroom.delivery.destination import AlreadySettled, Decided, InHand, LeaseLost, LongRunning
from postroom.delivery.trials import Trials
from postroom.delivery.verdicts import Call
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Reason, reason_code
from postroom.rules.ordering import waves
from postroom.rules.replay import Verdict
from postroom.runtime.time_limits import TimeLimits
from postroom.store.connections.reconnecting import Outage
from postroom.store.ledger.message_outcomes import entry_of, is_ledgered
from postroom.store.outbox.leases import Claimed, Dead, Duplicate, GivenBack, Postponed, Retry, Sent, Settlement
from postroom.store.outbox.settlements import ledger_conflict
from postroom.telemetry.events import NOT_TRIED, UNREACHED, Phase, Published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.destination import Outcome
    from postroom.delivery.failed_keys import FailedKeys
    from postroom.delivery.in_flight import InFlight
    from postroom.delivery.pending import PendingSettlements
    from postroom.delivery.queue import Queue
    from postroom.delivery.verdicts import Health, Verdicts
    from postroom.store.connections.shared import Connection
    from postroom.store.outbox.queue_store import QueueStore

GRACE = 1.0
"""Seconds beyond its timeout that a destination may take to say what it knows of each delivery."""
LOST = "LEASE_LOST"
SUSPECTED = "a call with this message and others failed: it waits for a call of its own"


class Batch(NamedTuple):
    """Messages that came with one read, in order."""

    read: int
    claimed: Sequence[Claimed]


Batches = asyncio.Queue[Batch]


@dataclass(slots=True, eq=False, kw_only=True)
class Attempt:
    """Attempts batches. Batches of the same lanes must be attempted one after another, so that keys stay in order."""

    queue: Queue
    store: QueueStore
    connection: Connection
    in_flight: InFlight
    failed_keys: FailedKeys
    health: Health
    verdicts: Verdicts
    pending: PendingSettlements
    stopping: asyncio.Event
    _is_long_running: bool = field(init=False)
    _limits: TimeLimits = field(default_factory=TimeLimits, init=False)

    def __post_init__(self) -> None:
        self._is_long_running = isinstance(self.queue.destination, LongRunning)

    async def run(self, batch: Batch, trials: Trials) -> None:
        """Attempt a batch; each delivery is handed over to be settled, or was lost."""
        claimed = await self._not_done_before(batch.claimed)
        for wave in self._in_waves(claimed):
            left = wave
            while left and (ready := self._deliverable(batch.read, left, trials)):
                together = self.health.suspects.first_part(ready)
                with trials.trial(together[0]):
                    left = [*await self._deliver_and_settle(together), *ready[len(together) :]]
                if left:  # a call for each, and none of them may wait for anything
                    await asyncio.sleep(0)
        self.failed_keys.finished(batch.read)

    async def _not_done_before(self, claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """Ask the ledger: leave out what it knows to be done, and what belongs to another request."""
        ledgered = [one for one in claimed if one.message.headers and is_ledgered(one.message)]  # no call for most
        if not ledgered:
            return claimed
        try:
            verdicts = await self.connection.attempt(self.store.settlements.foresee(ledgered))
        except Outage:
            self._give_back(claimed)
            return ()
        settlements: list[Settlement] = []
        entries: set[tuple[str, str]] = set()
        for one, verdict in zip(ledgered, verdicts, strict=True):
            if verdict is Verdict.ALREADY_SUCCEEDED:
                settlements.append(Duplicate(one))
            elif verdict is Verdict.OTHER_DIGEST:
                settlements.append(ledger_conflict(one))
                self._keep_back([one])
            elif (entry := entry_of(one)) in entries:  # the one before it may be about to succeed
                settlements.append(GivenBack(one))
                self._keep_back([one])
            else:
                entries.add(entry)
        self.pending.add(settlements)
        done = {one.claimed.lease for one in settlements}
        return [one for one in claimed if one.lease not in done]

    def _in_waves(self, claimed: Sequence[Claimed]) -> Sequence[Sequence[Claimed]]:
        """Split a batch so that each key occurs once in a wave, unless the destination keeps the order itself."""
        if not claimed:
            return ()
        if self.queue.destination.capabilities.ordered_prefix or not claimed[0].ordered:
            return [claimed]
        if len({one.message.key for one in claimed}) == len(claimed):
            return [claimed]
        return waves(claimed, lambda one: one.message.key)

    def _deliverable(self, read: int, wave: Sequence[Claimed], trials: Trials) -> Sequence[Claimed]:
        """Those whose lease holds, whose key has no failure before them, and whose topic takes messages.

        Suspects whose trials are over wait, and come again one after another.
        """
        held = self.in_flight.held(wave, time.monotonic())
        if len(held) < len(wave):
            holding = {one.lease for one in held}
            self._let_go(self.in_flight.remaining([one for one in wave if one.lease not in holding]))
        trials_are_over = trials.are_over()
        if not self.failed_keys and not self.health.targets and not trials_are_over:
            return held
        ready: list[Claimed] = []
        dropped: list[Claimed] = []
        waiting: list[Claimed] = []
        suspected: list[Claimed] = []
        for one in held:
            if self.failed_keys.must_drop(one.message.key, one.position, read):
                dropped.append(one)
            elif trials_are_over and self.health.suspects.of(one).count:
                suspected.append(one)
                self._keep_back([one])
            elif self.health.targets.admits(one.message.topic):
                ready.append(one)
            else:
                waiting.append(one)
                self._keep_back([one])
        self._give_back(dropped)
        if waiting:
            self.pending.add(self.verdicts.postponed(self.in_flight.remaining(waiting)))
        if suspected:
            still = sorted(self.in_flight.remaining(suspected), key=lambda one: self.health.suspects.of(one).count)
            turns = zip(still, trials.delays(len(still)), strict=True)
            self.pending.add([Postponed(one, delay, Reason.INTERNAL_ERROR, SUSPECTED) for one, delay in turns])
        return ready

    def _let_go(self, unheld: Sequence[Claimed]) -> None:
        """Leases have ended as far as we know. That of a lane may be renewed after all: then it is read again."""
        self._give_back([one for one in unheld if self.in_flight.may_be_renewed(one)])
        self.pending.lose([one for one in unheld if not self.in_flight.may_be_renewed(one)])

    async def _deliver_and_settle(self, batch: Sequence[Claimed]) -> Sequence[Claimed]:
        """Deliver, and settle by the outcomes; returns what had no turn, and may be delivered now."""
        if not self.health.circuit.closed_or_probing() or (self.stopping.is_set() and self._may_last(batch)):
            self._give_back(batch)
            return ()
        started, outages = time.monotonic(), self.health.circuit.outages
        outcomes = await self._deliver(batch)
        seconds = time.monotonic() - started
        answers = [outcome.answer for outcome in outcomes if type(outcome) is Accepted]
        all_accepted = len(answers) == len(batch)
        self._report(batch, seconds, {} if all_accepted else _reasons(outcomes))
        if all_accepted and not self.queue.dedup:
            self.verdicts.all_accepted(batch, started, outages)
            self._settle_accepted(batch, answers)
            return ()
        return self._settle(Call(batch, outcomes, started, outages), seconds)

    def _may_last(self, batch: Sequence[Claimed]) -> bool:
        """Whether what follows may take many times the timeout: suspects take a call for each few of them."""
        return self._is_long_running or self.health.suspects.of(batch[0]).count > 0

    async def _deliver(self, batch: Sequence[Claimed]) -> Sequence[Outcome]:
        """Call the destination, and return an outcome for each delivery whatever happens."""
        if not self.queue.destination.settles_itself:
            return await self._outcomes(batch)
        self.in_flight.lend(batch)
        outcomes: Sequence[Outcome] = ()
        try:
            outcomes = await self._outcomes(batch)
        finally:
            in_hand = {one.lease for one, outcome in zip(batch, outcomes, strict=False) if isinstance(outcome, InHand)}
            self.in_flight.take_back([one for one in batch if one.lease not in in_hand])
        return outcomes

    async def _outcomes(self, batch: Sequence[Claimed]) -> Sequence[Outcome]:
        timeout, classifier = self.queue.timeout, self.queue.classifier
        try:
            with self._limits.limit(timeout + GRACE):
                outcomes = list(await self.queue.destination.deliver(batch, timeout))
        except BrokerUnavailable as error:
            return [Unreached(str(error))] * len(batch)
        except TimeoutError:
            return _all_refused(batch, Reason.TIMEOUT, f"no answer within {timeout:g} s")
        except Exception as error:  # noqa: BLE001 - an adapter's bug must not stop the engine
            return _all_refused(batch, reason_code(error, classifier), str(error) or type(error).__name__)
        if len(outcomes) != len(batch):
            problem = f"{self.queue.destination.name} gave {len(outcomes)} outcomes for {len(batch)} messages"
            return _all_refused(batch, Reason.INTERNAL_ERROR, problem)
        return outcomes

    def land(self, one: Claimed, outcome: Outcome, seconds: float) -> None:
        """Settle a delivery that the destination had in hand. One that is not in flight was lost, or has landed."""
        self.in_flight.take_back([one])
        if type(outcome) is AlreadySettled and self.health.circuit.down is None:  # as nearly always: nothing to decide
            self.in_flight.land([one])
        elif one in self.in_flight:
            self._settle(Call([one], [outcome], time.monotonic() - seconds, self.health.circuit.outages), seconds)

    def _settle_accepted(self, batch: Sequence[Claimed], answers: Sequence[str | None]) -> None:
        """All were accepted, as nearly always: nothing needs to be decided."""
        sent: Sequence[Sent] = [Sent(one, answer) for one, answer in zip(batch, answers, strict=True)]
        remaining = self.in_flight.remaining(batch)
        if remaining is not batch:
            leases = {one.lease for one in remaining}
            sent = [one for one in sent if one.claimed.lease in leases]
        self.pending.add(sent)

    def _settle(self, call: Call, seconds: float) -> Sequence[Claimed]:
        """Settle what was decided, land what the destination settled; returns what had no turn."""
        settlements = self.verdicts.settlements(call)
        left = {one.lease: one for one in self._without_turn(call)}
        for lease in left:
            del settlements[lease]
        remaining = self.in_flight.remaining([one for one, _ in call.fates])
        unsent = [one.claimed for one in settlements.values() if not isinstance(one, Sent)]
        self._keep_back(unsent)
        self.pending.note_seconds(
            [one.claimed for one in settlements.values() if isinstance(one, Retry | Dead)], seconds
        )
        self.pending.add([settlements[one.lease] for one in remaining if one.lease in settlements])
        self._land_settled(call)
        return list(left.values())

    def _land_settled(self, call: Call) -> None:
        """Land what the destination settled itself; a lease that it found lost is a conflict."""
        self.in_flight.land([one for one, outcome in call.fates if isinstance(outcome, AlreadySettled)])
        lost = [one for one, outcome in call.fates if isinstance(outcome, LeaseLost)]
        self._keep_back(lost)
        for one in lost:
            # If it was not the lane that was lost, this one still comes first on its key.
            self.in_flight.lanes.read_again(one.lane, one.position)
        self.pending.lose(self.in_flight.remaining(lost))

    def _without_turn(self, call: Call) -> Sequence[Claimed]:
        """What was not sent although nothing stands before it: each call took its time, and some had no turn.

        Where the destination keeps the order itself, something does stand before it; where none was sent, time was
        not the reason.
        """
        if self.queue.destination.capabilities.ordered_prefix or self.stopping.is_set() or self.health.circuit.down:
            return ()
        if self._is_long_running:  # it takes all that it can at once
            return ()
        left = [one for one, outcome in call.fates if isinstance(outcome, NotSent) and not outcome.delay]
        return left if len(left) < len(call.fates) else ()

    def _give_back(self, claimed: Sequence[Claimed]) -> None:
        self._keep_back(claimed)
        self.pending.give_back(claimed)

    def _keep_back(self, failed: Sequence[Claimed]) -> None:
        """What comes behind these on their keys must wait."""
        for one in failed:
            if one.message.key is not None:
                self.failed_keys.fail(one.message.key, one.position)

    def _report(self, batch: Sequence[Claimed], seconds: float, reasons: dict[int, str]) -> None:
        if self._is_long_running:  # it reports what it does
            return
        self.queue.hook(Phase("send", len(batch), seconds, queue=self.queue.name))
        messages = [one.message for one in batch]
        self.queue.hook(Published(self.queue.destination.name, messages, seconds, reasons))


class Attempts:
    """Attempts batches one after another."""

    def __init__(self, attempt: Attempt, batches: Batches) -> None:
        self._attempt = attempt
        self._batches = batches
        self._trials = Trials(attempt.health.suspects)

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._attempt.run(await self._batches.get(), self._trials)


def _all_refused(batch: Sequence[Claimed], code: str, message: str) -> Sequence[Refused]:
    return [Refused(code, message, whole_call=True)] * len(batch)


def _reasons(outcomes: Sequence[Outcome]) -> dict[int, str]:
    """Why messages of a batch were not delivered, by their index."""
    reasons: dict[int, str] = {}
    for index, outcome in enumerate(outcomes):
        match outcome:
            case Accepted() | AlreadySettled() | InHand() | Decided():
                pass
            case Refused():
                reasons[index] = outcome.code
            case Unreached():
                reasons[index] = UNREACHED
            case TargetUnavailable():
                reasons[index] = Reason.TARGET_UNAVAILABLE
            case NotSent():
                reasons[index] = NOT_TRIED
            case LeaseLost():
                reasons[index] = LOST
            case _:
                assert_never(outcome)
    return reasons
