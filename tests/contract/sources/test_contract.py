"""One contract for all sources, against real servers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from postroom import Message
from tests.contract.sources.receiving import BATCH, GLANCE, consume, ids, numbers, receive

if TYPE_CHECKING:
    from tests.contract.sources.receiving import Counter

MANY = 2_000


async def test_I_2_all_arrives_once_in_the_order_of_each_key_and_never_again(counter: Counter) -> None:
    sent = [one for start in range(0, MANY, 500) for one in await counter.publish(range(start, start + 500))]
    source = counter.source()
    received = await consume(source, set(sent))
    assert sorted(ids(received)) == sorted(sent)
    by_key: dict[str | None, list[int]] = defaultdict(list)
    for one, number in zip(received, numbers(received), strict=True):
        by_key[one.message.key].append(number)
    assert len(by_key) == 20
    assert all(found == sorted(found) for found in by_key.values())
    assert await source.receive(BATCH, GLANCE) == []
    await source.close()
    [late] = await counter.publish([MANY])
    second = counter.source()
    assert ids(await receive(second, 1)) == [late]


async def test_a_batch_is_no_larger_than_asked_for_and_does_not_wait_to_be_full(counter: Counter) -> None:
    await counter.publish(range(5))
    source = counter.source()
    assert len(await receive(source, 2, most=2)) == 2
    assert len(await receive(source, 3, most=1000)) == 3


async def test_one_that_waits_is_woken_by_the_next_message(counter: Counter) -> None:
    source = counter.source()
    assert await source.receive(BATCH, GLANCE) == []
    waiting = asyncio.create_task(source.receive(BATCH, 20.0))
    [sent] = await counter.publish([1])
    async with asyncio.timeout(10):
        assert ids(await waiting) == [sent]


async def test_everything_that_a_message_has_arrives(counter: Counter) -> None:
    message = Message.new(
        counter.topic,
        "Grüße",
        key="k 1",
        type="Greeted",
        aggregate_type="person",
        aggregate_id="Ü",
        headers={"traceparent": "00-ab-cd-01", "city": "Köln", "ce-id": "mine"},
    )
    tombstone = Message.new(counter.topic, None, key="k 1")
    await counter.publish_all([msgspec.structs.replace(message, position=42), tombstone])
    by_id = {one.message.id: one.message for one in await receive(counter.source(), 2)}
    full, empty = by_id[str(message.id)], by_id[str(tombstone.id)]
    assert (full.payload, full.content_type, full.key) == ("Grüße".encode(), "text/plain; charset=utf-8", "k 1")
    assert (full.type, full.aggregate_type, full.aggregate_id, full.position) == ("Greeted", "person", "Ü", 42)
    assert (full.topic, dict(full.headers), full.problem) == (counter.topic, dict(message.headers), None)
    assert (empty.payload, empty.key, empty.problem) == (None, "k 1", None)


async def test_what_is_not_acknowledged_comes_again_after_the_end(counter: Counter) -> None:
    sent = await counter.publish(range(10), keys=1)
    first = counter.source()
    received = await receive(first, 10)
    await first.acknowledge(received[:4])
    await first.close()
    second = counter.source()
    assert ids(await receive(second, 6)) == sent[4:]
    assert await second.receive(BATCH, GLANCE) == []


async def test_what_is_given_back_comes_again(counter: Counter) -> None:
    sent = await counter.publish(range(10), keys=1)
    source = counter.source()
    received = await receive(source, 10)
    await source.acknowledge(received[:6])
    await source.give_back(received[6:])
    again = await receive(source, 4)
    assert sorted(ids(again)) == sorted(sent[6:])
    await source.acknowledge(again)
    await source.close()
    [late] = await counter.publish([10])
    assert ids(await receive(counter.source(), 1)) == [late]


async def test_acknowledged_out_of_order_only_the_others_come_again(counter: Counter) -> None:
    sent = await counter.publish(range(6), keys=1)
    source = counter.source()
    received = await receive(source, 6)
    await source.acknowledge(received[3:])
    await source.acknowledge(received[:2])
    await source.acknowledge(received[2:3])
    await source.close()
    [late] = await counter.publish([6])
    assert ids(await receive(counter.source(), 1)) == [late]
    assert late not in sent


async def test_two_share_and_lose_nothing(counter: Counter) -> None:
    first, second = counter.source(), counter.source()
    sent = set(await counter.publish(range(300)))
    seen: list[str] = []
    shares: list[int] = []
    done = asyncio.Event()

    async def work(source_name: str) -> None:
        source = first if source_name == "first" else second
        share = 0
        while not done.is_set():
            some = await source.receive(10, GLANCE)
            await source.acknowledge(some)
            share += len(some)
            seen.extend(ids(some))
            if set(seen) >= sent | more:
                done.set()
        shares.append(share)

    more: set[str] = set()
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(work("first"))
        group.create_task(work("second"))
        more |= set(await counter.publish(range(300, 600)))
    assert sorted(set(seen)) == sorted(sent | more)
    assert sum(shares) < 1000
