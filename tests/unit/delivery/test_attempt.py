from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.brokers.port import ACCEPTED, Capabilities, Refused
from postroom.delivery import trials
from postroom.delivery.attempt import Batch
from postroom.delivery.destination import ALREADY_SETTLED, LEASE_LOST, PublishToBroker
from postroom.delivery.failed_keys import NO_READ
from postroom.delivery.queue import EngineOptions, Queue
from postroom.delivery.queue_worker import QueueWorker
from postroom.delivery.trials import Trials
from postroom.errors import BrokerUnavailable
from postroom.message import Message
from postroom.rules.ordering import NO_LANE
from postroom.store.connections.reconnecting import Database
from postroom.store.connections.shared import ConnectionSet
from postroom.store.outbox.leases import Claimed, Dead, GivenBack, Lane, Postponed, Retry, Sent
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers
from postroom.store.sql.names import Names
from postroom.telemetry.events import Event, LeasesLost, Published

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.destination import Destination, Outcome
    from postroom.store.connections.stores import ConnectionFactory

PAST, FUTURE = 0.0, 1e9


def claimed(position: int, lane: int = 3, key: str | None = "k") -> Claimed:
    return Claimed(position, lane, 7, 0, 0, Message.new("t", position, key=key))


def worker_for(destination: Destination, events: list[Event]) -> QueueWorker:
    names = Names.of("sqlite", None, None)
    return QueueWorker(
        queue=Queue(name="default", destination=destination, hook=events.append),
        options=EngineOptions(worker="w"),
        store=QueueStore(names),
        workers=Workers(names),
        connections=ConnectionSet.full(Database(cast("ConnectionFactory", None), events.append)),
        stopping=asyncio.Event(),
        moved_to=lambda _: None,
    )


async def test_L_16_what_is_not_sent_in_time_is_read_again_if_its_lane_is_still_ours() -> None:
    """A renewal may come late and succeed. The lane goes on behind its cursor, which has passed these messages."""
    broker = MemoryBroker()
    worker = worker_for(PublishToBroker(broker), [])
    worker.in_flight.lanes.hold(Lane(3, 7), PAST)
    first, second = claimed(1), claimed(2)
    read = worker._failed_keys.next_read()
    worker.in_flight.take([first], PAST)
    await worker.attempt.run(Batch(read, [first]), Trials(worker.health.suspects))
    assert worker.pending.take_pending() == [GivenBack(first)]
    assert not worker.pending.take_conflicts()
    worker.in_flight.take([second], FUTURE)
    worker.in_flight.lanes.extend([(3, 7)], FUTURE)
    await worker.attempt.run(Batch(read, [second]), Trials(worker.health.suspects))
    assert worker.pending.take_pending() == [GivenBack(second)], "it stands behind the first"
    assert not broker.messages


class Handlers:
    """A destination in this process, which gets leases and gives these outcomes."""

    name = "handlers"
    capabilities = Capabilities()
    settles_itself = True

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._outcomes = outcomes
        self.received: list[Claimed] = []

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        self.received += claimed
        return [self._outcomes[one.position - 1] for one in claimed]

    async def close(self) -> None:
        """Nothing to close."""


async def test_what_a_destination_settled_itself_lands_and_is_not_written() -> None:
    events: list[Event] = []
    handlers = Handlers([ALREADY_SETTLED, ACCEPTED, Refused("NO", "no"), LEASE_LOST])
    worker = worker_for(handlers, events)
    batch = [claimed(position, NO_LANE, None) for position in range(1, 5)]
    worker.in_flight.take(batch, FUTURE)
    await worker.attempt.run(Batch(NO_READ, batch), Trials(worker.health.suspects))
    assert handlers.received == batch, "with their leases"
    sent, retry = worker.pending.take_pending()
    assert sent == Sent(batch[1])
    assert isinstance(retry, Retry)
    assert retry.claimed is batch[2]
    assert worker.pending.take_conflicts() == [batch[3]]
    assert worker.in_flight.remaining(batch) == batch[1:3], "the others have landed"
    [published] = [event for event in events if isinstance(event, Published)]
    assert published.failed == {2: "NO", 3: "LEASE_LOST"}
    assert [event for event in events if isinstance(event, LeasesLost)] == [LeasesLost(1, 0, "default")]


async def test_L_16_a_lane_is_read_again_from_a_delivery_on_whose_lease_was_lost() -> None:
    """If only that delivery was lost, and not its lane, what comes behind it on its key would overtake it."""
    worker = worker_for(Handlers([ALREADY_SETTLED, LEASE_LOST]), [])
    worker.in_flight.lanes.hold(Lane(3, 7), FUTURE)
    [held] = worker.in_flight.lanes
    batch = [claimed(1, key="a"), claimed(2, key="b")]
    read = worker._failed_keys.next_read()
    held.begin_read()
    held.end_read(2, safe=2)
    worker.in_flight.take(batch, FUTURE)
    await worker.attempt.run(Batch(read, batch), Trials(worker.health.suspects))
    assert held.cursor == 1
    assert worker.pending.take_conflicts() == [batch[1]]


@pytest.mark.parametrize("outcome", [ALREADY_SETTLED, LEASE_LOST], ids=["settled", "lost"])
async def test_what_stands_behind_a_lost_lease_on_its_key_is_not_delivered(outcome: Outcome) -> None:
    handlers = Handlers([outcome, ALREADY_SETTLED])
    worker = worker_for(handlers, [])
    worker.in_flight.lanes.hold(Lane(3, 7), FUTURE)
    batch = [claimed(1), claimed(2)]
    worker.in_flight.take(batch, FUTURE)
    await worker.attempt.run(Batch(worker._failed_keys.next_read(), batch), Trials(worker.health.suspects))
    if outcome is ALREADY_SETTLED:
        assert handlers.received == batch
    else:
        assert handlers.received == batch[:1]
        assert worker.pending.take_pending() == [GivenBack(batch[1])]


