"""Couriers: publish batches, and decide what becomes of each message."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple, assert_never

from postroom.brokers.port import Accepted, NotSent, Outcome, Refused, TargetUnavailable, Unreached
from postroom.delivery.verdicts import Call
from postroom.errors import BrokerUnavailable
from postroom.rules import failures
from postroom.rules.ordering import waves
from postroom.rules.replay import Verdict
from postroom.store.connections.reconnecting import Outage
from postroom.store.ledger.ledgered import entry_of, is_ledgered
from postroom.store.outbox.leases import Claimed, Dead, Duplicate, GivenBack, Retry, Sent, Settlement
from postroom.store.outbox.settling import ledger_conflict
from postroom.telemetry.events import NOT_TRIED, UNREACHED, Phase, Published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.queue_state import Office

GRACE = 1.0
"""Seconds beyond its timeout that a broker may take to say what it knows of each message."""


class Batch(NamedTuple):
    """Messages that came with one read, in order."""

    read: int
    claimed: Sequence[Claimed]


Batches = asyncio.Queue[Batch]


class Courier:
    """Carries batches one after another, so that the order within its lanes is kept."""

    def __init__(self, office: Office, batches: Batches) -> None:
        self._office = office
        self._batches = batches

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self.carry(await self._batches.get())

    async def carry(self, batch: Batch) -> None:
        """Send a batch, in waves where the broker cannot keep the order itself."""
        claimed = batch.claimed
        if any([is_ledgered(one.message) for one in claimed]):  # noqa: C419 - quicker
            claimed = await self._unconfirmed(claimed)
        for wave in self._waves(claimed) if claimed else ():
            left = wave
            while left and (sendable := self._sendable(batch.read, left)):
                now = self._office.suspects.first_part(sendable)
                left = [*await self._send(now), *sendable[len(now) :]]
        self._office.failed_keys.carried(batch.read)

    async def _unconfirmed(self, claimed: Sequence[Claimed]) -> Sequence[Claimed]:
        """Without what the ledger knows to be done, and without what belongs to another request: that is not sent."""
        office = self._office
        ledgered = [one for one in claimed if is_ledgered(one.message)]
        try:
            verdicts = await office.questions.attempt(office.deliveries.foresee(ledgered))
        except Outage:
            self._keep_back(claimed)
            office.give_back(claimed)
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
        office.settle(settlements)
        done = {one.claimed.lease for one in settlements}
        return [one for one in claimed if one.lease not in done]

    def _waves(self, claimed: Sequence[Claimed]) -> Sequence[Sequence[Claimed]]:
        if self._office.broker.capabilities.ordered_prefix or not claimed[0].ordered:
            return [claimed]
        if len({one.message.key for one in claimed}) == len(claimed):
            return [claimed]
        return waves(claimed, lambda one: one.message.key)

    def _sendable(self, read: int, wave: Sequence[Claimed]) -> Sequence[Claimed]:
        """Those whose lease holds, and, of a key with a failure, none."""
        office = self._office
        held = office.flight.held(wave, time.monotonic())
        if len(held) < len(wave):
            holding = {one.lease for one in held}
            self._let_go(office.flight.flying([one for one in wave if one.lease not in holding]))
        if not office.failed_keys and not office.targets:
            return held
        return self._wanted(read, held)

    def _wanted(self, read: int, held: Sequence[Claimed]) -> Sequence[Claimed]:
        """Without what stands behind a failure on its key, and what belongs to topics that take no messages."""
        office = self._office
        sendable: list[Claimed] = []
        dropped: list[Claimed] = []
        waiting: list[Claimed] = []
        for one in held:
            if office.failed_keys.must_drop(one.message.key, one.position, read):
                dropped.append(one)
            elif office.targets.admits(one.message.topic):
                sendable.append(one)
            else:
                waiting.append(one)
                self._keep_back([one])
        self._keep_back(dropped)
        office.give_back(dropped)
        if waiting:
            office.settle(office.judge.postponed(office.flight.flying(waiting)))
        return sendable

    def _let_go(self, unheld: Sequence[Claimed]) -> None:
        """Leases have ended as far as we know. That of a lane may be renewed after all: then it is read again."""
        office = self._office
        ours = [one for one in unheld if office.flight.has_lane_of(one)]
        self._keep_back(ours)
        office.give_back(ours)
        office.drop([one for one in unheld if not office.flight.has_lane_of(one)])

    async def _send(self, batch: Sequence[Claimed]) -> Sequence[Claimed]:
        """Send a wave; returns what the broker did not get round to, and may be sent now."""
        office = self._office
        if not office.circuit.closed_or_probing():
            self._keep_back(batch)
            office.give_back(batch)
            return ()
        started, outages = time.monotonic(), office.circuit.outages
        outcomes = await self._outcomes(batch)
        seconds = time.monotonic() - started
        office.hook(Phase("send", len(batch), seconds))
        answers = [outcome.answer for outcome in outcomes if type(outcome) is Accepted]
        failed_for = {} if len(answers) == len(batch) else _reasons(outcomes)
        office.hook(Published(office.broker.name, [one.message for one in batch], seconds, failed_for))
        if not office.options.dedup and len(answers) == len(batch):
            office.judge.all_taken(batch, started, outages)
            self._settle_sent(batch, answers)
            return ()
        settlements = {
            one.claimed.lease: one for one in office.judge.settlements(Call(batch, outcomes, started, outages))
        }
        left = self._left(list(zip(batch, outcomes, strict=True)))
        if left:
            leaving = {one.lease for one in left}
            batch = [one for one in batch if one.lease not in leaving]
        failed = [one for one in batch if not isinstance(settlements[one.lease], Sent)]
        self._keep_back(failed)
        counted = [one.position for one in failed if isinstance(settlements[one.lease], Retry | Dead)]
        office.seconds.update(dict.fromkeys(counted, seconds))
        office.settle([settlements[one.lease] for one in office.flight.flying(batch)])
        return left

    def _settle_sent(self, batch: Sequence[Claimed], answers: Sequence[str | None]) -> None:
        """All were accepted, as nearly always: no decision is to be made."""
        sent: Sequence[Sent] = [Sent(one, answer) for one, answer in zip(batch, answers, strict=True)]
        flying = self._office.flight.flying(batch)
        if flying is not batch:
            leases = {one.lease for one in flying}
            sent = [one for one in sent if one.claimed.lease in leases]
        self._office.settle(sent)

    def _left(self, fates: Sequence[tuple[Claimed, Outcome]]) -> Sequence[Claimed]:
        """What was not sent though nothing stands before it, because each took its time and some had no turn.

        Where the broker keeps the order itself, something does stand before it; where none was sent, it is not time
        that is short.
        """
        office = self._office
        if office.broker.capabilities.ordered_prefix or office.stopping.is_set() or office.circuit.down is not None:
            return ()
        left = [one for one, outcome in fates if isinstance(outcome, NotSent) and not outcome.delay]
        return left if len(left) < len(fates) else ()

    def _keep_back(self, failed: Sequence[Claimed]) -> None:
        """What comes behind these on their keys must wait."""
        for one in failed:
            if one.message.key is not None:
                self._office.failed_keys.fail(one.message.key, one.position)

    async def _outcomes(self, batch: Sequence[Claimed]) -> Sequence[Outcome]:
        """Publish, and give an outcome for each message whatever happens."""
        outcomes = await self._published(batch)
        if len(outcomes) != len(batch):
            problem = f"the broker gave {len(outcomes)} outcomes for {len(batch)} messages"
            outcomes = [Refused(failures.Reason.INTERNAL_ERROR, problem)] * len(batch)
        return outcomes

    async def _published(self, batch: Sequence[Claimed]) -> list[Outcome]:
        office = self._office
        timeout = office.options.broker_timeout
        try:
            async with asyncio.timeout(timeout + GRACE):
                return list(await office.broker.publish([one.message for one in batch], timeout))
        except BrokerUnavailable as error:
            return [Unreached(str(error))] * len(batch)
        except TimeoutError:
            return [Refused(failures.Reason.TIMEOUT, f"no answer within {timeout:g} s")] * len(batch)
        except Exception as error:  # noqa: BLE001 - an adapter's bug must not stop the relay
            code = failures.reason_code(error, office.options.classifier)
            return [Refused(code, str(error) or type(error).__name__)] * len(batch)


def _reasons(outcomes: Sequence[Outcome]) -> dict[int, str]:
    """Why messages of a batch did not go, by their index."""
    reasons: dict[int, str] = {}
    for index, outcome in enumerate(outcomes):
        match outcome:
            case Accepted():
                pass
            case Refused():
                reasons[index] = outcome.code
            case Unreached():
                reasons[index] = UNREACHED
            case TargetUnavailable():
                reasons[index] = failures.Reason.TARGET_UNAVAILABLE
            case NotSent():
                reasons[index] = NOT_TRIED
            case _:
                assert_never(outcome)
    return reasons
