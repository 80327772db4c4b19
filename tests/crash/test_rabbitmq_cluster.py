"""A RabbitMQ cluster that loses the node which the relay was connected to, and which led the queue."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from postroom import Message
from postroom.brokers.port import ACCEPTED, Outcome, Unreached
from postroom.brokers.rabbitmq import RabbitBroker
from postroom.errors import BrokerUnavailable
from tests.services.databases import need
from tests.services.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PATIENCE = 60
"""Seconds. A node that refuses on an old connection does so until the lost one is back, which it is not here."""


@pytest.fixture
def cluster() -> Iterator[list[RabbitMQ]]:
    first = RabbitMQ()
    nodes = [first, RabbitMQ(first), RabbitMQ(first)]
    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        for node in nodes:
            stack.enter_context(closing(node))
        need(RabbitMQ, first)
        list(threads.map(lambda node: need(RabbitMQ, node), nodes[1:]))
        first.control("await_online_nodes", "3")
        yield nodes


async def test_R_5_a_new_leader_is_found_while_the_old_one_is_gone(cluster: list[RabbitMQ]) -> None:
    places = ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    broker = RabbitBroker(f"amqp://{places}?declare=true")
    assert await published(broker) == [ACCEPTED]  # by way of the first, which so becomes the leader
    killing = asyncio.create_task(asyncio.to_thread(cluster[0].stop, kill=True))
    async with asyncio.timeout(PATIENCE):
        while await published(broker) == [ACCEPTED]:  # so that it connects anew before there is a new leader
            pass
        while await published(broker) != [ACCEPTED]:
            pass
    await killing
    await broker.close()


async def published(broker: RabbitBroker) -> Sequence[Outcome]:
    try:
        return await broker.publish([Message.new("orders", "a")], 5.0)
    except BrokerUnavailable as error:
        return [Unreached(str(error))]
