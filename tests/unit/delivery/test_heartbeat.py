from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from postroom.brokers.memory import MemoryBroker
from postroom.delivery import heartbeat as heartbeats
from postroom.delivery.destination import PublishToBroker
from postroom.delivery.heartbeat import Heartbeat
from postroom.delivery.queue import EngineOptions, Queue
from postroom.delivery.queue_worker import QueueWorker
from postroom.message import Message
from postroom.rules.ordering import NO_LANE
from postroom.store.connections.reconnecting import Outage
from postroom.store.connections.shared import ConnectionSet
from postroom.store.outbox.leases import Claimed, Lane, Renewal
from postroom.store.outbox.queue_store import QueueStore
from postroom.store.outbox.workers import Workers
from postroom.store.sql.names import Names

PATIENCE = 60


class Keeper:
    """Keeps the leases of a queue, or hangs."""

    def __init__(self, *, hangs: bool = False) -> None:
        self._hangs = hangs
        self.beats = 0
        self.beat_often = asyncio.Event()

    async def beat(self) -> int:
        if self._hangs:
            await asyncio.Event().wait()
        return 1

    def report(self, alive: int | None) -> None:
        assert alive == 1
        self.beats += 1
        if self.beats > 3:
            self.beat_often.set()


async def test_a_queue_whose_beat_hangs_does_not_delay_the_others() -> None:
    hanging, lively = Keeper(hangs=True), Keeper()
    heartbeat = Heartbeat(cast("Any", [hanging, lively]), interval=0.0)
    beating = asyncio.create_task(heartbeat.run())
    await asyncio.wait_for(lively.beat_often.wait(), PATIENCE)
    assert hanging.beats == 0
    beating.cancel()
    await asyncio.wait({beating})


async def test_no_beat_begins_after_the_last() -> None:
    keeper = Keeper()
    heartbeat = Heartbeat(cast("Any", [keeper]), interval=0.0)
    beating = asyncio.create_task(heartbeat.run())
    await asyncio.wait_for(keeper.beat_often.wait(), PATIENCE)
    await heartbeat.finish()
    beats = keeper.beats
    for _ in range(10):
        await asyncio.sleep(0)
    assert keeper.beats <= beats + 1, "the one that was about to be reported"
    beating.cancel()
    await asyncio.wait({beating})


class HandingOver(Keeper):
    """Has lanes that it can release after a while, or a database that goes away meanwhile."""

    def __init__(self, *, outage: bool = False) -> None:
        super().__init__()
        self._outage = outage
        self.looks = 0
        self.done = asyncio.Event()

    @property
    def lanes_change_hands(self) -> bool:
        return not self.done.is_set()

    async def share_lanes(self) -> None:
        self.looks += 1
        if self._outage:
            asyncio.get_running_loop().call_soon(self.done.set)
            raise Outage("away")
        if self.looks == 3:
            self.done.set()


@pytest.mark.parametrize(("outage", "looks"), [(False, 3), (True, 1)])
async def test_lanes_that_change_hands_do_not_wait_for_the_next_beat(
    monkeypatch: pytest.MonkeyPatch, *, outage: bool, looks: int
) -> None:
    monkeypatch.setattr(heartbeats, "HANDING_OVER", 0.001)
    keeper = HandingOver(outage=outage)
    beating = asyncio.create_task(Heartbeat(cast("Any", [keeper]), interval=3600.0).run())
    await asyncio.wait_for(keeper.done.wait(), PATIENCE)
    assert (keeper.beats, keeper.looks) == (1, looks)
    beating.cancel()
    await asyncio.wait({beating})


async def test_many_queues_do_not_crowd_the_connection_that_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "LOOKS", 0.001)
    keeper, *others = keepers = [HandingOver() for _ in range(10)]
    beating = asyncio.create_task(Heartbeat(cast("Any", keepers), interval=0.01).run())
    await asyncio.wait_for(keeper.beat_often.wait(), PATIENCE)
    assert [one.looks for one in (keeper, *others)] == [0] * 10
    beating.cancel()
    await asyncio.wait({beating})


LANE = 5


class Gone:
    """A connection to a database that has none of these leases any more, and then fails."""

    connections = 1

    def __init__(self, lost: list[Claimed], lost_lanes: list[Lane]) -> None:
        self._answers: list[Any] = [Renewal(set(), set(), lost, lost_lanes)]

    async def attempt(self, steps: Any, _on: int | None = None) -> Any:
        steps.close()
        return self._answers.pop(0)


async def test_what_the_destination_may_have_settled_itself_is_not_reported_as_lost() -> None:
    """Whether its lease was lost, or the destination has just settled it, only the destination can tell."""
    lane = Lane(LANE, 8)
    settled, lost = (Claimed(n, NO_LANE, 7, 0, 1, Message.new("t", n)) for n in (1, 2))
    settled_in_lane, lost_in_lane = (Claimed(n, LANE, 8, 0, 1, Message.new("t", n, key="k")) for n in (3, 4))
    connection: Any = Gone([settled, lost], [lane])
    names = Names.of("sqlite", None, None)
    worker = QueueWorker(
        queue=Queue(name="default", destination=PublishToBroker(MemoryBroker())),
        options=EngineOptions(worker="w", lease=0.0),
        store=QueueStore(names),
        workers=Workers(names),
        connections=ConnectionSet(connection, connection, (connection, connection), (connection, connection)),
        stopping=asyncio.Event(),
        moved_to=lambda _: None,
    )
    worker.in_flight.lanes.hold(lane, 1e9)
    worker.in_flight.take([settled, lost, settled_in_lane, lost_in_lane], 1e9)
    worker.in_flight.lend([settled, settled_in_lane])
    await worker.lease_keeper._renew()
    assert worker.pending.take_conflicts() == [lost, lost_in_lane]
    assert worker.in_flight.remaining([settled, lost, settled_in_lane]) == [settled, settled_in_lane]