async def test_R_9_what_makes_a_call_fail_is_found_and_goes_alone_from_then_on() -> None:
    """Its neighbours lose no attempt; and when it is dead, nothing is remembered."""
    calls: list[list[int]] = []

    class Broken(Handlers):
        async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
            calls.append([one.position for one in claimed])
            if 2 in calls[-1]:
                raise KeyError("poison")
            return await super().deliver(claimed, timeout)

    worker = worker_for(Broken([ACCEPTED] * 6), [])
    batch = [claimed(position, NO_LANE, None) for position in range(1, 7)]

    async def attempted(some: list[Claimed]) -> list[type]:
        worker.in_flight.take(some, FUTURE)
        await worker.attempt.run(Batch(NO_READ, some), Trials(worker.health.suspects))
        return [type(one) for one in worker.pending.take_pending()]

    assert await attempted(batch) == [GivenBack] * 6
    assert await attempted(batch) == [GivenBack] * 6
    assert await attempted(batch) == [GivenBack] * 4 + [Sent] * 2
    assert await attempted(batch[:4]) == [Sent, Retry, Sent, Sent]
    assert await attempted([batch[1], *batch[4:]]) == [Retry, Sent, Sent]
    last = msgspec.structs.replace(batch[1], attempts=worker.queue.policy_for(batch[1].message).max_attempts - 1)
    assert await attempted([last, *batch[4:]]) == [Dead, Sent, Sent]
    assert not worker.attempt.health.suspects
    every = [*range(1, 7)]
    assert calls == [every, every, [1, 2, 3, 4], [5, 6], [1], [2], [3], [4], [2], [5, 6], [2], [5, 6]]


async def test_R_9_an_outage_costs_no_attempt_of_a_message_that_made_a_call_fail_before() -> None:
    errors: list[Exception] = [KeyError("poison"), BrokerUnavailable("nobody there")]

    class Failing(Handlers):
        async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
            if claimed[0].position == 1:
                raise errors.pop(0)
            return await super().deliver(claimed, timeout)

    worker = worker_for(Failing([ACCEPTED] * 2), [])
    for position, fate in ((1, Retry), (2, Sent), (1, GivenBack)):
        one = claimed(position, NO_LANE, None)
        worker.in_flight.take([one], FUTURE)
        await worker.attempt.run(Batch(NO_READ, [one]), Trials(worker.health.suspects))
        assert [type(settlement) for settlement in worker.pending.take_pending()] == [fate]
    assert worker.health.circuit.down == "nobody there"


async def test_R_9_suspects_are_given_back_when_the_engine_stops() -> None:
    """One call for each of them could take a thousand times as long as the one call that a stop waits for."""

    class Broken(Handlers):
        async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
            await super().deliver(claimed, timeout)
            if len(self.received) == 99 + 32:
                worker._stopping.set()
            raise KeyError("poison")

    destination = Broken([ACCEPTED] * 99)
    worker = worker_for(destination, [])
    batch = [claimed(position, NO_LANE, None) for position in range(1, 100)]
    for calls in (1, 2):
        worker.in_flight.take(batch, FUTURE)
        await worker.attempt.run(Batch(NO_READ, batch), Trials(worker.health.suspects))
        assert worker.pending.take_pending() == [GivenBack(one) for one in batch]
        assert len(destination.received) == 99 + 32 * (calls - 1)


async def test_R_9_a_call_that_fails_with_a_request_to_come_later_is_not_repeated_before() -> None:
    later = Refused("BUSY", retry_after=30, whole_call=True)
    worker = worker_for(Handlers([later] * 3), [])
    batch = [claimed(position, NO_LANE, None) for position in range(1, 4)]
    worker.in_flight.take(batch, FUTURE)
    await worker.attempt.run(Batch(NO_READ, batch), Trials(worker.health.suspects))
    settlements = worker.pending.take_pending()
    assert [(type(one), cast("Retry", one).delay) for one in settlements] == [(Retry, 30)] * 3
    assert not worker.health.suspects


async def test_R_9_suspects_whose_calls_have_taken_long_do_not_hold_up_what_is_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "AT_ONCE", 0.0)
    calls: list[list[int]] = []

    class Broken(Handlers):
        async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
            calls.append([one.position for one in claimed])
            if min(calls[-1]) < 4:
                raise KeyError("poison")
            return await super().deliver(claimed, timeout)

    worker = worker_for(Broken([ACCEPTED] * 6), [])
    batch = [claimed(position, 3, f"key {position}") for position in range(1, 7)]
    worker.health.suspects.strike([*batch[:3], *batch[:3], *batch[:3], batch[1]], answered=True)
    worker.in_flight.lanes.hold(Lane(3, 7), FUTURE)
    worker.in_flight.take(batch, FUTURE)
    await worker.attempt.run(Batch(worker._failed_keys.next_read(), batch), Trials(worker.health.suspects))
    assert calls == [[1], [4, 5, 6]]
    settled = {one.claimed.position: one for one in worker.pending.take_pending()}
    assert [type(settled[position]) for position in range(1, 7)] == [Retry, Postponed, Postponed, Sent, Sent, Sent]
    second, third = settled[2], settled[3]
    assert isinstance(second, Postponed)
    assert isinstance(third, Postponed)
    assert second.delay > third.delay == 1.0, "who has failed more often comes later"
