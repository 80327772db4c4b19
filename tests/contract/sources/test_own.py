"""What is each broker's own: how a source is set up, and what it does with what others have set up."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import uuid4

import aio_pika
import nats
import pytest
import redis.asyncio as redis
from nats.js.api import AckPolicy, ConsumerConfig

from postroom import Message
from postroom.brokers.memory import MemoryBroker
from postroom.errors import BrokerUnavailable
from postroom.sources.memory import MemorySource
from tests.contract.sources.receiving import GLANCE, acknowledge, consume, ids, receive
from tests.contract.sources.source_rigs import (
    SERVERS,
    KafkaSourceRig,
    NatsSourceRig,
    RabbitSourceRig,
    RedisSourceRig,
    ServerSourceRig,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from postroom.sources.port import Source


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def opened(stack: AsyncExitStack, source: Source) -> Source:
    stack.push_async_callback(source.close)
    return source


async def sent(source_rig: ServerSourceRig, *topics: str, **options: str) -> list[str]:
    """Publish a message to each topic; returns their ids."""
    broker = source_rig.rig.broker(source_rig.rig.url(None, **options))
    messages = [Message.new(topic, "a") for topic in topics]
    await broker.publish(messages, 10.0)
    await broker.close()
    return [str(message.id) for message in messages]


async def test_nats_declares_a_stream_and_filters_by_patterns(topic: str, stack: AsyncExitStack) -> None:
    source_rig = NatsSourceRig()
    options = {"declare": "true", "stream": topic, "subjects": f"{topic}.>"}
    one, two, three, _ = await sent(
        source_rig, f"{topic}.a", f"{topic}.b.c", f"{topic}.x.paid", f"{topic}.y.open", **options
    )
    source = opened(stack, source_rig.source("c.1", f"{topic}.a", f"{topic}.b.*", f"{topic}.*.paid", **options))
    assert ids(await receive(source, 3)) == [one, two, three]
    assert await source.receive(10, GLANCE) == []
    everything = opened(stack, source_rig.source("c 2", "*", stream=topic))
    assert len(await receive(everything, 4)) == 4


async def test_nats_says_what_is_wrong_with_a_durable_and_widens_it_if_told(topic: str, stack: AsyncExitStack) -> None:
    source_rig = NatsSourceRig()
    client = await nats.connect(f"nats://127.0.0.1:{source_rig.rig.server.port}")
    stack.push_async_callback(client.close)
    jetstream = client.jetstream()
    await jetstream.add_stream(name=topic, subjects=[f"{topic}.>"])
    await jetstream.add_consumer(topic, ConsumerConfig(durable_name="all", ack_policy=AckPolicy.ALL))
    await jetstream.add_consumer(topic, ConsumerConfig(durable_name="pushed", deliver_subject=f"p{topic}"))
    await jetstream.add_consumer(topic, ConsumerConfig(durable_name="narrow", filter_subject=f"{topic}.a"))
    for durable, problem in [
        ("all", "must be explicit"),
        ("pushed", "use a pull one"),
        ("narrow", "?declare=true widens it"),
    ]:
        source = opened(stack, source_rig.source("c", f"{topic}.b", durable=durable))
        with pytest.raises(BrokerUnavailable, match=problem.replace("?", r"\?")):
            await source.receive(1, GLANCE)
    options = {"declare": "true", "stream": topic, "subjects": "unused"}
    [message] = await sent(source_rig, f"{topic}.b")
    source = opened(stack, source_rig.source("c", f"{topic}.b", durable="narrow", **options))
    assert ids(await receive(source, 1)) == [message]
    await jetstream.delete_consumer(topic, "narrow")
    with pytest.raises(BrokerUnavailable, match="consumer"):
        await source.receive(1, 10.0)


async def test_nats_refuses_topics_of_several_streams(topic: str, stack: AsyncExitStack) -> None:
    source_rig = NatsSourceRig()
    await source_rig.declare(topic)
    await source_rig.declare(f"{topic}2")
    source = opened(stack, source_rig.source("c", topic, f"{topic}2"))
    with pytest.raises(BrokerUnavailable, match="several streams"):
        await source.receive(1, GLANCE)


async def test_nats_says_how_to_create_a_stream_that_is_not_there(topic: str, stack: AsyncExitStack) -> None:
    source = opened(stack, NatsSourceRig().source("c", topic, stream=topic))
    with pytest.raises(BrokerUnavailable, match=rf"no stream {topic}; \?declare=true&subjects=SUBJECTS creates it"):
        await source.receive(1, GLANCE)


async def test_redis_receives_from_many_streams_and_leaves_nothing_behind(topic: str, stack: AsyncExitStack) -> None:
    source_rig = RedisSourceRig()
    source = opened(stack, source_rig.source("c", "a", "b", prefix=f"{topic}:", group="g"))
    assert await source.receive(10, GLANCE) == []
    messages = await sent(source_rig, *["a", "b"] * 10, prefix=f"{topic}:")
    received = await receive(source, 20, most=3)
    assert sorted(ids(received)) == sorted(messages)
    assert {one.message.topic for one in received} == {"a", "b"}
    await source.acknowledge(received[5:])
    await source.close()
    async with redis.Redis(port=source_rig.rig.server.port) as client:
        [returned] = await client.xinfo_consumers(f"{topic}:a", "g")
        assert returned["name"] == b"returned"
    second = opened(stack, source_rig.source("c", "a", "b", prefix=f"{topic}:", group="g"))
    assert set(ids(await receive(second, 5))) == set(ids(received[:5]))


async def test_redis_does_not_mind_entries_that_were_cut_off(topic: str, stack: AsyncExitStack) -> None:
    source_rig = RedisSourceRig()
    first = opened(stack, source_rig.source("c", topic))
    assert await first.receive(1, GLANCE) == []
    await sent(source_rig, topic, topic)
    assert len(await receive(first, 2)) == 2
    async with redis.Redis(port=source_rig.rig.server.port) as client:
        await client.xtrim(topic, maxlen=1)
    await first.close()
    assert len(await receive(opened(stack, source_rig.source("c", topic)), 1)) == 1


async def test_rabbitmq_declares_a_queue_and_binds_it_by_patterns(topic: str, stack: AsyncExitStack) -> None:
    source_rig = RabbitSourceRig()
    options = {"exchange": f"e{topic}", "declare": "true"}
    source = opened(stack, source_rig.source(f"c{topic}", "orders.*", "payments.done", **options))
    assert await source.receive(10, GLANCE) == []
    topics = ["orders.a", "orders.a.b", "payments.done"]
    messages = await sent(source_rig, *topics, **options)
    await sent(source_rig, "orders", "payments.open", **options)
    assert [one.message.topic for one in await receive(source, 3)] == topics
    assert await source.receive(10, GLANCE) == []
    await source.close()
    other = opened(stack, source_rig.source("another", "anything", queue=f"c{topic}"))
    assert sorted(ids(await receive(other, 3))) == sorted(messages)


async def test_rabbitmq_says_that_its_queue_was_deleted(topic: str, stack: AsyncExitStack) -> None:
    source_rig = RabbitSourceRig()
    await source_rig.declare(topic)
    source = opened(stack, source_rig.source("c", topic))
    assert await source.receive(10, GLANCE) == []
    async with await aio_pika.connect(port=source_rig.rig.server.port) as connection:
        channel = await connection.channel()
        await channel.queue_delete(topic)
    with pytest.raises(BrokerUnavailable, match=r"queue was deleted|no queue"):
        await source.receive(10, 20.0)


async def test_kafka_subscribes_by_pattern_and_puts_back_in_order(topic: str, stack: AsyncExitStack) -> None:
    source_rig = KafkaSourceRig()
    await source_rig.declare(f"{topic}.a")
    await source_rig.declare(f"{topic}.b")
    messages = await sent(source_rig, f"{topic}.a", f"{topic}.b")
    source = opened(stack, source_rig.source("c", f"{topic}.*", group=f"g{topic}"))
    assert sorted(ids(await consume(source, set(messages)))) == sorted(messages)
    broker = source_rig.broker()
    ordered = [Message.new(f"{topic}.a", {"n": n}, key="k") for n in range(10)]
    await broker.publish(ordered, 10.0)
    await broker.close()
    received = await receive(source, 10)
    await source.give_back(received[4:6])
    await source.acknowledge(received[:4])
    again = await receive(source, 6)
    assert ids(again) == [str(one.id) for one in ordered[4:]]


def test_memory_wakes_a_source_in_another_thread() -> None:
    broker = MemoryBroker()
    found: list[str] = []
    waiting = threading.Event()

    async def wait() -> None:
        source = MemorySource(broker, "c", ["t*"])
        asyncio.get_running_loop().call_later(0.01, waiting.set)
        found.extend(ids(await source.receive(10, 20.0)))

    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    assert waiting.wait(10)
    message = Message.new(f"t{uuid4().hex}", "a")
    asyncio.run(broker.publish([Message.new("other", "a"), message], 1.0))
    thread.join(10)
    assert found == [str(message.id)]


async def test_memory_gives_every_consumer_every_message() -> None:
    broker = MemoryBroker()
    messages = [Message.new("t", {"n": n}) for n in range(3)]
    await broker.publish(messages, 1.0)
    for name in ("billing", "shipping"):
        source = MemorySource(broker, name, ["t"])
        received = await source.receive(10, 0)
        assert ids(received) == [str(message.id) for message in messages]
        await source.give_back([received[2], received[0]])
        assert ids(await source.receive(10, 0)) == [received[0].message.id, received[2].message.id]


async def send_first(source_rig: ServerSourceRig, topic: str, body: bytes) -> None:
    """Send what is no event, and has no id of its sender's, to the first place of a stream that is made for it."""
    if isinstance(source_rig, NatsSourceRig):
        await source_rig.declare(topic)
        await source_rig.send_plain(topic, body, {})
        return
    async with redis.Redis(port=source_rig.rig.server.port) as client:
        await client.xadd(topic, {"data": body}, id="1-1")


