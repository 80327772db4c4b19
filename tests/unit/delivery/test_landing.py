"""Deliveries that a long-running destination has in hand, and how they land."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from postroom.brokers.port import ACCEPTED, NOT_SENT, Capabilities, Refused, Unreached
from postroom.delivery.attempt import Batch
from postroom.delivery.destination import ALREADY_SETTLED, IN_HAND, LEASE_LOST, Decided
from postroom.delivery.failed_keys import NO_READ
from postroom.delivery.queue import EngineOptions, Queue
from postroom.delivery.queue_worker import QueueWorker
from postroom.delivery.trials import Trials
from postroom.message import Message
from postroom.rules.ordering import NO_LANE
from postroom.store.connections.reconnecting import Database
from postroom.store.connections.shared import ConnectionSet
from postroom.store.outbox.leases import Claimed, Dead, GivenBack, Renewal, Retry, Sent
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers
from postroom.store.sql.names import Names
from postroom.telemetry.events import Event, LeasesLost, Reachability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.delivery.destination import Landing, Outcome
    from postroom.store.connections.stores import ConnectionFactory

FUTURE = 1e9


class Sagas:
    """A destination that has everything in hand, or says the outcomes given."""

    name = "sagas"
    capabilities = Capabilities()
    settles_itself = True
    patience = 7.0

    def __init__(self, outcomes: Sequence[Outcome] = ()) -> None:
        self._outcomes = outcomes
        self.landing: Landing | None = None
        self.received: list[Claimed] = []
        self.stops = 0

    def begin(self, landing: Landing) -> None:
        self.landing = landing

    def stop(self) -> None:
        self.stops += 1

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        del timeout
        self.received += claimed
        return self._outcomes or [IN_HAND] * len(claimed)

    async def close(self) -> None:
        """Nothing to close."""


def claimed(position: int, token: int = 7) -> Claimed:
    return Claimed(position, NO_LANE, token, 0, 1, Message.new("saga:place_order", position))


class Answering:
    """A connection to a database that answers these, one after another."""

    connections = 1

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    async def run(self, _operation: Any) -> Any:
        answer = self.answers.pop(0)
        return answer() if callable(answer) else answer

    async def attempt(self, steps: Any, _on: int | None = None) -> Any:
        steps.close()
        answer = self.answers.pop(0)
        return answer() if callable(answer) else answer


def worker_for(destination: Sagas, events: list[Event] | None = None, connection: Any = None) -> QueueWorker:
    names = Names.of("sqlite", None, None)
    events = [] if events is None else events
    connections = ConnectionSet.full(Database(cast("ConnectionFactory", None), events.append))
    if connection is not None:
        connections = ConnectionSet(connection, connection, (connection, connection), (connection, connection))
    return QueueWorker(
        queue=Queue(name="saga:place_order", destination=destination, keyed=False, hook=events.append),
        options=EngineOptions(worker="w"),
        store=QueueStore(names),
        workers=Workers(names),
        connections=connections,
        stopping=asyncio.Event(),
        moved_to=lambda _: None,
    )


async def in_hand(worker: QueueWorker, *batch: Claimed) -> None:
    worker.in_flight.take(batch, FUTURE)
    await worker.attempt.run(Batch(NO_READ, batch), Trials(worker.health.suspects))


async def test_what_is_in_hand_stays_in_flight_until_it_lands_once() -> None:
    events: list[Event] = []
    worker = worker_for(Sagas(), events)
    batch = [claimed(position) for position in range(1, 6)]
    await in_hand(worker, *batch)
    assert worker.in_flight.remaining(batch) == batch
    assert all(worker.in_flight.is_at_destination(one) for one in batch)
    assert not worker.pending.take_pending()
    done, failed, decided, lost, back = batch
    worker.attempt.land(done, ALREADY_SETTLED, 0.1)
    worker.attempt.land(failed, Refused("NO", "no"), 0.2)
    worker.attempt.land(decided, Decided(Dead(decided, "STEP", "no", attempted=False)), 0.3)
    worker.attempt.land(lost, LEASE_LOST, 0.4)
    worker.attempt.land(back, NOT_SENT, 0.0)
    retry, dead, given_back = worker.pending.take_pending()
    assert isinstance(retry, Retry)
    assert (retry.claimed, retry.code) == (failed, "NO")
    assert dead == Dead(decided, "STEP", "no", attempted=False)
    assert given_back == GivenBack(back)
    assert worker.pending.take_conflicts() == [lost]
    assert worker.pending.seconds_of(decided) == 0.3
    assert worker.in_flight.remaining(batch) == [failed, decided, back], "until it is written"
    assert not any(worker.in_flight.is_at_destination(one) for one in batch)
    worker.attempt.land(done, LEASE_LOST, 0.0)
    worker.attempt.land(lost, ACCEPTED, 0.0)
    assert not worker.pending.take_pending()
    assert not worker.pending.take_conflicts(), "a second landing does nothing"
    assert events == [LeasesLost(1, 0, "saga:place_order")], "the destination reports the rest"


class Quick(Sagas):
    """Lands deliveries before it has said that it has them."""

    async def deliver(self, claimed: Sequence[Claimed], timeout: float) -> Sequence[Outcome]:  # noqa: ASYNC109 - the port's
        outcomes = await super().deliver(claimed, timeout)
        assert self.landing is not None
        for one in claimed:
            self.landing.land(one, ALREADY_SETTLED)
        return outcomes


async def test_a_delivery_may_land_before_the_destination_has_said_that_it_has_it() -> None:
    worker = worker_for(Quick(), connection=Answering([], 1))
    await worker.begin()
    one = claimed(1)
    await in_hand(worker, one)
    assert len(worker.in_flight) == 0
    assert not worker.in_flight.is_at_destination(one)


async def test_a_destination_may_take_some_and_refuse_others_at_once() -> None:
    worker = worker_for(Sagas([IN_HAND, NOT_SENT, ACCEPTED]))
    batch = [claimed(position) for position in (1, 2, 3)]
    await in_hand(worker, *batch)
    assert worker.pending.take_pending() == [GivenBack(batch[1]), Sent(batch[2])], "and it is not asked again at once"
    assert [worker.in_flight.is_at_destination(one) for one in batch] == [True, False, False]


async def test_a_decision_about_another_delivery_is_a_failed_attempt() -> None:
    worker = worker_for(Sagas())
    one = claimed(1)
    await in_hand(worker, one)
    worker.attempt.land(one, Decided(Sent(claimed(1, token=8))), 0.0)
    [retry] = worker.pending.take_pending()
    assert isinstance(retry, Retry)
    assert (retry.claimed, retry.code) == (one, "INTERNAL_ERROR")


async def test_a_claim_goes_on_under_a_new_token_and_the_old_one_lands_no_more() -> None:
    destination = Sagas()
    worker = worker_for(destination, connection=Answering([], 1))
    await worker.begin()
    landing = destination.landing
    assert landing is not None
    old, new = claimed(1), claimed(1, token=8)
    await in_hand(worker, old)
    assert landing.replace(old, new)
    landing.land(old, ALREADY_SETTLED)
    assert worker.in_flight.remaining([old, new]) == [new]
    landing.land(new, Decided(Retry(new, 1.0, "NO", "no")))
    assert worker.pending.take_pending() == [Retry(new, 1.0, "NO", "no")]
    assert not landing.replace(old, new)


async def test_a_claim_that_got_a_new_token_during_a_renewal_is_renewed_at_the_next_beat() -> None:
    """Else half a lease would pass before the next one, and this one may have less than that left."""
    old, new, beside = claimed(1), claimed(1, token=8), claimed(2, token=9)

    def renew() -> Renewal:
        worker.in_flight.replace(old, new)
        return Renewal({beside.lease}, set(), [old], [])

    worker = worker_for(Sagas(), connection=Answering(renew))
    await in_hand(worker, old, beside)
    keeper = worker.lease_keeper
    keeper._renewed_at = before = time.monotonic() - 1000
    await keeper._renew()
    assert keeper._renewed_at == before
    assert worker.in_flight.remaining([new, beside]) == [new, beside]
    assert not worker.pending.take_conflicts()


async def test_a_lease_that_is_gone_is_left_to_the_destination_and_does_not_hurry_renewals() -> None:
    one = claimed(1)
    worker = worker_for(Sagas(), connection=Answering(Renewal(set(), set(), [one], [])))
    await in_hand(worker, one)
    keeper = worker.lease_keeper
    keeper._renewed_at = before = time.monotonic() - 1000
    await keeper._renew()
    assert keeper._renewed_at > before
    assert one in worker.in_flight
    worker.attempt.land(one, LEASE_LOST, 0.0)
    assert worker.pending.take_conflicts() == [one]


async def test_look_again_wakes_who_claims_and_looks_at_what_is_due() -> None:
    destination = Sagas()
    worker = worker_for(destination, connection=Answering([], 1))
    await worker.begin()
    woken = worker.signals.subscribe("rows")
    assert destination.landing is not None
    destination.landing.look_again()
    assert woken.is_set()
    assert worker.signals.take_rows_due()


async def test_nothing_is_delivered_after_a_stop_and_the_destination_says_how_long_it_takes() -> None:
    destination = Sagas()
    worker = worker_for(destination)
    worker.attempt.stopping.set()
    worker.stop()
    assert destination.stops == 1
    one = claimed(1)
    await in_hand(worker, one)
    assert not destination.received
    assert worker.pending.take_pending() == [GivenBack(one)]
    assert worker.patience == 9.0


async def test_what_is_in_hand_proves_nothing_about_the_destination_until_it_lands() -> None:
    events: list[Event] = []
    worker = worker_for(Sagas(), events)
    first, probe, after = claimed(1), claimed(2), claimed(3)
    circuit = worker.health.circuit
    await in_hand(worker, first)
    worker.attempt.land(first, Unreached("no thread is free"), 0.0)
    assert worker.pending.take_pending() == [GivenBack(first)]
    assert circuit.down == "no thread is free"
    circuit._until = 0.0
    assert circuit.admit(10) == 1
    await in_hand(worker, probe)
    assert circuit.down is not None
    assert circuit.admit(10) == 0, "the probe is still under way"
    worker.attempt.land(probe, ALREADY_SETTLED, 0.0)
    await in_hand(worker, after)
    assert [event.reachable for event in events if isinstance(event, Reachability)] == [False, True]


async def test_what_was_claimed_while_the_database_was_asked_is_left_to_do() -> None:
    """A run until empty would end otherwise, and give it back."""
    connection = Answering()
    worker = worker_for(Sagas(), connection=connection)
    claimer = worker._row_claimers[0]
    one = claimed(1)

    def claims() -> bool:
        claimer.unresolved.append(1)
        return False

    def takes_and_lands() -> bool:
        claimer.unresolved.clear()
        worker.in_flight.take([one], FUTURE)
        worker.in_flight.land([one])
        return False

    connection.answers = [True, claims, takes_and_lands, False]
    assert [await worker.anything_to_send() for _ in range(4)] == [True, True, True, False]


def test_a_queue_with_keys_cannot_have_such_a_destination() -> None:
    names = Names.of("sqlite", None, None)
    with pytest.raises(ValueError, match="cannot keep keys in order"):
        QueueWorker(
            queue=Queue(name="default", destination=Sagas()),
            options=EngineOptions(worker="w"),
            store=QueueStore(names),
            workers=Workers(names),
            connections=cast("ConnectionSet", None),
            stopping=asyncio.Event(),
            moved_to=lambda _: None,
        )
