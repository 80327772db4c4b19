from __future__ import annotations

import asyncio

from postroom.delivery.admission import Admission
from postroom.delivery.circuit import Circuit
from postroom.delivery.held_lanes import HeldLanes
from postroom.delivery.in_flight import InFlight
from postroom.message import Message
from postroom.rules.ordering import NO_LANE
from postroom.store.outbox.leases import Claimed

BATCH = 2


class Door:
    """Admission to a queue with room for three messages."""

    def __init__(self) -> None:
        self.now = 0.0
        self.in_flight = InFlight(HeldLanes(), 3, 1000)
        self.circuit = Circuit(lambda _: None, 10.0, lambda: self.now)
        self.stopping = asyncio.Event()
        self.admission = Admission(self.in_flight, self.circuit, BATCH, self.stopping)

    def take(self, *positions: int) -> list[Claimed]:
        claims = [Claimed(position, NO_LANE, 1, 0, 1, Message.new("t", position)) for position in positions]
        self.in_flight.take(claims, 100.0)
        return claims


async def test_it_waits_for_room_for_a_batch() -> None:
    door = Door()
    assert await door.admission.admit() == BATCH
    claims = door.take(1, 2)
    admitted = asyncio.create_task(door.admission.admit())
    await asyncio.sleep(0)
    assert not admitted.done()
    door.in_flight.land(claims[:1])
    assert await admitted == BATCH


async def test_none_is_admitted_while_the_destination_is_down_but_a_probe() -> None:
    door = Door()
    door.circuit.failed("away")
    assert await door.admission.admit() == 0
    door.now += 1.0
    assert await door.admission.admit() == 1
    assert await door.admission.admit() == 0, "one probe at a time"


async def test_none_is_admitted_any_more_when_the_engine_stops() -> None:
    door = Door()
    door.take(1, 2, 3)
    admitted = asyncio.create_task(door.admission.admit())
    await asyncio.sleep(0)
    door.stopping.set()
    door.in_flight.stop_waiting()
    assert await admitted == 0


async def test_what_may_kill_its_worker_goes_alone() -> None:
    door = Door()
    others = door.take(1)
    entered = asyncio.Event()
    claims: list[Claimed] = []

    async def go_alone() -> None:
        async with door.admission.alone():
            claims.extend(door.take(2))
            entered.set()

    going = asyncio.create_task(go_alone())
    await asyncio.sleep(0)
    assert not entered.is_set(), "another is in flight"
    door.in_flight.land(others)
    await entered.wait()
    admitted = asyncio.create_task(door.admission.admit())
    await asyncio.sleep(0)
    assert not admitted.done()
    door.in_flight.land(claims)
    await going
    assert await admitted == BATCH