async def remove(source_rig: ServerSourceRig, topic: str) -> None:
    if isinstance(source_rig, NatsSourceRig):
        connection = await nats.connect(f"nats://127.0.0.1:{source_rig.rig.server.port}")
        await connection.jetstream().delete_stream(topic)
        await connection.close()
        return
    async with redis.Redis(port=source_rig.rig.server.port) as client:
        await client.delete(topic)


@pytest.mark.parametrize("kind", [NatsSourceRig, RedisSourceRig], ids=lambda kind: kind.name)
async def test_I_5_what_comes_to_the_same_place_of_a_stream_made_anew_is_a_new_message(
    kind: type[ServerSourceRig], topic: str, stack: AsyncExitStack
) -> None:
    source_rig = kind()
    seen: list[str] = []
    for body in (b"first", b"second"):
        await send_first(source_rig, topic, body)
        source = opened(stack, source_rig.source(f"c{topic}", topic, **source_rig.hasty))
        [one] = await receive(source, 1)
        await source.give_back([one])
        [again] = await receive(source, 1)
        assert (again.message.payload, again.message.dedup_id) == (body, one.message.dedup_id)
        seen.append(one.message.dedup_id)
        await source.close()
        await remove(source_rig, topic)
    first, second = (dedup_id.split(":")[:2] for dedup_id in seen)
    assert first == second
    assert seen[0] != seen[1]


