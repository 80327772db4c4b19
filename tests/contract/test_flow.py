"""What went through, by the minute: relays and consumers write counters, `Admin.flow` reads them, on every database."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from postroom import Consumer, Relay
from postroom.admin import FlowKind, as_json
from postroom.errors import InvalidSetting
from postroom.incoming import Incoming
from postroom.rules.flow import FlowCounts
from postroom.store.admin.retention import counters, swept
from postroom.store.outbox.flow import Flow
from tests.contract.store_drivers import Room, only_on

MINUTE = timedelta(minutes=1)


def counted(**kinds: int) -> FlowCounts:
    counts = FlowCounts()
    for kind, messages in kinds.items():
        counts.count("default", FlowKind(kind), messages)
    return counts


def test_V_6_counters_of_several_processes_add_up_in_buckets_without_gaps(room: Room) -> None:
    flow = Flow(room.names)
    counts = counted(sent=3, dead=1)
    for _ in range(2):  # the second time it has nothing to do
        room.run(flow.write(counts, run=1))
    counts.count("default", FlowKind.SENT, 2)
    room.run(flow.write(counts, run=1))
    room.run(flow.write(counted(sent=10), run=2))
    told = room.admin().flow(since=10 * MINUTE)
    assert (told.totals[FlowKind.SENT], told.totals[FlowKind.DEAD], told.totals[FlowKind.HANDLED]) == (15, 1, 0)
    assert (told.minutes, told.queues, len(told.buckets)) == (1, ("default",), 11)
    assert {b.start - a.start for a, b in zip(told.buckets, told.buckets[1:], strict=False)} == {MINUTE}
    assert sum(bucket.done for bucket in told.buckets) == 15
    assert sum(bucket.failed for bucket in told.buckets) == 1
    assert as_json(told)["totals"]["sent"] == 15
    wide = room.admin().flow(since=datetime.now(UTC) - timedelta(days=7), minutes=60, queue="other")
    assert (len(wide.buckets), wide.totals[FlowKind.SENT], wide.queues) == (169, 0, ("default",))


def test_V_6_old_counters_are_removed(room: Room) -> None:
    flow = Flow(room.names)
    room.run(flow.write(counted(sent=1, dead=1), run=1))
    room.execute("UPDATE {flow} SET minute = minute - 10")
    room.run(flow.write(counted(sent=1), run=1))
    room.run(swept(counters(room.names, 5), batch=1))
    assert room.admin().flow().totals[FlowKind.SENT] == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"since": timedelta(0)}, "above 0"),
        ({"since": datetime(2030, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
        ({"minutes": 0}, "give 1 to 1440"),
        ({"since": timedelta(days=7), "minutes": 1}, "wider ones"),
    ],
)
@only_on("sqlite3")
def test_a_span_that_makes_no_sense_is_refused(room: Room, given: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidSetting, match=problem):
        room.admin().flow(**given)  # type: ignore[arg-type]  # of several types


@only_on("sqlite3", "psycopg", "pymysql")
def test_V_6_relays_and_consumers_count_what_they_do(room: Room) -> None:
    def publish(message: object) -> dict[str, str] | None:
        if getattr(message, "topic", "") == "bad":
            return {"status": "error", "reason_code": "INVALID_TARGET", "message": "no"}
        return None

    room.add(3, topic="orders")
    room.add(1, topic="bad")
    asyncio.run(Relay(room.url, publish).run_once())
    totals = room.admin().flow(queue="default").totals
    assert (totals[FlowKind.SENT], totals[FlowKind.DEAD]) == (3, 1)


async def handled(url: str, message: Incoming) -> None:
    consumer = Consumer("billing", database=url)

    @consumer.handler("orders")
    def handle(message: Incoming) -> None:
        del message

    async with consumer:
        for _ in range(2):
            await consumer.handle(message)


@only_on("sqlite3")
def test_V_6_a_consumer_counts_what_it_handled_and_what_it_knew(room: Room) -> None:
    message = Incoming(id="1", topic="orders", payload=b"{}", content_type="application/json")
    asyncio.run(handled(room.url, message))
    told = room.admin().flow()
    assert (told.totals[FlowKind.HANDLED], told.totals[FlowKind.DUPLICATE]) == (1, 1)
