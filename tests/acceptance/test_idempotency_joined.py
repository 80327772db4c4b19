"""Handlers that record their response in their own transaction, so that effect and response commit together."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from postroom import Message, Outbox, Relay, RetryPolicy
from postroom.errors import InvalidEntry, LeaseLost
from postroom.idempotency import Ledger, Start
from postroom.idempotency import Response as Answer
from postroom.store.connections.urls import resolve
from postroom.web import IdempotencyMiddleware, KeyedRequest
from tests.acceptance.keyed_shop import KEY
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.conftest import FreshDatabase

    Handler = Callable[[KeyedRequest], Awaitable[Response]]

pytestmark = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        service.execute("CREATE TABLE bill (item VARCHAR(20))")
        yield service


@asynccontextmanager
async def requests_to(
    service: Service, handler: Handler, wrapped_in: Callable[[Any], Any] = lambda app: app, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Requests to an application of this handler, and of what it is wrapped in behind the middleware."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answer = await handler(scope["postroom.idempotency"])
        await answer(scope, receive, send)

    middleware = IdempotencyMiddleware(wrapped_in(app), database=service.url, **options)
    transport = httpx.ASGITransport(middleware, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop", headers=KEY) as client:
        yield client
    await middleware.close()


def bills(service: Service) -> int:
    return len(service.rows("SELECT item FROM bill"))


async def test_K_3_effect_and_response_commit_together(service: Service) -> None:
    seen: list[KeyedRequest] = []

    async def handler(keyed: KeyedRequest) -> Response:
        seen.append(keyed)
        answer = JSONResponse({"item": "book"}, 201, headers={"x-kind": "bill", "set-cookie": "a=b"})
        with service.engine.begin() as connection:
            connection.execute(text("INSERT INTO bill VALUES ('book')"))
            keyed.finish(connection, answer)
        return answer

    async with requests_to(service, handler) as client:
        first, again = await client.post("/"), await client.post("/")
    assert first.json() == again.json() == {"item": "book"}
    assert first.headers["set-cookie"] == "a=b"
    assert "idempotent-replayed" not in first.headers
    assert again.headers["x-kind"] == "bill"
    assert again.headers["idempotent-replayed"] == "true"
    assert bills(service) == 1
    [keyed] = seen
    assert (keyed.key, keyed.start, keyed.taken_over) == ("7f9c", Start.NEW, False)


def handing_over(service: Service, *, by_hand: bool = True, then: Exception | None = None) -> Handler:
    """A handler whose work is a message; when it has committed, it raises what is given."""

    async def handler(keyed: KeyedRequest) -> Response:
        answer = JSONResponse({"status": "pending"}, 202, headers={"location": "/orders/7f9c"})
        with service.engine.begin() as connection:
            Outbox().add(connection, "orders", {"item": "book"}, ledger=keyed.entry)
            if by_hand:
                keyed.hand_over(connection, answer)
        if then is not None:
            raise then
        return answer

    return handler


@pytest.mark.parametrize("by_hand", [True, False], ids=["hand_over", "add alone"])
async def test_K_3_work_that_is_a_message_is_pending_until_the_relay_has_done_it(
    service: Service,
    by_hand: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async with requests_to(service, handing_over(service, by_hand=by_hand)) as client:
        first, again = await client.post("/"), await client.post("/")
        assert (first.status_code, again.status_code) == (202, 202)
        assert again.headers["location"] == "/orders/7f9c"
        assert again.headers["idempotent-replayed"] == "true"

        def fail(_message: Message) -> None:
            raise TimeoutError

        assert (await Relay(service.url, fail, policy=RetryPolicy.table([0], max_attempts=1)).run_once()).dead == 1
        assert (await client.post("/")).status_code == 504
        service.requeue(*service.dead())
        meanwhile = await client.post("/")
        assert (meanwhile.status_code, meanwhile.headers["retry-after"]) == (409, "2")
        assert (await Relay(service.url, lambda _: {"status": "ok", "number": 7}).run_once()).sent == 1
        done = await client.post("/")
        assert (done.status_code, done.json()) == (200, {"number": 7})
    assert service.status().sent == 1


async def test_K_3_a_handler_that_raises_after_it_has_handed_over_does_not_run_again(service: Service) -> None:
    async with requests_to(service, handing_over(service, then=RuntimeError("late"))) as client:
        assert (await client.post("/")).status_code == 500
        assert (await client.post("/")).status_code == 202
    assert service.status().pending == 1


async def test_K_3_a_long_run_keeps_what_it_has_handed_over(service: Service) -> None:
    async def handler(keyed: KeyedRequest) -> Response:
        answer = await handing_over(service)(keyed)
        await asyncio.sleep(1.2)  # two renewals, which would shorten what was handed over
        return answer

    async with requests_to(service, handler, lease_seconds=1) as client:
        assert (await client.post("/")).status_code == 202
    with service.engine.begin() as connection:
        found = connection.execute(text(f"SELECT scope, idempotency_key FROM {service.table('idempotency')}")).one()
        recorded = Ledger().look(connection, found.idempotency_key, scope=found.scope)
    assert recorded is not None
    assert recorded.lease_left > 3600


async def test_K_3_on_an_async_connection_too(service: Service) -> None:
    engine = create_async_engine(resolve(service.url, asynchronous=True))

    async def handler(keyed: KeyedRequest) -> Response:
        answer = JSONResponse({"item": "book"}, 201)
        async with engine.begin() as connection:
            await connection.execute(text("INSERT INTO bill VALUES ('book')"))
            await keyed.afinish(connection, answer)
        return answer

    async with requests_to(service, handler) as client:
        answers = [await client.post("/") for _ in range(2)]
    await engine.dispose()
    assert [answer.json() for answer in answers] == [{"item": "book"}] * 2
    assert bills(service) == 1


async def test_what_was_recorded_counts_where_the_handler_then_fails_or_answers_otherwise(service: Service) -> None:
    recorded = JSONResponse({"item": "book"}, 201)

    async def handler(keyed: KeyedRequest) -> Response:
        with service.engine.begin() as connection:
            connection.execute(text("INSERT INTO bill VALUES ('book')"))
            keyed.finish(connection, recorded)
        if keyed.key == "fails":
            raise RuntimeError("after the commit")
        return JSONResponse({"item": "something else"})

    async with requests_to(service, handler) as client:
        first = await client.post("/")
        assert (first.status_code, first.json()) == (201, {"item": "book"})
        assert "idempotent-replayed" not in first.headers
        assert (await client.post("/", headers={"idempotency-key": "fails"})).status_code == 500
        assert (await client.post("/", headers={"idempotency-key": "fails"})).json() == {"item": "book"}
    assert bills(service) == 2


async def test_what_was_recorded_counts_though_a_status_follows_after_which_a_request_may_run_again(
    service: Service,
) -> None:
    async def handler(keyed: KeyedRequest) -> Response:
        with service.engine.begin() as connection:
            connection.execute(text("INSERT INTO bill VALUES ('book')"))
            keyed.finish(connection, JSONResponse({"item": "book"}, 201))
        return JSONResponse({"sorry": True}, 503)

    async with requests_to(service, handler, unrecorded=range(500, 600)) as client:
        answers = [await client.post("/") for _ in range(2)]
    assert [(answer.status_code, answer.json()) for answer in answers] == [(201, {"item": "book"})] * 2
    assert bills(service) == 1


async def test_the_first_client_gets_the_response_as_it_became_on_its_way_out(service: Service) -> None:
    async def handler(keyed: KeyedRequest) -> Response:
        answer = PlainTextResponse("x" * 2000, 201, headers={"set-cookie": "a=b"})
        with service.engine.begin() as connection:
            keyed.finish(connection, answer)
        return answer

    async with requests_to(service, handler, wrapped_in=GZipMiddleware) as client:
        first, again = await client.post("/"), await client.post("/")
    assert first.text == again.text == "x" * 2000
    assert (first.headers["content-encoding"], first.headers["set-cookie"]) == ("gzip", "a=b")
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"


async def test_of_a_response_that_is_too_large_it_is_recorded_that_it_was_given(service: Service) -> None:
    async def handler(keyed: KeyedRequest) -> Response:
        answer = PlainTextResponse("x" * 2000, 201)
        with service.engine.begin() as connection:
            connection.execute(text("INSERT INTO bill VALUES ('book')"))
            (keyed.hand_over if keyed.key == "later" else keyed.finish)(connection, answer)
        return answer

    async with requests_to(service, handler, max_response_bytes=1000) as client:
        for key in ("7f9c", "later"):
            first, again = [await client.post("/", headers={"idempotency-key": key}) for _ in range(2)]
            assert (first.status_code, len(first.content)) == (201, 2000)
            assert (again.status_code, again.json()["original_status"]) == (409, 201)
    assert bills(service) == 2


@pytest.mark.parametrize("value", ["Łódź", "a\r\nx-evil: 1"])
async def test_a_header_that_could_not_be_sent_is_refused(service: Service, value: str) -> None:
    async def handler(keyed: KeyedRequest) -> Response:
        with service.engine.begin() as connection, pytest.raises(InvalidEntry, match="x-city"):
            keyed.finish(connection, Answer(200, (("x-city", value),), b""))
        return JSONResponse({})

    async with requests_to(service, handler) as client:
        assert (await client.post("/")).status_code == 200


async def test_what_was_rolled_back_was_not_recorded(service: Service) -> None:
    runs = 0

    async def handler(keyed: KeyedRequest) -> Response:
        nonlocal runs
        runs += 1
        with service.engine.connect() as connection:
            connection.execute(text("INSERT INTO bill VALUES ('book')"))
            keyed.finish(connection, JSONResponse({}, 201))
            connection.rollback()
        if keyed.key == "fails" and runs == 1:
            raise RuntimeError("and then")
        return JSONResponse({"sorry": True}, 402)

    async with requests_to(service, handler) as client:
        assert (await client.post("/", headers={"idempotency-key": "fails"})).status_code == 500
        for key in ("fails", "other"):
            for _ in range(2):
                answer = await client.post("/", headers={"idempotency-key": key})
                assert (answer.status_code, answer.json()) == (402, {"sorry": True})
    assert (runs, bills(service)) == (3, 0)


async def test_a_run_that_was_taken_over_cannot_commit(service: Service) -> None:
    mine: list[KeyedRequest] = []
    table = service.table("idempotency")

    async def handler(keyed: KeyedRequest) -> Response:
        mine.append(keyed)
        if len(mine) == 1:  # another one comes while this one sleeps
            past = "1" if service.url.startswith("sqlite") else "'2000-01-01'"
            service.execute(f"UPDATE {table} SET leased_until = {past}")
            assert (await client.post("/")).status_code == 200
        with service.engine.begin() as connection:
            connection.execute(text("INSERT INTO bill VALUES ('book')"))
            keyed.finish(connection, JSONResponse({"run": len(mine)}))
        return JSONResponse({"run": len(mine)})

    async with requests_to(service, handler) as client:
        assert (await client.post("/")).status_code == 500  # LeaseLost, which rolled back
        assert (await client.post("/")).json() == {"run": 2}
    assert bills(service) == 1
    assert [keyed.start for keyed in mine] == [Start.NEW, Start.ABANDONED]
    assert mine[1].taken_over


async def test_only_a_response_that_is_whole_can_be_recorded(service: Service) -> None:
    async def handler(keyed: KeyedRequest) -> Response:
        with service.engine.begin() as connection:
            for wrong in (StreamingResponse(iter([b"x"])), "x", None):
                with pytest.raises(InvalidEntry):
                    keyed.finish(connection, wrong)
            keyed.finish(connection, JSONResponse({}))
            with pytest.raises(LeaseLost):
                keyed.finish(connection, JSONResponse({}))
        return JSONResponse({})

    async with requests_to(service, handler) as client:
        assert (await client.post("/")).status_code == 200
