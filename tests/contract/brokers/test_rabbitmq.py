"""What is RabbitMQ's own."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import aio_pika
import pytest

from postroom import Message
from postroom.brokers.port import ACCEPTED, Accepted, Outcome, Refused, TargetUnavailable, Unreached
from postroom.brokers.rabbitmq import UNROUTABLE, RabbitBroker
from postroom.errors import BrokerUnavailable
from postroom.rules.failures import Failure, Reason
from tests.services.databases import need
from tests.services.rabbitmq import LARGEST, RabbitMQ
from tests.services.service import free_port

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
        TargetUnavailable("there is no queue of this name; ?declare=true makes it")
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


async def test_a_wrong_password_is_not_shown(place: str) -> None:
    with pytest.raises(BrokerUnavailable, match="ACCESS_REFUSED") as caught:
        await published(f"amqp://guest:secret@{place}", Message.new("t", "a"))
    assert "secret" not in str(caught.value)
