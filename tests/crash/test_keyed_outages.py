"""Keyed requests while the ledger's database is killed, hangs or loses its answers, and comes back."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from postroom.web.wsgi import IdempotencyMiddleware
from tests.acceptance.keyed_shop import KEY, KeyedShop
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.crash.wire import Wire
from tests.services.databases import need
from tests.services.postgresql import PostgreSQL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conftest import FreshDatabase

SERVERS = pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
LONGEST = 15.0
"""Seconds, on a slow machine, for what takes five at most."""


@pytest.fixture
def server() -> Iterator[PostgreSQL]:
    """A server that the test may kill."""
    with closing(need(PostgreSQL, PostgreSQL())) as server:
        server.create_database("shop")
        with closing(Service(server.url("shop"))):
            pass
        yield server


@pytest.fixture
def wire(kind: str, fresh_database: FreshDatabase) -> Iterator[Wire]:
    """The way to a database with its tables."""
    url = fresh_database(kind)
    with closing(Service(url)), closing(Wire(url)) as wire:
        yield wire


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
    with (
        patch("postroom.web.idempotency.keyed_flow.RETRIES", (0.2,) * 100),
        patch("postroom.web.idempotency.keyed_flow.RECORDING", 60.0),
    ):
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


@SERVERS
async def test_no_keyed_request_runs_while_the_database_hangs(wire: Wire) -> None:
    """Neither in a shop that was connected to it nor in one that was not."""
    old, new = KeyedShop(wire.url), KeyedShop(wire.url)
    async with old.client() as to_old, new.client() as to_new:
        assert (await to_old.post("/orders", headers={"idempotency-key": "warm"})).status_code == 201
        old.effects.clear()
        with wire.held():
            async with asyncio.timeout(LONGEST):
                waiting = [
                    client.post("/orders", headers={"idempotency-key": f"{number}"})
                    for client in (to_old, to_new)
                    for number in range(8)
                ]
                answers = await asyncio.gather(*waiting)
        assert [answer.status_code for answer in answers] == [503] * 16
        for shop, client in ((old, to_old), (new, to_new)):
            assert (await client.post("/orders", headers={"idempotency-key": f"later {id(shop)}"})).status_code == 201
            assert len(shop.effects) == 1


@SERVERS
async def test_a_response_is_given_unrecorded_while_the_database_hangs(wire: Wire) -> None:
    shop = KeyedShop(wire.url)
    shop.may_go_on.clear()
    async with shop.client() as client:
        running = asyncio.ensure_future(client.post("/orders", headers=KEY))
        await wait_for(lambda: shop.begun)
        with wire.held():
            shop.may_go_on.set()
            async with asyncio.timeout(LONGEST):
                assert (await running).json() == {"order": 1}
        assert (await client.post("/orders", headers={"idempotency-key": "other"})).json() == {"order": 2}


FATAL = {"postgresql": b"%2Forders", "mariadb": b"COMMIT"}
"""What is in the statement that begins or ends a request, and in nothing else."""


@SERVERS
async def test_a_request_that_was_begun_runs_though_the_answer_to_that_was_lost(wire: Wire, kind: str) -> None:
    shop = KeyedShop(wire.url)
    async with shop.client() as client:
        assert (await client.post("/orders", headers={"idempotency-key": "warm"})).status_code == 201
        wire.lose_answer_to(FATAL[kind])
        assert (await client.post("/orders", headers=KEY)).json() == {"order": 2}
        assert (await client.post("/orders", headers=KEY)).json() == {"order": 2}
    assert (wire.lost, len(shop.effects)) == (1, 2)


@SERVERS
async def test_a_response_that_was_recorded_is_the_clients_own_though_the_answer_to_that_was_lost(
    wire: Wire, kind: str
) -> None:
    shop = KeyedShop(wire.url)
    shop.may_go_on.clear()
    async with shop.client() as client:
        running = asyncio.ensure_future(client.post("/orders", headers=KEY))
        await wait_for(lambda: shop.begun)
        wire.lose_answer_to(FATAL[kind])
        shop.may_go_on.set()
        first = await running
        assert first.headers["set-cookie"] == "theme=dark"
        assert "idempotent-replayed" not in first.headers
        assert (await client.post("/orders", headers=KEY)).headers["idempotent-replayed"] == "true"
    assert (wire.lost, len(shop.effects)) == (1, 1)


@SERVERS
async def test_connections_that_were_dropped_for_good_leave_nothing_behind(wire: Wire) -> None:
    shop = KeyedShop(wire.url)
    before = asyncio.all_tasks()
    async with shop.client() as client:
        with wire.held():
            assert (await client.post("/orders", headers=KEY)).status_code == 503
            await wait_for(lambda: asyncio.all_tasks() == before)


@SERVERS
def test_threads_do_not_wait_for_a_database_that_hangs_either(wire: Wire) -> None:
    def app(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"done"]

    def ask(middleware: IdempotencyMiddleware, key: str) -> None:
        environ = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": key, "HTTP_AUTHORIZATION": "a"}
        told: list[str] = []
        list(middleware({**environ, "wsgi.input": io.BytesIO()}, lambda status, _: told.append(status)))
        answers[key] = told[0]

    answers: dict[str, str] = {}
    with (
        closing(IdempotencyMiddleware(app, database=wire.url)) as old,
        closing(IdempotencyMiddleware(app, database=wire.url)) as new,
    ):
        ask(old, "warm")
        with wire.held(), ExitStack() as ends:
            started = time.monotonic()
            for number in range(16):
                thread = threading.Thread(target=ask, args=[old if number % 2 else new, f"{number}"])
                thread.start()
                ends.callback(thread.join)
        assert time.monotonic() - started < LONGEST
        assert {answers[f"{number}"] for number in range(16)} == {"503 Service Unavailable"}
        for name, middleware in (("old", old), ("new", new)):
            ask(middleware, name)
            assert answers[name] == "200 OK"
    assert_gone("postroom-ledger")


def assert_gone(name: str) -> None:
    """No thread of this name is left."""
    deadline = time.monotonic() + LONGEST
    while any(thread.name.startswith(name) for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
