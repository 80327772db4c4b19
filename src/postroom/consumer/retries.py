"""Retries: what is parked, delivered to its handler by a relay of its own, on the same leases as everything else."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from postroom.brokers.port import ACCEPTED, NotSent, Outcome, Refused, Unreached
from postroom.consumer.outcomes import Fate
from postroom.consumer.parked import as_received
from postroom.consumer.running import StillRunning, said
from postroom.rules import failures
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
    Raised,
    Reachability,
    Settled,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.consumer.handlers import Handler
    from postroom.consumer.running import Runner
    from postroom.incoming import Incoming
    from postroom.message import Message
    from postroom.rules.failures import Classifier

NO_HANDLER = "NO_HANDLER"


class Retries:
    """What a relay needs in order to bring parked messages to the handlers they were parked for."""

    def __init__(
        self,
        consumer: str,
        handlers: Sequence[Handler],
        runner: Runner,
        classifier: Classifier,
        hook: Hook,
    ) -> None:
        self._consumer = consumer
        self._handlers = handlers
        self._runner = runner
        self._classifier = classifier
        self._hook = hook

    async def deliver(self, message: Message) -> Outcome:
        """Run the handler; the broker of the relay, as it were."""
        received = as_received(message)
        if received.problem is not None:
            return Refused(Reason.UNDECODABLE, received.problem, Failure.PERMANENT)
        handler = self._handler_for(received)
        if handler is None:
            problem = "there is no handler for its topic and type any more: requeue it when there is"
            return Refused(NO_HANDLER, problem, Failure.PERMANENT)
        started = time.monotonic()
        try:
            [is_first] = await self._runner.run(handler, [received])
        except Outage as outage:
            return Unreached(str(outage))
        except StillRunning:
            return NotSent(handler.timeout, "an earlier call of its handler has not ended: it is tried when that has")
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is a failed attempt
            self._hook(Raised(handler.name, [received], error, self._consumer))
            return Refused(failures.reason_code(error, self._classifier), said(error, handler))
        fate = Fate.HANDLED if is_first else Fate.DUPLICATE
        self._hook(Handled(self._consumer, fate.value, [received], seconds=time.monotonic() - started))
        return ACCEPTED

    def policy_for(self, message: Message) -> RetryPolicy:
        """How often, and when, this message's handler is tried again."""
        handler = self._handler_for(as_received(message))
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

    def _handler_for(self, message: Incoming) -> Handler | None:
        return next((handler for handler in self._handlers if handler.fits(message)), None)
