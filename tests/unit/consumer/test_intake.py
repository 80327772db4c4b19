"""The intake: who gets a message, and what is acknowledged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from postroom.consumer.intake import Intake
from postroom.consumer.outcomes import Fate
from postroom.errors import BrokerUnavailable
from postroom.incoming import Incoming
from postroom.rules.receiving import Portions
from postroom.sources.port import Received
from postroom.store.connections.reconnecting import Outage
from postroom.telemetry.events import Event, Reachability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from postroom.consumer.parked import ParkedMessages
    from postroom.consumer.worker import Done, SequentialWorker


class Worker:
    """Keeps what it is assigned, until it is told what becomes of it."""

    def __init__(self, done: Done) -> None:
        self.done = done
        self.assigned: list[Received] = []

    @property
    def load(self) -> int:
        return len(self.assigned)

    def assign(self, received: Sequence[Received]) -> None:
        self.assigned.extend(received)

    def finish(self, fate: Fate) -> None:
        finished, self.assigned = self.assigned, []
        self.done(finished, fate)


class Surroundings:
    """A source, a list of parked keys, and an intake between them and two workers."""

    name = "source"

    def __init__(self, *messages: Incoming | Exception) -> None:
        self.waiting = list(messages)
        self.asked_for: list[int] = []
        self.acknowledged: list[str] = []
        self.given_back: list[str] = []
        self.events: list[Event] = []
        self.is_away = False
        self.stopping = asyncio.Event()
        parts: Any = self
        self.intake = Intake(
            parts,
            lambda done: cast("SequentialWorker", Worker(done)),
            concurrency=2,
            portions=Portions(4, 4, together=1),
            parked=cast("ParkedMessages", parts),
            stopping=self.stopping,
            hook=self.events.append,
        )

    @property
    def workers(self) -> list[Worker]:
        return cast("list[Worker]", self.intake.workers)

    async def receive(self, most: int, _: float) -> list[Received]:
        self.asked_for.append(most)
        found, self.waiting = self.waiting[:most], self.waiting[most:]
        for one in found:
            if isinstance(one, Exception):
                raise one
        return [Received(one) for one in found if isinstance(one, Incoming)]

    async def acknowledge(self, received: Sequence[Received]) -> None:
        self.acknowledged += [one.message.id for one in received]

    async def give_back(self, received: Sequence[Received]) -> None:
        self.given_back += [one.message.id for one in received]

    async def learn(self, _: Sequence[Incoming]) -> None:
        if self.is_away:
            self.stopping.set()
            raise Outage("away")

    async def end(self) -> None:
        self.intake.close()
        await self.intake.acknowledge()


def message(number: int, key: str | None = None) -> Incoming:
    return Incoming(id=str(number), topic="orders", payload=b"", content_type="text/plain", key=key)


async def test_messages_of_one_key_go_to_one_worker_and_others_where_least_waits() -> None:
    here = Surroundings(message(1, "k"), message(2, "k"), message(3), message(4))
    assert await here.intake.receive_some(0) == 4
    assert sorted(sorted(one.message.id for one in worker.assigned) for worker in here.workers) == [
        ["1", "2"],
        ["3", "4"],
    ]


async def test_no_more_is_received_than_there_is_room_for() -> None:
    here = Surroundings(*map(message, range(6)))
    await here.intake.receive_some(0)
    more = asyncio.create_task(here.intake.receive_some(0))
    await asyncio.sleep(0)
    assert here.asked_for == [4]
    here.workers[0].finish(Fate.HANDLED)
    assert await more == 2
    assert here.asked_for == [4, 2]


async def test_what_is_done_is_acknowledged_and_the_rest_given_back() -> None:
    here = Surroundings(message(1), message(2))
    await here.intake.receive_some(0)
    here.workers[0].finish(Fate.PARKED)
    here.workers[1].finish(Fate.UNDONE)
    await here.end()
    assert (here.acknowledged, here.given_back, here.intake.in_flight) == (["1"], ["2"], 0)


async def test_what_was_handed_in_is_answered_and_not_acknowledged() -> None:
    here = Surroundings()
    answer = asyncio.create_task(here.intake.handle(message(1)))
    await asyncio.sleep(0)
    for worker in here.workers:
        worker.finish(Fate.DUPLICATE)
    assert await answer is Fate.DUPLICATE
    await here.end()
    assert here.acknowledged == []


async def test_a_consumer_that_stops_while_the_database_is_away_gives_everything_back() -> None:
    here = Surroundings(message(1, "k"))
    here.is_away = True
    await here.intake.receive_some(0)
    assert await here.intake.handle(message(2, "k")) is Fate.UNDONE
    await here.end()
    assert (here.given_back, here.intake.in_flight) == (["1"], 0)


async def test_a_broker_that_goes_away_and_comes_back_is_told_of_once_each() -> None:
    here = Surroundings(BrokerUnavailable("gone"), ValueError("odd"), message(1))
    for problem in ("gone", "source: ValueError: odd"):
        waiting, here.waiting = here.waiting[1:], here.waiting[:1]
        with pytest.raises(BrokerUnavailable, match=problem):
            await here.intake.receive_some(0)
        assert here.intake.down == problem
        here.waiting = waiting
    await here.intake.receive_some(0)
    assert here.intake.down is None
    assert here.events == [Reachability("source", False, "gone"), Reachability("source", True)]  # noqa: FBT003 - events
