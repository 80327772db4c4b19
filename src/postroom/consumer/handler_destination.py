"""Handlers as a destination: parked messages are retried by the engine, and settled in the handler's transaction."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from postroom.brokers.port import ACCEPTED, NOT_SENT, Capabilities, NotSent, Refused, Unreached
from postroom.consumer.handler_attempts import AttemptFailed, Committed, NotCalled
from postroom.consumer.outcomes import Fate
from postroom.consumer.parked import as_received
from postroom.consumer.settlement import DeliverySettlement, LeaseNotHeld, NotSettledHere
from postroom.delivery.destination import ALREADY_SETTLED, LEASE_LOST, Decided
from postroom.rules.backoff import RetryPolicy
from postroom.rules.failures import Failure, Reason
from postroom.rules.lifecycle import OutcomeCode
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.leases import Postponed
from postroom.telemetry.events import DATABASE, Beat, Handled, Phase, Published, Reachability, Settled

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from postroom.consumer.handler_attempts import HandlerAttempts
    from postroom.consumer.handlers import Handler
    from postroom.delivery.destination import Outcome
    from postroom.incoming import Incoming
    from postroom.message import Message
    from postroom.store.outbox.leases import Claimed
    from postroom.store.outbox.parking import Parking
    from postroom.store.outbox.settlements import SettlementWriter
    from postroom.telemetry.events import Event, Hook

HANDLERS = "handlers"
"""The destination's name, and what is reported as unreachable when no thread is free for handlers."""
NO_HANDLER = "NO_HANDLER"
BEGINNING = 0.5
"""Seconds in which calls may begin, of those that come together. Each has the whole timeout."""


class HandlerDestination:
    """Calls the handlers of parked messages, `concurrency` at a time.

    A message whose turn does not come soon is not attempted. If a handler's transaction cannot carry the settlement, it
    is rolled back, and the next one goes without: then the engine settles, and the inbox mark keeps the effect single.
    """

    name = HANDLERS
    capabilities = Capabilities()
    settles_itself = True

    def __init__(
        self, attempts: HandlerAttempts, settlements: SettlementWriter, parking: Parking, concurrency: int
    ) -> None:
        self._attempts = attempts
        self._settlements = settlements
        self._parking = parking
        self._concurrency = concurrency
        self._turns = asyncio.Semaphore(concurrency)
        self._settles_in_transactions = True
        self._left_to_engine: set[int] = set()
        """Positions of messages whose last transaction could not settle them: the engine does it the next time."""

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ARG002, ASYNC109 - the port's; handlers have timeouts of their own
        """Call the handler of each message."""
        outcomes: list[Outcome] = [NOT_SENT] * len(claimed)
        begin_before = asyncio.get_running_loop().time() + BEGINNING
        waiting = iter(enumerate(claimed))
        async with asyncio.TaskGroup() as group:
            for _ in range(min(len(claimed), self._concurrency)):
                group.create_task(self._deliver_in_turn(waiting, outcomes, begin_before))
        return outcomes

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def policy_for(self, message: Message) -> RetryPolicy:
        """How the message's handler is retried."""
        handler = self._attempts.handler_for(as_received(message))
        return RetryPolicy(max_attempts=1) if handler is None else handler.policy

    async def _deliver_in_turn(
        self, waiting: Iterator[tuple[int, Claimed]], outcomes: list[Outcome], begin_before: float
    ) -> None:
        for index, one in waiting:
            if asyncio.get_running_loop().time() >= begin_before:
                return
            try:
                async with asyncio.timeout_at(begin_before):
                    await self._turns.acquire()
            except TimeoutError:
                return
            try:
                outcomes[index] = await self._deliver(one)
            finally:
                self._turns.release()

    async def _deliver(self, one: Claimed) -> Outcome:
        received = as_received(one.message)
        if received.problem is not None:
            return Refused(Reason.UNDECODABLE, received.problem, Failure.PERMANENT)
        handler = self._attempts.handler_for(received)
        if handler is None:
            problem = "there is no handler for its topic and type any more: requeue it when there is"
            return Refused(NO_HANDLER, problem, Failure.PERMANENT)
        return await self._attempt(one, handler, received)

    async def _attempt(  # noqa: PLR0911 - one for each way it can end
        self, one: Claimed, handler: Handler, received: Incoming
    ) -> Outcome:
        settlement = None
        if self._settles_in_transactions and one.position not in self._left_to_engine:
            settlement = DeliverySettlement(one, self._settlements, self._parking)
        self._left_to_engine.discard(one.position)
        try:
            attempted = await self._attempts.make(handler, [received], settlement)
        except Outage as outage:
            return Unreached(str(outage))
        except LeaseNotHeld:
            return LEASE_LOST
        except NotSettledHere as refused:
            if refused.only_this_time:
                self._left_to_engine.add(one.position)
            else:
                self._settles_in_transactions = False
            return NOT_SENT
        match attempted:
            case Committed():
                return ACCEPTED if settlement is None else ALREADY_SETTLED
            case AttemptFailed(Reason.REGISTRY_UNAVAILABLE, text):
                return Decided(Postponed(one, self._attempts.registry_delay(), Reason.REGISTRY_UNAVAILABLE, text))
            case AttemptFailed():
                return Refused(attempted.code, attempted.text)
            case NotCalled():
                reason = "an earlier call of its handler has not ended: it is tried when that has"
                return NotSent(handler.timeout, reason)
            case never:
                assert_never(never)


def consumer_events(consumer: str, hook: Hook) -> Hook:
    """A hook for the queue of parked messages, which reports in a consumer's words what the engine did with them."""

    def report(event: Event) -> None:
        match event:
            case Settled(outcome=OutcomeCode.RETRY | OutcomeCode.DEAD as outcome):
                fate = Fate.DEAD if outcome is OutcomeCode.DEAD else Fate.PARKED
                received = [as_received(one) for one in event.messages]
                ids = [one.id for one in event.messages]
                hook(Handled(consumer, fate.value, received, event.code, event.seconds, event.attempts, ids))
            case Settled() | Phase() | Published():
                pass
            case Reachability() if event.what != DATABASE:
                pass  # handlers are always there
            case Beat():
                hook(replace(event, broker="", broker_reachable=True))
            case _:
                hook(event)

    return report
