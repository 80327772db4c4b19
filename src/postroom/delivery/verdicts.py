"""The judge: what becomes of each message of a call, and what the call says of the broker and of topics."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, assert_never

from postroom.brokers.port import Accepted, NotSent, Outcome, Refused, TargetUnavailable, Unreached
from postroom.rules import failures, faults
from postroom.rules.backoff import no_sooner
from postroom.rules.failures import Reason
from postroom.rules.faults import Fault
from postroom.rules.lifecycle import Transition
from postroom.store.outbox.deliveries import content_hash
from postroom.store.outbox.leases import Claimed, Dead, GivenBack, Postponed, Retry, Sent, Settlement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.queue_state import Office

SHORTLY = 1.0
"""Seconds until a message comes again whose topic took others of the same call."""


class Call:
    """A call of the broker that has ended."""

    def __init__(self, batch: Sequence[Claimed], outcomes: Sequence[Outcome], started: float, outages: int) -> None:
        self.fates = list(zip(batch, outcomes, strict=True))
        self.started = started
        self.outages = outages
        """How often the broker had gone away when the call began."""
        self.taken = {one.message.topic for one, outcome in self.fates if type(outcome) is Accepted}
        self.alone = sum(not isinstance(outcome, NotSent) for outcome in outcomes) == 1
        self.answered = any(isinstance(outcome, Accepted | Refused | TargetUnavailable) for outcome in outcomes)


class Judge:
    """Decides by the rules, with what the office remembers."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def all_taken(self, batch: Sequence[Claimed], started: float, outages: int) -> None:
        """The broker took all of a batch, as nearly always."""
        office = self._office
        if outages == office.circuit.outages:
            office.circuit.worked()
        if office.suspects or office.targets:
            self._learn(started, {one.message.topic for one in batch})
            office.suspects.clear(batch)

    def settlements(self, call: Call) -> list[Settlement]:
        """What becomes of each message of a call, in order."""
        office = self._office
        if call.answered:
            self._learn(call.started, call.taken)
        faults = [self._fault(call, one, outcome) for one, outcome in call.fates]
        self._tell_circuit(call, faults)
        settlements = [self._settlement(*fate, fault) for fate, fault in zip(call.fates, faults, strict=True)]
        done = [one for (one, outcome) in call.fates if isinstance(outcome, Accepted | Refused)]
        if office.suspects:
            office.suspects.clear(done)
        return self._spread(settlements, tried=True)

    def postponed(self, claimed: Sequence[Claimed]) -> list[Settlement]:
        """What becomes of messages whose topic is known to take none."""
        reasons = {topic: target.reason for topic, target in self._office.targets.down.items()}
        return self._spread([_postponed(one, reasons.get(one.message.topic, "")) for one in claimed], tried=False)

    def _learn(self, started: float, topics: set[str]) -> None:
        office = self._office
        if office.suspects:
            office.suspects.worked(started, topics)
        if office.targets:
            office.targets.worked(topics)

    def _fault(self, call: Call, one: Claimed, outcome: Outcome) -> Fault | None:
        strike = self._office.suspects.of(one)
        match outcome:
            case Unreached():
                return faults.of_unreached(
                    alone=call.alone,
                    beside=call.answered,
                    broker_worked=strike.broker_worked and self._office.circuit.down is None,
                    target_worked=strike.target_worked,
                )
            case TargetUnavailable():
                return faults.of_unavailable(
                    by_message=outcome.by_message,
                    beside=one.message.topic in call.taken,
                    target_worked=strike.target_worked,
                )
            case _:
                return None

    def _tell_circuit(self, call: Call, faults: Sequence[Fault | None]) -> None:
        """The broker is down when nothing gets through."""
        office = self._office
        if call.outages < office.circuit.outages:
            return
        if Fault.BROKER in faults:
            first, outcome = call.fates[faults.index(Fault.BROKER)]
            office.probe_from = first.position
            office.circuit.failed(outcome.reason if isinstance(outcome, Unreached) else "")
        elif call.answered:
            office.circuit.worked()
        else:
            office.circuit.nothing_to_probe()

    def _settlement(self, one: Claimed, outcome: Outcome, fault: Fault | None) -> Settlement:
        match outcome:
            case Accepted():
                return Sent(one, outcome.answer, content_hash(one) if self._office.options.dedup else None)
            case Refused():
                self._office.targets.nothing_to_probe(one.message.topic)
                return self._failed(one, outcome)
            case NotSent():
                self._office.targets.nothing_to_probe(one.message.topic)
                if outcome.delay:
                    return Postponed(one, outcome.delay, Reason.TIMEOUT, outcome.reason)
                return GivenBack(one)
            case Unreached():
                return self._unreached(one, outcome, fault)
            case TargetUnavailable():
                return self._unavailable(one, outcome, fault)
            case _:
                assert_never(outcome)

    def _unreached(self, one: Claimed, outcome: Unreached, fault: Fault | None) -> Settlement:
        office = self._office
        office.suspects.strike([one])
        if fault is Fault.TARGET:
            office.targets.failed(one.message.topic, outcome.reason)
            return _postponed(one, outcome.reason)
        office.targets.nothing_to_probe(one.message.topic)
        if fault is Fault.MESSAGE:
            return self._failed(one, Refused(Reason.NOT_TAKEN, outcome.reason))
        return GivenBack(one)

    def _unavailable(self, one: Claimed, outcome: TargetUnavailable, fault: Fault | None) -> Settlement:
        office = self._office
        if outcome.by_message:
            office.suspects.strike([one])
        match fault:
            case Fault.MESSAGE:
                return self._failed(one, Refused(Reason.NOT_TAKEN, outcome.reason))
            case Fault.TARGET:
                office.targets.failed(one.message.topic, outcome.reason)
                return _postponed(one, outcome.reason)
            case _:
                return Postponed(one, SHORTLY, Reason.TARGET_UNAVAILABLE, outcome.reason)

    def _spread(self, settlements: Sequence[Settlement], *, tried: bool) -> list[Settlement]:
        """Say when those come again whose topics take no messages."""
        waiting: dict[str, int] = {}
        for one in settlements:
            if isinstance(one, Postponed) and not one.delay:
                waiting[one.claimed.message.topic] = waiting.get(one.claimed.message.topic, 0) + 1
        if not waiting:
            return list(settlements)
        delays = {
            topic: iter(self._office.targets.delays(topic, count, tried=tried)) for topic, count in waiting.items()
        }
        return [
            Postponed(one.claimed, next(delays[one.claimed.message.topic]), one.code, one.message)
            if isinstance(one, Postponed) and not one.delay
            else one
            for one in settlements
        ]

    def _failed(self, one: Claimed, refused: Refused) -> Retry | Dead:
        options = self._office.options
        failure = refused.failure or failures.classify(refused.code, options.classifier)
        match failures.after_failure(one.attempts + 1, options.policy_for(one.message), failure, random.random()):  # noqa: S311 - jitter
            case failures.RetryAfter(delay):
                return Retry(one, no_sooner(delay, refused.retry_after), refused.code, refused.message)
            case failures.GiveUp(failures.DeadReason.EXHAUSTED):
                return Dead(one, refused.code, refused.message, transition=Transition.EXHAUST)
            case failures.GiveUp():
                return Dead(one, refused.code, refused.message)


def _postponed(one: Claimed, reason: str) -> Postponed:
    """To come again when its topic is next tried, or much later."""
    return Postponed(one, 0.0, Reason.TARGET_UNAVAILABLE, reason)
