from __future__ import annotations

import asyncio

from postroom.brokers.memory import MemoryBroker
from postroom.delivery.options import Options
from postroom.delivery.publisher import Batch, Courier
from postroom.delivery.queue_state import Office
from postroom.message import Message
from postroom.store.outbox.deliveries import Deliveries
from postroom.store.outbox.leases import Claimed, GivenBack, Lane
from postroom.store.sql.names import Names

PAST, FUTURE = 0.0, 1e9


def claimed(position: int) -> Claimed:
    return Claimed(position, 3, 7, 0, 0, Message.new("t", position, key="k"))


async def test_L_16_what_is_not_sent_in_time_is_read_again_if_its_lane_is_still_ours() -> None:
    """A renewal may come late and succeed. The lane goes on behind its cursor, which has passed these messages."""
    broker = MemoryBroker()
    office = Office(Options("w"), broker, Deliveries(Names.of("sqlite", None, None)), lambda _: None)
    office.flight.hold_lane(Lane(3, 7), PAST)
    first, second = claimed(1), claimed(2)
    read = office.failed_keys.next_read()
    courier = Courier(office, asyncio.Queue())
    office.flight.take_off([first], PAST)
    await courier.carry(Batch(read, [first]))
    assert office.settlements == [GivenBack(first)]
    assert not office.conflicts
    office.flight.take_off([second], FUTURE)
    await courier.carry(Batch(read, [second]))
    assert office.settlements == [GivenBack(first), GivenBack(second)], "it stands behind the first"
    assert not broker.messages
