"""Keyed requests while the ledger's database is killed and comes back."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from tests.acceptance.keyed_shop import KEY, KeyedShop
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A server that the test may kill."""
    with closing(need(PostgreSQL, PostgreSQL())) as server:
        server.create_database("shop")
        with closing(Service(server.url("shop"))):
            pass
        yield server


async def test_no_keyed_request_runs_while_the_database_is_away_and_all_do_when_it_is_back(server: PostgreSQL) -> None:
    shop = KeyedShop(server.url("shop"))
    async with shop.client() as client:
        assert (await client.post("/orders", headers=KEY)).json() == {"order": 1}
        await asyncio.to_thread(server.stop, kill=True)
        for key in ("7f9c", "other"):
            away = await client.post("/orders", headers={"idempotency-key": key})
            assert (away.status_code, away.json()["type"]) == (503, "urn:postroom:idempotency:ledger-unavailable")
        assert (await client.post("/orders")).json() == {"order": 2}
        await asyncio.to_thread(server.start)
        assert (await client.post("/orders", headers=KEY)).json() == {"order": 1}
        assert (await client.post("/orders", headers={"idempotency-key": "other"})).json() == {"order": 3}


async def test_a_response_is_recorded_as_soon_as_the_database_is_back(server: PostgreSQL) -> None:
    shop = KeyedShop(server.url("shop"))
    shop.may_go_on.clear()
    with patch("postroom.web.flow.RETRIES", (0.2,) * 100):
        async with shop.client() as client:
            running = asyncio.ensure_future(client.post("/orders", headers=KEY))
            await wait_for(lambda: shop.begun)
            await asyncio.to_thread(server.stop, kill=True)
            shop.may_go_on.set()
            await wait_for(lambda: shop.effects)
            await asyncio.to_thread(server.start)
            assert (await running).json() == {"order": 1}
            again = await client.post("/orders", headers=KEY)
    assert (again.json(), again.headers["idempotent-replayed"]) == ({"order": 1}, "true")
    assert len(shop.effects) == 1
