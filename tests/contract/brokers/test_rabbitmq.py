"""What is RabbitMQ's own."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING
from urllib.parse import quote

import aio_pika
import pytest

from postroom import Message
from postroom.brokers.port import ACCEPTED, Accepted, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.rabbitmq import UNROUTABLE, RabbitBroker
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Failure, Reason
from postroom.sources.rabbitmq import RabbitSource
from tests.services.databases import need
from tests.services.ports import free_port
from tests.services.rabbitmq import LARGEST, RabbitMQ

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aio_pika.abc import AbstractChannel


@pytest.fixture(scope="module")
def place() -> str:
    return f"127.0.0.1:{need(RabbitMQ).port}"


@pytest.fixture
async def channel(place: str) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(f"amqp://{place}") as connection:
        yield await connection.channel()


async def published(url: str, *messages: Message) -> list[Outcome]:
    broker = RabbitBroker(url)
    try:
        return list(await broker.publish(messages, 20.0))
    finally:
        await broker.close()


async def test_a_queue_is_declared_where_there_is_none(place: str, channel: AbstractChannel) -> None:
    await channel.declare_queue("classic", durable=True)
    for _ in range(2):
        outcomes = await published(
            f"amqp://{place}?declare=true", Message.new("quorum", "a"), Message.new("classic", "b")
        )
        assert outcomes == [ACCEPTED] * 2
    same = await channel.declare_queue("quorum", durable=True, arguments={"x-queue-type": "quorum"})
    assert same.declaration_result.message_count == 2


async def test_messages_go_through_an_exchange_and_are_persistent(place: str, channel: AbstractChannel) -> None:
    url = f"amqp://guest:guest@{place}/%2F?exchange=events&declare=true"
    assert await published(url, Message.new("orders.created", "early")) == [UNROUTABLE]
    queue = await channel.declare_queue("orders", durable=True)
    await queue.bind("events", "orders.*")
    message, other = Message.new("orders.created", None), Message.new("payments", "a")
    sent, lost = await published(url, message, other)
    assert (sent, lost) == (ACCEPTED, UNROUTABLE)
    found = await queue.get(no_ack=True)
    assert (found.message_id, found.delivery_mode, found.body) == (str(message.id), 2, b"")


async def test_a_missing_exchange_burns_no_attempt(place: str) -> None:
    outcomes = await published(f"amqp://{place}?exchange=missing", *(Message.new("t", "a") for _ in range(2)))
    assert {type(outcome) for outcome in outcomes} == {Unreached}
    assert "no exchange 'missing'" in str(outcomes[0])


async def test_without_an_exchange_a_missing_queue_burns_no_attempt(place: str) -> None:
    assert await published(f"amqp://{place}", Message.new("no-such-queue", "a")) == [
        TargetUnavailable("there is no queue of this name; ?declare=true creates it")
    ]


async def test_what_the_server_finds_too_large_is_dead_and_the_rest_is_sent_again(
    place: str, channel: AbstractChannel
) -> None:
    await channel.declare_queue("sizes", durable=True)
    before, large, after = await published(
        f"amqp://{place}", *(Message.new("sizes", payload) for payload in ("a", b"x" * (LARGEST + 1), "b"))
    )
    assert isinstance(large, Refused)
    assert (large.code, large.failure) == (Reason.MESSAGE_TOO_LARGE, Failure.PERMANENT)
    assert {type(before), type(after)} <= {Accepted, Unreached}
    assert isinstance(after, Unreached)


async def test_hosts_that_are_not_there_are_passed_by(place: str, channel: AbstractChannel) -> None:
    await channel.declare_queue("hosts", durable=True)
    url = f"amqp://127.0.0.1:{free_port()},{place}"
    assert await published(url, Message.new("hosts", "a")) == [ACCEPTED]
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        broker = RabbitBroker(f"amqp://127.0.0.1:{deaf.getsockname()[1]},{place}")
        with pytest.raises(BrokerUnavailable, match="does not answer"):
            await broker.publish([Message.new("hosts", "b")], 0.3)
        assert await broker.publish([Message.new("hosts", "b")], 20.0) == [ACCEPTED]
        await broker.close()


async def test_a_full_queue_burns_no_attempt(place: str, channel: AbstractChannel) -> None:
    await channel.declare_queue("full", durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    outcomes = [await published(f"amqp://{place}", Message.new("full", "a")) for _ in range(3)]
    assert outcomes[0] == [ACCEPTED]
    assert isinstance(outcomes[2][0], TargetUnavailable)


async def test_names_that_amqp_cannot_hold_are_refused(place: str) -> None:
    topic, header = await published(
        f"amqp://{place}", Message.new("ü" * 200, "a"), Message.new("t", "a", headers={"ü" * 200: "a"})
    )
    assert isinstance(topic, Refused)
    assert isinstance(header, Refused)
    assert (topic.code, header.code) == (Reason.INVALID_TARGET, "INVALID_HEADER")
    assert topic.failure == header.failure == Failure.PERMANENT


async def test_queues_have_any_name_and_one_that_cannot_be_harms_no_other(place: str, channel: AbstractChannel) -> None:
    """Messages for it are told alone, whatever it is that the server or the protocol does not take."""
    locked = await channel.declare_queue("locked", exclusive=True)  # by this connection: others may not even look
    topics = ["größe", "orders.*", "a > b", "#", "plain", "ü" * 200, "amq.gen-a", locked.name]
    messages = [Message.new(topic, "a") for topic in topics]
    *fine, long, own, taken = await published(f"amqp://{place}?declare=true", *messages)
    assert fine == [ACCEPTED] * 5
    assert isinstance(long, Refused)
    assert isinstance(own, Refused)
    assert {long.code, own.code} == {Reason.INVALID_TARGET}
    assert isinstance(taken, TargetUnavailable)
    assert "RESOURCE_LOCKED" in taken.reason
    for topic, message in zip(topics[:5], messages, strict=False):
        source = RabbitSource(f"amqp://{place}?queue={quote(topic)}", "test", ["any"])
        [received] = await source.receive(1, 10.0)
        await source.acknowledge([received])
        await source.close()
        assert received.message.id == str(message.id)


async def test_headers_that_begin_with_x_arrive_as_they_are(place: str, channel: AbstractChannel) -> None:
    queue = await channel.declare_queue("headers", durable=True)
    other = await channel.declare_queue("other", durable=True)
    headers = {"x-tenant": "7", "x-death": "mine", "CC": "other", "BCC": "other"}
    assert await published(f"amqp://{place}", Message.new("headers", "a", headers=headers)) == [ACCEPTED]
    found = await queue.get(no_ack=True)
    assert found.headers["x-tenant"] == "7"
    assert not {"x-death", "CC", "BCC"} & set(found.headers)
    assert await other.get(no_ack=True, fail=False) is None


async def test_headers_that_do_not_fit_into_a_frame_are_refused(place: str, channel: AbstractChannel) -> None:
    await channel.declare_queue("frames", durable=True)
    fits, large = (Message.new("frames", "a", headers={"a": "v" * size}) for size in (100_000, 200_000))
    first, second, third = await published(f"amqp://{place}", fits, large, Message.new("frames", "b"))
    assert (first, third) == (ACCEPTED, ACCEPTED)
    assert isinstance(second, Refused)
    assert (second.code, second.failure) == (Reason.MESSAGE_TOO_LARGE, Failure.PERMANENT)
    assert "bytes of headers; the server takes frames of 131072" in second.message


async def test_after_a_refusal_comes_a_new_connection_and_what_is_under_way_is_not_lost(
    place: str, channel: AbstractChannel
) -> None:
    """A server whose queue had no leader goes on refusing on the old connection; a new one finds the new leader."""
    await channel.declare_queue("no room", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
    await channel.declare_queue("room", durable=True)
    broker = RabbitBroker(f"amqp://{place}")
    assert await broker.publish([Message.new("room", "a")], 20.0) == [ACCEPTED]
    before = broker._connection
    many = [Message.new("room", {"n": n}) for n in range(2000)]
    fine, [refused] = await asyncio.gather(
        broker.publish(many, 20.0), broker.publish([Message.new("no room", "a")], 20.0)
    )
    assert set(fine) == {ACCEPTED}
    assert isinstance(refused, TargetUnavailable)
    assert await broker.publish([Message.new("room", "b")], 20.0) == [ACCEPTED]
    assert broker._connection is not before
    assert before is not None
    assert before.lost
    tasks = before._tasks
    await broker.close()
    assert all(task.done() for task in tasks)


async def test_a_routing_key_that_we_may_not_use_is_told_alone(place: str, channel: AbstractChannel) -> None:
    """The server ends the channel for one of them; the rest is sent again, and gets through."""
    await channel.declare_exchange("guarded", "topic", durable=True)
    queue = await channel.declare_queue("guarded", durable=True)
    await queue.bind("guarded", "#")
    server = need(RabbitMQ)
    await asyncio.to_thread(server.control, "set_topic_permissions", "guest", "guarded", "^ok", ".*")
    broker = RabbitBroker(f"amqp://{place}?exchange=guarded")
    try:
        messages = [Message.new("ok" if n != 5 else "it's.ours", {"n": n}) for n in range(10)]
        outcomes = await broker.publish(messages, 20.0)
        assert isinstance(outcomes[5], TargetUnavailable)
        assert "it's.ours" in outcomes[5].reason
        assert {type(one) for one in [*outcomes[:5], *outcomes[6:]]} <= {Accepted, Unreached}
        assert set(await broker.publish([*messages[:5], *messages[6:]], 20.0)) == {ACCEPTED}
    finally:
        await broker.close()
        await asyncio.to_thread(server.control, "clear_topic_permissions", "guest", "guarded")


async def test_a_wrong_password_is_not_shown(place: str) -> None:
    with pytest.raises(BrokerUnavailable, match="ACCESS_REFUSED") as caught:
        await published(f"amqp://guest:secret@{place}", Message.new("t", "a"))
    assert "secret" not in str(caught.value)