@pytest.mark.parametrize("kind", [NatsSourceRig, RedisSourceRig], ids=lambda kind: kind.name)
async def test_I_5_what_was_of_a_stream_that_is_gone_does_not_settle_what_is_now_in_its_place(
    kind: type[ServerSourceRig], topic: str, stack: AsyncExitStack
) -> None:
    source_rig = kind()
    await send_first(source_rig, topic, b"first")
    source = opened(stack, source_rig.source(f"c{topic}", topic, **source_rig.hasty))
    [first] = await receive(source, 1)
    await remove(source_rig, topic)
    await send_first(source_rig, topic, b"second")
    [second] = await receive(source, 1)
    await acknowledge(source, [first])
    await source.close()  # with the second undone, as when a consumer stops
    [again] = await receive(opened(stack, source_rig.source(f"c{topic}", topic, **source_rig.hasty)), 1)
    assert again.message.dedup_id == second.message.dedup_id != first.message.dedup_id


class Broken(dict[str, None]):
    def __iter__(self) -> Any:
        flaw()


def flaw(*_: object) -> NoReturn:
    raise ZeroDivisionError("a flaw")


async def until_it_raises(source: Source) -> None:
    async with asyncio.timeout(20):
        while not await source.receive(1, GLANCE):
            pass


@pytest.mark.parametrize("kind", SERVERS, ids=lambda kind: kind.name)
async def test_a_thread_or_task_of_a_source_that_ends_is_said_and_begins_anew(
    kind: type[ServerSourceRig], topic: str, stack: AsyncExitStack
) -> None:
    source_rig = kind()
    await source_rig.declare(topic)
    source: Any = opened(stack, source_rig.source(f"c{topic}", topic, **source_rig.hasty))
    assert await source.receive(1, GLANCE) == []
    expected: list[str] = []
    match source_rig:
        case KafkaSourceRig():
            source._member._run_commands = flaw
        case NatsSourceRig():
            source._connection.out = Broken()
        case RedisSourceRig():
            source._claim = flaw
        case _:
            source._connection._arrived = flaw
            expected = await sent(source_rig, topic)
    with pytest.raises(BrokerUnavailable, match="flaw"):
        await until_it_raises(source)
    if kind is RedisSourceRig:
        del source._claim
    expected = expected or await sent(source_rig, topic)
    assert ids(await receive(source, 1)) == expected
