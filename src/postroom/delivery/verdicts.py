"""Verdicts: what becomes of each delivery of a call, and what the call says about the destination and its topics."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from postroom.brokers.port import Accepted, NotSent, Refused, TargetUnavailable, Unreached
from postroom.delivery.destination import AlreadySettled, Decided, InHand, LeaseLost
from postroom.rules import failures, faults
from postroom.rules.backoff import no_sooner
from postroom.rules.failures import Reason
from postroom.rules.faults import Fault
from postroom.rules.lifecycle import Transition
from postroom.store.outbox.deduplication import content_hash
from postroom.store.outbox.leases import Claimed, Dead, GivenBack, Postponed, Retry, Sent, Settlement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.circuit import Circuit
    from postroom.delivery.destination import Outcome
    from postroom.delivery.queue import Queue
    from postroom.delivery.suspects import Suspects
    from postroom.delivery.targets import Targets
    from postroom.store.outbox.leases import Lease

SHORTLY = 1.0
"""Seconds until a message is retried whose topic took others of the same call."""


class Call:
    """A call of the destination that has ended."""

    def __init__(self, batch: Sequence[Claimed], outcomes: Sequence[Outcome], started: float, outages: int) -> None:
        self.fates = list(zip(batch, outcomes, strict=True))
        self.started = started
        self.outages = outages
        """How often the destination had gone away when the call began."""
        self.taken = {
            one.message.topic for one, outcome in self.fates if isinstance(outcome, Accepted | AlreadySettled)
        }
        self.alone = sum(not isinstance(outcome, NotSent) for outcome in outcomes) == 1
        self.answered = any(not isinstance(outcome, NotSent | Unreached | InHand) for outcome in outcomes)
        self.is_in_hand = any(isinstance(outcome, InHand) for outcome in outcomes)


@dataclass(frozen=True, slots=True)
class Health:
    """What is known about a destination: is it down, which topics take nothing, which messages break it."""

    circuit: Circuit
    targets: Targets
    suspects: Suspects


class Verdicts:
    """Decides by the rules and by what is known about the destination, which it keeps up to date."""

    def __init__(self, queue: Queue, health: Health) -> None:
        self._queue = queue
        self._circuit = health.circuit
        self._targets = health.targets
        self._suspects = health.suspects

    def all_accepted(self, batch: Sequence[Claimed], started: float, outages: int) -> None:
        """Note that the destination accepted a whole batch, as it nearly always does."""
        if outages == self._circuit.outages:
            self._circuit.worked()
        if self._suspects or self._targets:
            self._learn(started, {one.message.topic for one in batch})
            self._suspects.clear(batch)

    def settlements(self, call: Call) -> dict[Lease, Settlement]:
        """What becomes of the deliveries of a call, in order. Leaves out what the destination settled, lost or has."""
        if call.answered:
            self._learn(call.started, call.taken)
        at_fault = [self._fault(call, one, outcome) for one, outcome in call.fates]
        self._update_circuit(call, at_fault)
        decided = [self._settlement(*fate, fault) for fate, fault in zip(call.fates, at_fault, strict=True)]
        if self._suspects:
            fates = zip(call.fates, decided, strict=True)
            self._suspects.clear([one for (one, outcome), then in fates if _is_cleared(outcome, then)])
        settlements = self._spread([one for one in decided if one is not None], tried=True)
        return {one.claimed.lease: one for one in settlements}

    def postponed(self, claimed: Sequence[Claimed]) -> list[Settlement]:
        """What becomes of messages whose topic is known to take none."""
        reasons = {topic: target.reason for topic, target in self._targets.down.items()}
        return self._spread([_postponed(one, reasons.get(one.message.topic, "")) for one in claimed], tried=False)

    def _learn(self, started: float, topics: set[str]) -> None:
        if self._suspects:
            self._suspects.worked(started, topics)
        if self._targets:
            self._targets.worked(topics)

    def _fault(self, call: Call, one: Claimed, outcome: Outcome) -> Fault | None:
        strike = self._suspects.of(one)
        match outcome:
            case Unreached():
                return faults.of_unreached(
                    alone=call.alone,
                    beside=call.answered,
                    broker_worked=strike.broker_worked and self._circuit.down is None,
                    target_worked=strike.target_worked,
                )
            case TargetUnavailable():
                return faults.of_unavailable(
                    by_message=outcome.by_message,
                    beside=one.message.topic in call.taken,
                    target_worked=strike.target_worked,
                )
            case Refused(whole_call=True, retry_after=None):
                return faults.of_whole_call(alone=call.alone)
            case _:
                return None

    def _update_circuit(self, call: Call, at_fault: Sequence[Fault | None]) -> None:
        """The destination is down when nothing gets through."""
        if call.outages < self._circuit.outages:
            return
        if Fault.BROKER in at_fault:
            first, outcome = call.fates[at_fault.index(Fault.BROKER)]
            self._circuit.failed(outcome.reason if isinstance(outcome, Unreached) else "", first.position)
        elif call.answered:
            self._circuit.worked()
        elif not call.is_in_hand:  # else its fate is known when it lands
            self._circuit.nothing_to_probe()

    def _settlement(  # noqa: PLR0911 - one for each outcome
        self, one: Claimed, outcome: Outcome, fault: Fault | None
    ) -> Settlement | None:
        match outcome:
            case Accepted():
                return Sent(one, outcome.answer, content_hash(one) if self._queue.dedup else None)
            case Refused():
                self._targets.nothing_to_probe(one.message.topic)
                return self._refused(one, outcome, fault)
            case NotSent():
                self._targets.nothing_to_probe(one.message.topic)
                if outcome.delay:
                    return Postponed(one, outcome.delay, Reason.TIMEOUT, outcome.reason)
                return GivenBack(one)
            case Unreached():
                return self._unreached(one, outcome, fault)
            case TargetUnavailable():
                return self._unavailable(one, outcome, fault)
            case Decided():
                if outcome.settlement.claimed.lease != one.lease:
                    problem = f"{self._queue.destination.name} decided about another delivery than it was given"
                    return self._failed(one, Refused(Reason.INTERNAL_ERROR, problem))
                return outcome.settlement
            case AlreadySettled() | LeaseLost() | InHand():
                return None
            case _:
                assert_never(outcome)

    def _refused(self, one: Claimed, outcome: Refused, fault: Fault | None) -> Settlement:
        if fault is not None:  # if it is at fault, it takes no others with it when it is retried
            self._suspects.strike([one], answered=True)
        return GivenBack(one) if fault is Fault.UNDECIDED else self._failed(one, outcome)

    def _unreached(self, one: Claimed, outcome: Unreached, fault: Fault | None) -> Settlement:
        self._suspects.strike([one])
        if fault is Fault.TARGET:
            self._targets.failed(one.message.topic, outcome.reason)
            return _postponed(one, outcome.reason)
        self._targets.nothing_to_probe(one.message.topic)
        if fault is Fault.MESSAGE:
            return self._failed(one, Refused(Reason.NOT_TAKEN, outcome.reason))
        return GivenBack(one)

    def _unavailable(self, one: Claimed, outcome: TargetUnavailable, fault: Fault | None) -> Settlement:
        if outcome.by_message:
            self._suspects.strike([one])
        match fault:
            case Fault.MESSAGE:
                return self._failed(one, Refused(Reason.NOT_TAKEN, outcome.reason))
            case Fault.TARGET:
                self._targets.failed(one.message.topic, outcome.reason)
                return _postponed(one, outcome.reason)
            case _:
                return Postponed(one, SHORTLY, Reason.TARGET_UNAVAILABLE, outcome.reason)

    def _spread(self, settlements: Sequence[Settlement], *, tried: bool) -> list[Settlement]:
        """Say when those are retried whose topics take no messages."""
        waiting: dict[str, int] = {}
        for one in settlements:
            if isinstance(one, Postponed) and not one.delay:
                waiting[one.claimed.message.topic] = waiting.get(one.claimed.message.topic, 0) + 1
        if not waiting:
            return list(settlements)
        delays = {topic: iter(self._targets.delays(topic, count, tried=tried)) for topic, count in waiting.items()}
        return [
            Postponed(one.claimed, next(delays[one.claimed.message.topic]), one.code, one.message)
            if isinstance(one, Postponed) and not one.delay
            else one
            for one in settlements
        ]

    def _failed(self, one: Claimed, refused: Refused) -> Retry | Dead:
        failure = refused.failure or failures.classify(refused.code, self._queue.classifier)
        policy = self._queue.policy_for(one.message)
        match failures.after_failure(one.attempts + 1, policy, failure, random.random()):  # noqa: S311 - jitter
            case failures.RetryAfter(delay):
                return Retry(one, no_sooner(delay, refused.retry_after), refused.code, refused.message)
            case failures.GiveUp(failures.DeadReason.EXHAUSTED):
                return Dead(one, refused.code, refused.message, transition=Transition.EXHAUST)
            case failures.GiveUp():
                return Dead(one, refused.code, refused.message)


def _is_cleared(outcome: Outcome, then: Settlement | None) -> bool:
    """Whether the message takes no other with it any more: it got through, was refused by itself, or is dead."""
    match outcome:
        case NotSent() | Unreached() | TargetUnavailable() | InHand() | Refused(whole_call=True):
            return isinstance(then, Dead)
        case _:
            return True


def _postponed(one: Claimed, reason: str) -> Postponed:
    """To be retried when its topic is next probed, or much later."""
    return Postponed(one, 0.0, Reason.TARGET_UNAVAILABLE, reason)
