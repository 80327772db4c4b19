"""Handlers whose transaction ends only after their response was sent, as that of a FastAPI dependency with `yield`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator  # noqa: TC003 - FastAPI reads the annotations
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Annotated

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from starlette.middleware.gzip import GZipMiddleware

from postroom import Outbox, Relay
from postroom.store.connections.urls import resolve
from postroom.web import IdempotencyMiddleware
from tests.acceptance.keyed_shop import KEY, served
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import httpx

    from tests.conftest import FreshDatabase

EACH = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
SERVERS = pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
PATIENCE = 60.0
AT_ONCE = 8


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        service.execute("CREATE TABLE bill (item VARCHAR(20))")
        yield service


class Billing:
    """Each request has a transaction, which is committed when the response is on its way."""

    def __init__(self, service: Service, engine: AsyncEngine) -> None:
        self.engine = engine
        self.runs = 0
        self.fails_to_commit = False
        self.app = FastAPI()
        self.app.state.billing = self
        self.app.include_router(router)
        self.app.add_middleware(GZipMiddleware, minimum_size=500)
        self.app.add_middleware(IdempotencyMiddleware, database=service.url, wait_seconds=10)


async def transaction(request: Request) -> AsyncIterator[AsyncConnection]:
    shop: Billing = request.app.state.billing
    shop.runs += 1
    async with shop.engine.connect() as connection:
        yield connection
        if shop.fails_to_commit:
            raise RuntimeError("a constraint that is checked at the end")
        await connection.commit()


router = APIRouter()
Transaction = Annotated[AsyncConnection, Depends(transaction)]


@router.post("/joined")
async def joined(request: Request, connection: Transaction, size: int = 1) -> JSONResponse:
    await connection.execute(text("INSERT INTO bill VALUES ('book')"))
    answer = JSONResponse({"item": "book" * size}, 201, headers={"set-cookie": "a=b"})
    await request.scope["postroom.idempotency"].afinish(connection, answer)
    return answer


@router.post("/rolled-back")
async def rolled_back(request: Request, connection: Transaction) -> JSONResponse:
    await request.scope["postroom.idempotency"].afinish(connection, JSONResponse({"item": "book"}))
    await connection.rollback()
    return JSONResponse({"item": "one that is there already"})


@router.post("/plain")
async def plain(connection: Transaction) -> dict[str, str]:
    await connection.execute(text("INSERT INTO bill VALUES ('book')"))
    return {"item": "book"}


@router.post("/later")
async def later(request: Request, connection: Transaction) -> JSONResponse:
    await Outbox().aadd(connection, "bills", {"item": "book"}, ledger=request.scope["postroom.idempotency"].entry)
    return JSONResponse({"item": "book"}, 202)


@router.post("/nothing")
async def nothing() -> None:
    pass


async def connected(client: httpx.AsyncClient) -> None:
    """Return when the ledger has its connections: on a busy machine they may take longer than a request waits."""
    keys = [{"idempotency-key": f"early {number}"} for number in range(AT_ONCE)]
    while 503 in {answer.status_code for answer in await posted(client, "/nothing", keys)}:
        pass


async def posted(client: httpx.AsyncClient, path: str, keys: Sequence[dict[str, str]]) -> list[httpx.Response]:
    """The answers to requests that are sent together."""
    return await asyncio.gather(*(client.post(path, headers=key) for key in keys))


@asynccontextmanager
async def billing(service: Service) -> AsyncIterator[tuple[Billing, httpx.AsyncClient]]:
    engine = create_async_engine(resolve(service.url, asynchronous=True), pool_size=20)
    shop = Billing(service, engine)
    try:
        async with served(shop.app) as client, asyncio.timeout(PATIENCE):
            await connected(client)
            yield shop, client
    finally:
        await engine.dispose()


def bills(service: Service) -> int:
    return len(service.rows("SELECT item FROM bill"))


@EACH
async def test_K_3_a_response_that_is_recorded_in_an_open_transaction_is_not_waited_for(service: Service) -> None:
    async with billing(service) as (shop, client):
        number_of_keys = 1 if service.url.startswith("sqlite") else AT_ONCE
        keys = [{"idempotency-key": str(number), "authorization": "a"} for number in range(number_of_keys)]
        firsts, again = [await posted(client, "/joined", keys) for _ in range(2)]
        assert {answer.status_code for answer in [*firsts, *again]} == {201}
        assert {answer.headers.get("idempotent-replayed") for answer in firsts} == {None}
        assert {answer.headers.get("idempotent-replayed") for answer in again} == {"true"}
    assert (shop.runs, bills(service)) == (len(keys), len(keys))


@pytest.mark.parametrize("kind", ["postgresql"])
async def test_K_3_the_response_of_one_that_is_left_to_a_message_is_recorded_when_it_has_ended(
    service: Service,
) -> None:
    async with billing(service) as (shop, client):
        answers = [await client.post("/later", headers=KEY) for _ in range(2)]
        assert [(answer.status_code, answer.json()) for answer in answers] == [(202, {"item": "book"})] * 2
        assert (await Relay(service.url, lambda _: {"status": "ok", "number": 7}).run_once()).sent == 1
        assert (await client.post("/later", headers=KEY)).json() == {"number": 7}
    assert shop.runs == 1


@SERVERS
async def test_K_3_nor_where_its_body_was_compressed_on_the_way(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async with billing(service) as (shop, client):
        first = await client.post("/joined?size=500", headers=KEY)
        assert (first.headers["content-encoding"], first.headers["set-cookie"]) == ("gzip", "a=b")
        again = await client.post("/joined?size=500", headers=KEY)
        assert again.json() == first.json()
    assert (shop.runs, bills(service)) == (1, 1)
    assert "could not be recorded" not in caplog.text  # no lock was waited for in vain


@EACH
async def test_K_3_where_the_commit_fails_the_request_runs_again_at_once(service: Service) -> None:
    async with billing(service) as (shop, client):
        shop.fails_to_commit = True
        await client.post("/joined", headers={**KEY, "connection": "close"})  # the server would end it anyway
        shop.fails_to_commit = False
        assert (await client.post("/joined", headers=KEY)).status_code == 201
    assert (shop.runs, bills(service)) == (2, 1)


@EACH
async def test_K_3_what_is_answered_after_a_rollback_is_recorded(service: Service) -> None:
    async with billing(service) as (shop, client):
        answers = [await client.post("/rolled-back", headers=KEY) for _ in range(2)]
        assert [answer.json() for answer in answers] == [{"item": "one that is there already"}] * 2
    assert shop.runs == 1


@EACH
async def test_K_3_a_handler_that_locks_the_whole_database_is_answered_and_recorded_when_it_has_ended(
    service: Service,
) -> None:
    async with billing(service) as (shop, client):
        first = await client.post("/plain", headers=KEY)
        assert (first.status_code, first.json()) == (200, {"item": "book"})
        again = await client.post("/plain", headers=KEY)
        assert (again.json(), again.headers["idempotent-replayed"]) == ({"item": "book"}, "true")
    assert (shop.runs, bills(service)) == (1, 1)
