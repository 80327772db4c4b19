"""Relays in situations that once went wrong."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from postroom import Message, Relay
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

PATIENCE = 60


@pytest.fixture
def service(kind: str, fresh_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(fresh_database(kind))) as service:
        yield service


every_database = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
on_sqlite = pytest.mark.parametrize("kind", ["sqlite"])


@on_sqlite
@pytest.mark.parametrize("key", [None, "k"])
async def test_R_2_a_backlog_that_takes_longer_than_one_send_is_sent_once(service: Service, key: str | None) -> None:
    """Each call is quick enough, all of them together are not: none has failed for that."""
    count = 60
    service.commit(*[Message.new("t", n, key=key and f"{key}{n % 20}") for n in range(count)])
    calls: list[int] = []

    async def publish(message: Message) -> None:
        await asyncio.sleep(0.1)
        calls.append(message.json())

    relay = Relay(service.url, publish, concurrency=2, broker_timeout_ms=200)
    report = await asyncio.wait_for(relay.run_once(), PATIENCE)
    assert (report.sent, report.retried) == (count, 0)
    assert sorted(calls) == list(range(count))
