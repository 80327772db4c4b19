"""Typed events from `publish` to the handler, by relay and consumer."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from postroom import Consumer, Outbox, Relay, event, upcaster
from postroom.brokers.memory import MemoryBroker
from tests.acceptance.service import Service
from tests.services.databases import KINDS

if TYPE_CHECKING:
    from tests.conftest import FreshDatabase


@event("orders.created", key="order_id")
@dataclass
class OrderCreated:
    order_id: int
    cents: int


@event("orders.created", type="OrderCreated", version=2)
@dataclass
class Amount:
    order_id: int
    amount: str


@upcaster(Amount, since=1)
def with_amount(data: Any) -> Any:
    return {"order_id": data["order_id"], "amount": f"{data['cents']} cents"}


@event("orders.created", type="OrderCreated", version=3)
@dataclass
class Later:
    order_id: int


@event("orders.created", type="OrderCreated")
@dataclass
class Misfit:
    cents: str


@pytest.mark.parametrize("kind", KINDS)
async def test_events_reach_the_handlers_of_their_class_and_what_cannot_be_read_is_a_dead_letter(
    kind: str, ready_database: FreshDatabase
) -> None:
    broker, outbox = MemoryBroker(), Outbox()
    with closing(Service(ready_database(kind))) as service:
        with service.engine.begin() as connection:
            for one in (OrderCreated(1, 5), Amount(2, "7 cents"), Later(3), Misfit("x")):
                outbox.publish(connection, one)
        if kind == "postgresql":
            native = await asyncpg.connect(service.url)
            async with native.transaction():
                await outbox.apublish(native, OrderCreated(4, 9), key="other")
            await native.close()
        await Relay(service.url, broker).run_until_empty()
        consumer = Consumer("billing", broker, database=service.url)
        got: list[Amount] = []

        @consumer.handler()
        def bill(created: Amount) -> None:
            got.append(created)

        await consumer.run_once()
        async_one = [Amount(4, "9 cents")] if kind == "postgresql" else []
        assert sorted(got, key=lambda one: one.order_id) == [Amount(1, "5 cents"), Amount(2, "7 cents"), *async_one]
        letters = {letter.error_code: letter.error_message for letter in service.dead()}
        assert letters.keys() == {"UNKNOWN_VERSION", "UNDECODABLE_PAYLOAD"}
        assert "upgrade it, then requeue" in letters["UNKNOWN_VERSION"]
        assert "from version 1 raised KeyError" in letters["UNDECODABLE_PAYLOAD"]
