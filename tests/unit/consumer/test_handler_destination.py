"""Parked messages brought to their handlers: what the engine is told of each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import msgspec.structs
from msgspec.structs import replace

from postroom import RetryPolicy
from postroom.brokers.port import ACCEPTED, NOT_SENT, NotSent, Refused, Unreached
from postroom.consumer import handler_destination
from postroom.consumer.handler_attempts import Attempted, AttemptFailed, Committed, HandlerAttempts, NotCalled
from postroom.consumer.handler_destination import HandlerDestination, consumer_events
from postroom.consumer.handlers import Handler, handler_for, handler_of
from postroom.consumer.parked import as_parked
from postroom.consumer.settlement import LeaseNotHeld, NotSettledHere
from postroom.delivery.destination import ALREADY_SETTLED, LEASE_LOST
from postroom.incoming import Incoming
from postroom.rules.failures import Failure
from postroom.rules.lifecycle import OutcomeCode
from postroom.rules.ordering import NO_LANE
from postroom.store.connections.reconnecting import Outage
from postroom.store.outbox.leases import Claimed
from postroom.telemetry.events import DATABASE, Beat, Event, Handled, LeasesLost, Phase, Reachability, Settled

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from postroom.consumer.settlement import DeliverySettlement
    from postroom.delivery.destination import Outcome

POLICY = RetryPolicy(max_attempts=7)
COMMITTED = Committed([True])


def bill(connection: object, message: Incoming) -> None: ...


HANDLERS = [handler_of(bill, "orders", None, POLICY, 12)]


class Scripted:
    """Attempts that end as they are told to, one after another."""

    def __init__(self, *results: Attempted | Exception) -> None:
        self.results = deque(results)
        self.settled_with: list[DeliverySettlement | None] = []
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    def handler_for(self, message: Incoming) -> Handler | None:
        return handler_for(message, HANDLERS)

    async def make(self, _: Handler, __: Sequence[Incoming], settlement: DeliverySettlement | None = None) -> Attempted:
        self.settled_with.append(settlement)
        self.has_begun.set()
        await self.may_end.wait()
        result = self.results.popleft() if self.results else COMMITTED
        if isinstance(result, Exception):
            raise result
        return result


def claimed(position: int = 1, topic: str = "orders", problem: str | None = None) -> Claimed:
    message = Incoming(id=str(position), topic=topic, payload=b"{}", content_type="text/plain", problem=problem)
    return Claimed(position, NO_LANE, 7, 0, 1, as_parked("billing", message))


def destination(attempts: Scripted, concurrency: int = 4) -> HandlerDestination:
    stores: Any = None  # nothing is settled here
    return HandlerDestination(cast("HandlerAttempts", attempts), stores, stores, concurrency)


async def delivered(attempts: Scripted, one: Claimed | None = None) -> Outcome:
    [outcome] = await destination(attempts).deliver([one or claimed()], 30)
    return outcome


async def test_what_committed_is_settled() -> None:
    assert await delivered(Scripted(COMMITTED)) == ALREADY_SETTLED
    assert await delivered(Scripted(Committed([False]))) == ALREADY_SETTLED


async def test_what_did_not_commit_is_for_the_engine_to_settle() -> None:
    assert await delivered(Scripted(AttemptFailed("BROKEN", "ValueError: x"))) == Refused("BROKEN", "ValueError: x")
    assert await delivered(Scripted(Outage("away"))) == Unreached("away")
    assert await delivered(Scripted(LeaseNotHeld())) == LEASE_LOST
    later = await delivered(Scripted(NotCalled()))
    assert isinstance(later, NotSent)
    assert later.delay == 12


async def test_what_no_handler_can_take_is_refused_for_good() -> None:
    for one, code in ((claimed(topic="bills"), "NO_HANDLER"), (claimed(problem="no JSON"), "UNDECODABLE")):
        attempts = Scripted()
        refused = await delivered(attempts, one)
        assert isinstance(refused, Refused)
        assert (refused.code, refused.failure, attempts.settled_with) == (code, Failure.PERMANENT, [])


def test_each_message_is_retried_as_its_handler_says() -> None:
    here = destination(Scripted())
    assert here.policy_for(claimed().message) is POLICY
    assert here.policy_for(claimed(topic="bills").message).exhausted(1)


async def test_a_message_whose_transaction_was_undone_is_next_settled_by_the_engine() -> None:
    attempts = Scripted(NotSettledHere(only_this_time=True), COMMITTED, COMMITTED)
    here = destination(attempts)
    assert await here.deliver([claimed(1)], 30) == [NOT_SENT]
    assert await here.deliver([replace(claimed(1), token=8)], 30) == [ACCEPTED]
    assert await here.deliver([claimed(2)], 30) == [ALREADY_SETTLED]


async def test_handlers_that_write_elsewhere_settle_nothing_any_more() -> None:
    attempts = Scripted(NotSettledHere(only_this_time=False))
    here = destination(attempts)
    assert await here.deliver([claimed(1)], 30) == [NOT_SENT]
    assert await here.deliver([claimed(1), claimed(2)], 30) == [ACCEPTED, ACCEPTED]
    assert attempts.settled_with[1:] == [None, None]


async def test_an_undone_transaction_does_not_hide_that_handlers_write_elsewhere() -> None:
    here = destination(Scripted(NotSettledHere(only_this_time=False), NotSettledHere(only_this_time=True)))
    assert await here.deliver([claimed(1), claimed(2)], 30) == [NOT_SENT, NOT_SENT]
    assert await here.deliver([claimed(3)], 30) == [ACCEPTED]


async def test_those_whose_turn_does_not_come_are_not_attempted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler_destination, "BEGINNING", 0.01)
    attempts = Scripted()
    attempts.may_end.clear()
    here = destination(attempts, concurrency=1)
    first = asyncio.create_task(here.deliver([claimed(1), claimed(2)], 30))
    await attempts.has_begun.wait()
    assert await here.deliver([claimed(3)], 30) == [NOT_SENT]
    attempts.may_end.set()
    assert await first == [ALREADY_SETTLED, NOT_SENT]
    assert len(attempts.settled_with) == 1


def test_events_of_the_engine_are_told_in_the_consumers_words() -> None:
    told: list[Event] = []
    hook = consumer_events("billing", told.append)
    message = claimed().message
    for outcome in (OutcomeCode.RETRY, OutcomeCode.DEAD, OutcomeCode.SUCCESS, OutcomeCode.CONFLICT):
        hook(Settled(outcome, [message], 3, "BROKEN", seconds=0.5))
    hook(Phase("send", 1, 0.1))
    hook(Reachability("handlers", reachable=False))
    handled = [one for one in told if isinstance(one, Handled)]
    assert [(one.fate, one.code, one.attempts, one.seconds) for one in handled] == [
        ("parked", "BROKEN", 3, 0.5),
        ("dead", "BROKEN", 3, 0.5),
    ]
    assert [list(one.outbox_ids) for one in handled] == [[message.id]] * 2
    assert told == handled
    told.clear()
    away = Reachability(DATABASE, reachable=False, reason="gone")
    hook(away)
    hook(LeasesLost(1, 0))
    beat = Beat("w", "handler:billing", alive=1, reached=True, in_flight=0, broker="handlers", broker_reachable=False)
    hook(beat)
    assert told == [away, LeasesLost(1, 0), msgspec.structs.replace(beat, broker="", broker_reachable=True)]
