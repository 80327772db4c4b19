"""Kafka's groups, with the patience that Kafka has with new members, and what is peculiar to its records."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

from postroom import Consumer
from postroom.sources.kafka import KafkaSource
from tests.acceptance.service import Service
from tests.contract.sources.own_kafka import own_kafka
from tests.contract.sources.receiving import receive

if TYPE_CHECKING:
    from postroom.incoming import Incoming
    from tests.conftest import FreshDatabase

PATIENCE = 60.0


async def test_I_2_once_gets_what_is_there_and_leaves_the_group(topic: str, ready_database: FreshDatabase) -> None:
    with own_kafka(topic) as kafka, closing(Service(ready_database("sqlite"))) as service:
        url = f"{kafka.url}?session_timeout_ms=6000"  # so long the mock waits for those that have left
        consumer = Consumer("once", url, database=service.url)
        handled: list[bytes] = []

        @consumer.handler(topic)
        async def handle(message: Incoming) -> None:
            handled.append(message.payload or b"")

        await kafka.send(topic, b"1", b"2", b"3")
        assert (await consumer.run_once()).handled == 3
        hasty = KafkaSource(url, "once", [topic])
        await hasty.receive(1, 0)  # joins, and leaves before it was let in
        await hasty.close()
        await kafka.send(topic, b"4")
        assert (await consumer.run_once()).handled == 1
        assert sorted(handled) == [b"1", b"2", b"3", b"4"]
        assert kafka.farewells() == 3


async def test_a_member_without_partitions_is_not_waited_for(topic: str, ready_database: FreshDatabase) -> None:
    with own_kafka(topic, 50) as kafka, closing(Service(ready_database("sqlite"))) as service:
        url = f"{kafka.url}?session_timeout_ms=6000"
        other = KafkaSource(url, "once", [topic])
        await kafka.send(topic, b"1")
        await receive(other, 1)
        consumer = Consumer("once", url, database=service.url)
        consumer.handler(topic)(lambda message: None)

        async def take() -> None:
            while True:
                await other.receive(1, 0.1)

        taking = asyncio.create_task(take())
        async with asyncio.timeout(PATIENCE):
            await consumer.run_once()
        taking.cancel()
        await other.close()


async def test_I_5_what_comes_to_the_same_offset_of_a_topic_made_anew_is_a_new_message(topic: str) -> None:
    seen: list[str] = []
    for body, timestamp in ((b"a", 1), (b"b", 1), (b"b", 2)):
        with own_kafka(topic, 50) as kafka:
            await kafka.send(topic, body, timestamp=timestamp)
            source = KafkaSource(kafka.url, "c", [topic])
            [one] = await receive(source, 1)
            await source.give_back([one])
            [again] = await receive(source, 1)
            assert again.message.dedup_id == one.message.dedup_id
            seen.append(one.message.dedup_id)
            await source.close()
    assert len(set(seen)) == 3
    assert len({dedup_id.split(":")[0] for dedup_id in seen}) == 1


async def test_keys_that_are_no_text_stay_different(topic: str) -> None:
    keys = [b"\xff", b"\xfe", b"\xef\xbf\xbd", b"%bytes:ff", b"k", b"", b"k" * 100_000]
    with own_kafka(topic, 50) as kafka:
        for key in keys:
            await kafka.send(topic, b"x", key=key)
        source = KafkaSource(kafka.url, "c", [topic])
        received = await receive(source, len(keys))
        await source.close()
    assert len({one.message.key for one in received}) == len(keys)
    assert [one.message.key for one in received[4:6]] == ["k", ""]
