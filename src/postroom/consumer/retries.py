"""Retries: what is parked, delivered to its handler by a relay of its own, on the same leases as everything else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from postroom.brokers.port import ACCEPTED, NotSent, Outcome, Refused, Unreached
from postroom.consumer.attempts import AttemptFailed, Committed, NotCalled
from postroom.consumer.outcomes import Fate
from postroom.consumer.parked import as_received
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import Failure, Reason
from postroom.rules.lifecycle import Outcome as Settlement
from postroom.store.connections.reconnecting import Outage
from postroom.telemetry.events import (
    DATABASE,
    Beat,
    Event,
    Handled,
    Hook,
    Lifecycle,
    Phase,
    Published,
    Reachability,
    Settled,
)

if TYPE_CHECKING:
    from postroom.consumer.attempts import Attempts
    from postroom.message import Message

NO_HANDLER = "NO_HANDLER"


class Retries:
    """What a relay needs in order to bring parked messages to the handlers they were parked for."""

    def __init__(self, consumer: str, attempts: Attempts) -> None:
        self._consumer = consumer
        self._attempts = attempts

    async def deliver(self, message: Message) -> Outcome:
        """Run the handler; the broker of the relay, as it were."""
        received = as_received(message)
        if received.problem is not None:
            return Refused(Reason.UNDECODABLE, received.problem, Failure.PERMANENT)
        handler = self._attempts.handler_for(received)
        if handler is None:
            problem = "there is no handler for its topic and type any more: requeue it when there is"
            return Refused(NO_HANDLER, problem, Failure.PERMANENT)
        try:
            attempted = await self._attempts.make(handler, [received])
        except Outage as outage:
            return Unreached(str(outage))
        match attempted:
            case Committed():
                return ACCEPTED
            case AttemptFailed():
                return Refused(attempted.code, attempted.text)
            case NotCalled():
                return NotSent(
                    handler.timeout, "an earlier call of its handler has not ended: it is tried when that has"
                )
            case never:
                assert_never(never)

    def policy_for(self, message: Message) -> RetryPolicy:
        """How often, and when, this message's handler is tried again."""
        handler = self._attempts.handler_for(as_received(message))
        return RetryPolicy(max_attempts=1) if handler is None else handler.policy

    def listen(self, hook: Hook) -> Hook:
        """A hook for the relay, which tells of messages as a consumer does, and not as a relay."""

        def told(event: Event) -> None:
            match event:
                case Settled(outcome=Settlement.RETRY | Settlement.DEAD as outcome):
                    fate = Fate.DEAD if outcome is Settlement.DEAD else Fate.PARKED
                    received = [as_received(one) for one in event.messages]
                    ids = [one.id for one in event.messages]
                    hook(Handled(self._consumer, fate.value, received, event.code, event.seconds, event.attempts, ids))
                case Settled() | Phase() | Published() | Lifecycle():
                    pass
                case Reachability() if event.what != DATABASE:
                    pass  # the handlers, which are always there
                case Beat():
                    hook(replace(event, broker="", broker_reachable=True))
                case _:
                    hook(event)

        return told
