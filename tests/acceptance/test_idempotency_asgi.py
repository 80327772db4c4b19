"""The idempotency middleware in ASGI applications: what each request is answered, and how often it runs."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import httpx
import pytest
from fastapi import FastAPI
from litestar import Litestar
from litestar import post as litestar_post
from prometheus_client import CollectorRegistry
from starlette.responses import PlainTextResponse

from postroom.errors import InvalidSetting, SchemaMissing
from postroom.store.ledger.keyed_requests import KeyedRequests
from postroom.telemetry.events import KEYED, Event
from postroom.telemetry.metrics import prometheus
from postroom.web import IdempotencyMiddleware
from tests.acceptance.keyed_shop import KEY, LARGE, KeyedShop, served
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postroom.web.requests import Request
    from tests.conftest import FreshDatabase

BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
EACH = pytest.mark.parametrize("kind", ["sqlite", "postgresql", "mariadb"])
PROBLEM = "application/problem+json"


@pytest.fixture
def kind() -> str:
    return "sqlite"


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        yield service


def told(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == PROBLEM
    assert answer.json()["status"] == answer.status_code
    return answer.status_code, answer.json()["type"].removeprefix("urn:postroom:idempotency:")


@EACH
async def test_K_2_the_same_request_runs_once_and_is_answered_the_same_again(service: Service) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        first = await client.post("/orders", json={"item": "book"}, headers=KEY)
        again = await client.post("/orders", json={"item": "book"}, headers={"idempotency-key": '"7f9c"'})
    assert (first.status_code, first.json()) == (201, {"order": 1})
    assert (again.status_code, again.json()) == (201, {"order": 1})
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == "/orders/1"
    assert again.headers["x-kind"] == "order"
    assert not {"set-cookie", "authorization"} & set(again.headers)
    assert first.headers["set-cookie"] == "theme=dark"
    assert len(shop.effects) == 1


@BOTH
async def test_K_2_a_key_that_was_used_for_another_request_is_refused(service: Service) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        await client.post("/orders/1/pay", content=b"a", headers=KEY)
        answers = [
            await client.post("/orders/1/pay", content=b"b", headers=KEY),
            await client.post("/orders/1/pay?twice=1", content=b"a", headers=KEY),
            await client.post("/orders/2/pay", content=b"a", headers=KEY),  # the same route
        ]
        assert [told(answer) for answer in answers] == [(422, "key-reused")] * 3
        other_route = await client.post("/orders", content=b"a", headers=KEY)
    assert other_route.status_code == 201
    assert shop.effects == [b"a", b"a"]


async def test_K_2_the_status_of_a_conflict_can_be_chosen(service: Service) -> None:
    shop = KeyedShop(service.url, conflict_status=409)
    async with shop.client() as client:
        await client.post("/orders", content=b"a", headers=KEY)
        assert told(await client.post("/orders", content=b"b", headers=KEY)) == (409, "key-reused")
    with pytest.raises(InvalidSetting, match="conflict_status"):
        KeyedShop(service.url, conflict_status=400)


async def test_K_2_which_requests_need_a_key_and_which_may_have_one(service: Service) -> None:
    shop = KeyedShop(service.url, required=["POST /orders/{id}/pay"], optional=["POST /orders"])
    async with shop.client() as client:
        assert told(await client.post("/orders/1/pay")) == (400, "key-missing")
        assert (await client.post("/orders")).status_code == 201
        for _ in range(2):  # a key that is not looked for
            assert (await client.patch("/orders", headers=KEY)).status_code == 201
    assert len(shop.effects) == 3


async def test_K_2_by_default_post_and_patch_may_have_a_key(service: Service) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        for method, runs in (("POST", 1), ("PATCH", 1), ("GET", 2), ("PUT", 2)):
            before = len(shop.effects)
            for _ in range(2):
                await client.request(method, "/orders", headers={"idempotency-key": method})
            assert len(shop.effects) - before == runs


@pytest.mark.parametrize(
    "request_", [{"json": {"idempotency_key": "k", "n": 1}}, {"data": {"idempotency_key": "k", "n": "1"}}]
)
async def test_K_2_without_a_header_the_key_is_taken_from_the_body(service: Service, request_: dict[str, Any]) -> None:
    shop = KeyedShop(service.url, required=["/orders"])
    async with shop.client() as client:
        for _ in range(2):
            assert (await client.post("/orders", **request_)).status_code == 201
        assert told(await client.post("/orders", json={"n": 1})) == (400, "key-missing")
        assert told(await client.post("/orders", json={"idempotency_key": 5})) == (400, "key-invalid")
        by_header = await client.post("/orders", **request_, headers={"idempotency-key": "other"})
    assert by_header.json() == {"order": 2}


@pytest.mark.parametrize("key", ["", " ", '"', '"a', '"a\\b"', "\xe9", "a" * 256, '""', '" a"', '"a", "b"'])
async def test_a_key_that_cannot_be_one_is_refused(service: Service, key: str) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        answer = await client.post("/orders", headers=[(b"idempotency-key", key.encode("latin-1"))])
        assert told(answer) == (400, "key-invalid")
        twice = await client.post("/orders", headers=[("idempotency-key", "a"), ("idempotency-key", "b")])
        assert told(twice) == (400, "key-invalid")
    assert not shop.effects


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorization", "Bearer {}"),
        ("x-api-key", "{}"),
        ("cookie", "theme=dark; sessionid={}"),
        ("x-forwarded-client-cert", "Hash={}"),
        ("x-auth-request-user", "{}"),
    ],
)
async def test_K_4_a_key_belongs_to_the_credentials_that_came_with_it(service: Service, name: str, value: str) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        del client.headers["authorization"]
        key = {"idempotency-key": "7f9c"}
        for tenant, order in (("alice", 1), ("bob", 2), ("alice", 1), ("bob", 2)):
            client.cookies.clear()
            answer = await client.post("/orders", headers={**key, name: value.format(tenant)})
            assert answer.json() == {"order": order}
        client.cookies.clear()
        assert told(await client.post("/orders", headers=key)) == (400, "sender-unknown")
    assert len(shop.effects) == 2
    assert "alice" not in str(service.rows(f"SELECT scope FROM {service.table('idempotency')}"))


async def test_K_4_a_login_by_a_cookie_beside_another_credential_has_to_be_the_same(service: Service) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        for cookies in ("sessionid=a; _ga=1", "_ga=2; sessionid=a"):
            answer = await client.post("/orders", headers={**KEY, "cookie": cookies})
            assert (answer.status_code, answer.json()) == (201, {"order": 1})
        for cookies in ("sessionid=b", "theme=dark"):
            assert told(await client.post("/orders", headers={**KEY, "cookie": cookies})) == (422, "key-reused")
    assert len(shop.effects) == 1


async def test_scope_and_operation_can_be_chosen(service: Service) -> None:
    def tenant(request: Request) -> str:
        return request.header("x-tenant") or ""

    shop = KeyedShop(service.url, scope=tenant, operation=lambda request: request.method + "é" * 300)
    async with shop.client() as client:
        for name, order in (("a", 1), ("b", 2), ("a/b", 3), ("a", 1), ("", 4)):
            answer = await client.post("/orders", headers={**KEY, "x-tenant": name, "authorization": name + "x"})
            assert answer.json() == {"order": order}


@BOTH
async def test_of_eight_twins_one_runs_and_the_others_are_told_that_it_does(service: Service) -> None:
    shop = KeyedShop(service.url)
    shop.may_go_on.clear()
    async with shop.client() as client:
        first = [asyncio.ensure_future(client.post("/orders", headers=KEY)) for _ in range(8)]
        await wait_for(lambda: sum(one.done() for one in first) == 7)
        shop.may_go_on.set()
        answers = [await one for one in first]
        refused = [answer for answer in answers if answer.status_code != 201]
        assert [told(answer) for answer in refused] == [(409, "in-progress")] * 7
        assert {answer.headers["retry-after"] for answer in refused} == {"2"}
        assert (await client.post("/orders", headers=KEY)).status_code == 201
    assert (shop.begun, len(shop.effects)) == (1, 1)


@EACH
async def test_of_eight_twins_one_runs_and_the_others_wait_where_so_configured(service: Service) -> None:
    shop = KeyedShop(service.url, wait_seconds=20)
    shop.may_go_on.clear()
    async with shop.client() as client:
        all_ = [asyncio.ensure_future(client.post("/orders", headers=KEY)) for _ in range(8)]
        await wait_for(lambda: shop.begun)
        await asyncio.sleep(0.2)
        shop.may_go_on.set()
        answers = [await one for one in all_]
    assert [answer.json() for answer in answers] == [{"order": 1}] * 8
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 7
    assert (shop.begun, len(shop.effects)) == (1, 1)


async def test_who_waits_for_a_twin_does_so_up_to_the_limit(service: Service) -> None:
    shop = KeyedShop(service.url, wait_seconds=0.1)
    shop.may_go_on.clear()
    async with shop.client() as client:
        first = asyncio.ensure_future(client.post("/orders", headers=KEY))
        await wait_for(lambda: shop.begun)
        assert told(await client.post("/orders", headers=KEY)) == (409, "in-progress")
        shop.may_go_on.set()
        assert (await first).status_code == 201


async def test_who_waits_runs_when_the_twin_fails(service: Service) -> None:
    shop = KeyedShop(service.url, wait_seconds=20)
    shop.may_go_on.clear()
    shop.fails = True
    async with shop.client() as client:
        first = asyncio.ensure_future(client.post("/orders", headers=KEY))
        await wait_for(lambda: shop.begun)
        second = asyncio.ensure_future(client.post("/orders", headers=KEY))
        await asyncio.sleep(0.1)
        shop.may_go_on.set()
        assert (await first).status_code == 500
        shop.fails = False
        assert (await second).json() == {"order": 1}


@BOTH
async def test_K_2_after_an_exception_the_request_runs_again(service: Service) -> None:
    shop = KeyedShop(service.url)
    shop.fails = True
    async with shop.client() as client:
        assert (await client.post("/orders", headers=KEY)).status_code == 500
        shop.fails = False
        assert (await client.post("/orders", headers=KEY)).json() == {"order": 1}


async def test_K_2_or_does_not_where_failures_are_replayed(service: Service) -> None:
    shop = KeyedShop(service.url, replay_failures=True)
    shop.fails = True
    async with shop.client() as client:
        assert (await client.post("/orders", headers=KEY)).status_code == 500
        shop.fails = False
        again = await client.post("/orders", headers=KEY)
    assert told(again) == (500, "failed-before")
    assert again.headers["idempotent-replayed"] == "true"
    assert (shop.begun, shop.effects) == (1, [])


async def test_K_2_a_response_of_any_status_is_replayed_unless_chosen_otherwise(service: Service) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        for _ in range(2):
            assert (await client.post("/status/503", headers=KEY)).status_code == 503
            other = await client.post("/status/404", headers={"idempotency-key": "other"})
            assert (other.status_code, other.text) == (404, "as you wish")
    assert len(shop.effects) == 2
    forgetful = KeyedShop(service.url, unrecorded=range(500, 600))
    async with forgetful.client() as client:
        for _ in range(2):
            answer = await client.post("/status/502", headers={"idempotency-key": "forgotten"})
            assert (answer.status_code, answer.text) == (502, "as you wish")
    assert len(forgetful.effects) == 2


async def test_K_2_also_where_failures_are_replayed(service: Service) -> None:
    shop = KeyedShop(service.url, replay_failures=True, unrecorded=[503])
    async with shop.client() as client:
        for _ in range(2):
            assert (await client.post("/status/503", headers=KEY)).text == "as you wish"
    assert len(shop.effects) == 2


@pytest.mark.parametrize("kind", ["mariadb"])
async def test_a_response_that_the_database_refuses_is_told_of_when_asked_for_again(service: Service) -> None:
    runs = 0
    size = 9_000_000  # twice that is sent, and 16 MiB are taken

    async def large(scope: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        runs += 1
        await PlainTextResponse("x" * size, 202)(scope, receive, send)

    middleware = IdempotencyMiddleware(large, database=service.url, max_response_bytes=10_000_000)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(middleware), base_url="http://shop") as client:
        first, again = [await client.post("/", headers=KEY) for _ in range(2)]
    await middleware.close()
    assert (first.status_code, len(first.content)) == (202, size)
    assert told(again) == (409, "response-not-kept")
    assert runs == 1


@BOTH
@pytest.mark.parametrize("path", ["/large", "/stream", "/events"])
async def test_a_response_that_cannot_be_kept_is_told_of_when_asked_for_again(service: Service, path: str) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        first = await client.post(path, headers=KEY)
        assert len(first.content) >= (LARGE if path == "/large" else 180)
        again = await client.post(path, headers=KEY)
    assert told(again) == (409, "response-not-kept")
    assert again.json()["original_status"] == first.status_code
    assert again.headers["idempotent-replayed"] == "true"
    assert "retry-after" not in again.headers
    assert len(shop.effects) == 1


async def test_a_stream_within_the_limit_is_kept(service: Service) -> None:
    shop = KeyedShop(service.url, max_response_bytes=1_000_000)
    async with shop.client() as client:
        first = await client.post("/stream", headers=KEY)
        again = await client.post("/stream", headers=KEY)
    assert again.content == first.content
    assert again.headers["content-length"] == str(len(first.content))


async def test_a_stream_that_breaks_leaves_the_request_to_run_again(service: Service) -> None:
    shop = KeyedShop(service.url)
    shop.fails = True
    async with shop.client() as client:
        await client.post("/broken-stream", headers=KEY)
        shop.fails = False
        assert (await client.post("/broken-stream", headers=KEY)).status_code == 200
        assert told(await client.post("/broken-stream", headers=KEY)) == (409, "response-not-kept")


async def test_a_response_without_a_body_is_kept(service: Service) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        answers = [await client.post("/empty", headers=KEY) for _ in range(2)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(204, b"")] * 2
    assert "content-length" not in answers[1].headers
    assert len(shop.effects) == 1


async def test_a_keyed_request_that_is_too_large_is_refused(service: Service) -> None:
    shop = KeyedShop(service.url, max_body_bytes=10)

    async def parts() -> Any:
        for _ in range(4):
            yield b"12345"

    async with shop.client() as client:
        assert told(await client.post("/orders", content=b"x" * 11, headers=KEY)) == (413, "request-too-large")
        assert told(await client.post("/orders", content=parts(), headers=KEY)) == (413, "request-too-large")
        assert (await client.post("/orders", content=parts())).status_code == 201
        json = {"content-type": "application/json"}  # may hold a key, but is not read to its end
        assert (await client.post("/orders", content=parts(), headers=json)).status_code == 201
        assert (await client.post("/orders", content=b"x" * 10, headers=KEY)).status_code == 201
    assert shop.effects == [b"12345" * 4, b"12345" * 4, b"x" * 10]


async def test_or_runs_as_one_without_a_key_where_so_configured(service: Service) -> None:
    shop = KeyedShop(service.url, max_body_bytes=10, pass_large_requests=True)
    async with shop.client() as client:
        for _ in range(2):
            assert (await client.post("/orders", content=b"x" * 11, headers=KEY)).status_code == 201
    assert shop.effects == [b"x" * 11] * 2


async def test_the_headers_that_are_kept_can_be_named(service: Service) -> None:
    shop = KeyedShop(service.url, kept_headers=["Set-Cookie", "Content-Type"])
    async with shop.client() as client:
        await client.post("/orders", headers=KEY)
        again = await client.post("/orders", headers=KEY)
    assert set(again.headers) == {"set-cookie", "content-type", "content-length", "idempotent-replayed"}


@BOTH
async def test_a_client_that_goes_finds_the_response_when_it_comes_again(service: Service) -> None:
    shop = KeyedShop(service.url)
    shop.may_go_on.clear()
    async with shop.client() as client:
        gone = asyncio.ensure_future(client.post("/orders", headers=KEY))
        await wait_for(lambda: shop.begun)
        gone.cancel()  # as servers and outer middleware do
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert told(await client.post("/orders", headers=KEY)) == (409, "in-progress")
        shop.may_go_on.set()
        await wait_for(lambda: shop.effects)
        await wait_for(lambda: not shop.middleware._runs)
        again = await client.post("/orders", headers=KEY)
    assert again.json() == {"order": 1}
    assert again.headers["idempotent-replayed"] == "true"


async def test_an_application_is_told_that_the_client_has_gone_only_when_it_has_answered(service: Service) -> None:
    told_gone: list[str] = []
    events = iter([{"type": "http.request", "body": b"x"}])

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"x"
        listening = asyncio.ensure_future(receive())
        await asyncio.sleep(0.05)
        assert not listening.done()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        told_gone.append((await listening)["type"])

    async def receive() -> Any:
        return next(events, {"type": "http.disconnect"})

    async def send(_event: Any) -> None:
        raise OSError("the client has gone")

    middleware = IdempotencyMiddleware(app, database=service.url)
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/x",
        "headers": [(b"idempotency-key", b"k"), (b"authorization", b"a")],
    }
    await middleware(scope, receive, send)
    assert told_gone == ["http.disconnect"]
    sent: list[Any] = []
    events = iter([{"type": "http.request", "body": b"x"}])

    async def listen(event: Any) -> None:
        sent.append(event)

    await middleware(scope, receive, listen)
    await middleware.close()
    assert sent[1]["body"] == b"done"


async def test_a_request_that_breaks_off_is_not_begun(service: Service) -> None:
    shop = KeyedShop(service.url)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/orders",
        "headers": [(b"idempotency-key", b"k"), (b"authorization", b"a")],
    }
    await shop.middleware(scope, receive, None)  # type: ignore[arg-type]  # nobody to send to
    assert shop.begun == 0


@BOTH
async def test_K_3_a_run_that_takes_longer_than_its_lease_keeps_it(service: Service) -> None:
    shop = KeyedShop(service.url, lease_seconds=1)
    shop.may_go_on.clear()
    async with shop.client() as client:
        first = asyncio.ensure_future(client.post("/orders", headers=KEY))
        await wait_for(lambda: shop.begun)
        await asyncio.sleep(1.8)
        assert told(await client.post("/orders", headers=KEY)) == (409, "in-progress")
        shop.may_go_on.set()
        assert (await first).status_code == 201
    assert len(shop.effects) == 1


async def test_K_3_a_run_that_died_frees_its_key_when_its_lease_ends(service: Service) -> None:
    shop = KeyedShop(service.url, lease_seconds=1)
    shop.may_go_on.clear()
    async with shop.client() as client:
        dying = asyncio.ensure_future(client.post("/orders", headers=KEY))
        await wait_for(lambda: shop.begun)
        [run] = shop.middleware._runs
        for task in (dying, run):  # as the loop does with all tasks at the end of a server that does not wait
            task.cancel()
        await asyncio.wait({dying, run})
        shop.may_go_on.set()
        assert told(await client.post("/orders", headers=KEY)) == (409, "in-progress")
        await asyncio.sleep(1.1)
        assert (await client.post("/orders", headers=KEY)).status_code == 201


async def test_a_run_that_lost_its_lease_answers_what_the_other_one_has_recorded(service: Service) -> None:
    shop = KeyedShop(service.url, lease_seconds=1)
    shop.may_go_on.clear()
    async with shop.client() as client:
        with patch.object(KeyedRequests, "renew", lambda *_: iter(())):  # the database does not get to hear of it
            late = asyncio.ensure_future(client.post("/orders", headers=KEY))
            await wait_for(lambda: shop.begun)
            await asyncio.sleep(1.1)
            other = KeyedShop(service.url)
            other.effects.append(b"something before")
            async with other.client() as another:
                assert (await another.post("/orders", headers=KEY)).json() == {"order": 2}
            shop.may_go_on.set()
            answer = await late
    assert answer.json() == {"order": 2}
    assert answer.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("error", [OSError("away"), RuntimeError("a driver's own")])
async def test_while_the_ledger_does_not_answer_no_keyed_request_runs(service: Service, error: Exception) -> None:
    shop = KeyedShop(service.url)
    async with shop.client() as client:
        with patch.object(KeyedRequests, "begin", side_effect=error):
            answer = await client.post("/orders", headers=KEY)
            assert told(answer) == (503, "ledger-unavailable")
            assert answer.headers["retry-after"] == "2"
            assert (await client.post("/orders")).status_code == 201  # without a key, all is as without us
        assert (await client.post("/orders", headers=KEY)).json() == {"order": 2}


async def test_a_response_that_cannot_be_recorded_is_tried_again_and_then_given_all_the_same(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    shop = KeyedShop(service.url)
    calls = 0
    finish = KeyedRequests.finish

    def unreliable(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OSError("away")
        return finish(*args)

    async with shop.client() as client:
        with patch.object(KeyedRequests, "finish", unreliable):
            assert (await client.post("/orders", headers=KEY)).json() == {"order": 1}
        assert calls == 2
        assert (await client.post("/orders", headers=KEY)).json() == {"order": 1}
        with (
            patch("postroom.web.idempotency.keyed_flow.RETRIES", (0.01,)),
            patch.object(KeyedRequests, "finish", side_effect=OSError),
        ):
            assert (await client.post("/orders", content=b"x", headers={"idempotency-key": "b"})).status_code == 201
    assert "could not be recorded" in caplog.text


async def test_a_mistake_in_the_setup_is_not_hidden(fresh_database: FreshDatabase) -> None:
    url = fresh_database("sqlite")
    with pytest.raises(SchemaMissing):
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(KeyedShop(url).middleware), base_url="http://shop"
        ) as client:
            await client.post("/orders", headers=KEY)
    with pytest.raises(InvalidSetting, match="no database"):
        IdempotencyMiddleware(FastAPI())
    for wrong in (
        {"required": "POST"},
        {"required": ["orders"]},
        {"optional": [""]},
        {"wait_seconds": -1},
        {"lease_seconds": 0},
    ):
        with pytest.raises(InvalidSetting):
            KeyedShop(url, **wrong)


@BOTH
async def test_an_application_that_gives_no_whole_response_may_run_again(service: Service) -> None:
    runs = 0

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        nonlocal runs
        runs += 1
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    middleware = IdempotencyMiddleware(app, database=service.url)
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(middleware, raise_app_exceptions=False), base_url="http://shop"
    ) as client:
        for _ in range(2):
            with pytest.raises(AssertionError):
                await client.post("/", headers=KEY)
    await middleware.close()
    assert runs == 2


@BOTH
async def test_it_is_added_to_fastapi_with_one_line_and_works_behind_a_server(service: Service) -> None:
    app = FastAPI()
    orders: list[str] = []

    @app.post("/orders/{item}", status_code=201)
    def order(item: str) -> dict[str, int]:
        orders.append(item)
        return {"order": len(orders)}

    app.add_middleware(IdempotencyMiddleware, database=service.url, scope=lambda _: "")
    async with served(app) as client:
        answers = [await client.post("/orders/book", headers=KEY) for _ in range(2)]
        assert [answer.json() for answer in answers] == [{"order": 1}] * 2
        assert told(await client.post("/orders/pen", headers=KEY)) == (422, "key-reused")
        assert (await client.post("/orders/pen")).json() == {"order": 2}
    [[scope]] = service.rows(f"SELECT scope FROM {service.table('idempotency')}")
    assert scope == "/POST %2Forders%2F{item}"


async def test_a_mounted_route_is_known_by_its_whole_template(service: Service) -> None:
    shop = KeyedShop(service.url)
    shop.app.add_middleware(IdempotencyMiddleware, database=service.url)
    async with served(shop.app) as client:
        assert (await client.post("/shops/7/orders", headers=KEY)).status_code == 201
        assert told(await client.post("/shops/8/orders", headers=KEY)) == (422, "key-reused")
        assert (await client.post("/nowhere", headers=KEY)).status_code == 404


@BOTH
async def test_a_client_of_a_server_that_goes_finds_the_response_when_it_comes_again(service: Service) -> None:
    shop = KeyedShop(service.url)
    shop.may_go_on.clear()
    async with served(shop.middleware) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/orders", headers=KEY, timeout=0.3)
        shop.may_go_on.set()
        await wait_for(lambda: not shop.middleware._runs)
        again = await client.post("/orders", headers=KEY)
        assert (again.json(), again.headers["idempotent-replayed"]) == ({"order": 1}, "true")
        shop.may_go_on.clear()
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/stream", headers=KEY, timeout=0.1)
        shop.may_go_on.set()
        await wait_for(lambda: not shop.middleware._runs)
        assert told(await client.post("/stream", headers=KEY)) == (409, "response-not-kept")
    assert len(shop.effects) == 2


@BOTH
async def test_V_1_a_hook_is_told_what_becomes_of_keyed_requests(service: Service) -> None:
    registry = CollectorRegistry()

    def hook(event: Event) -> None:
        prometheus(registry)(event)
        raise RuntimeError("which stops no request")

    shop = KeyedShop(service.url, hook=hook)
    async with shop.client() as client:
        await client.post("/orders", content=b"{}")
        for body in (b"1", b"1", b"2"):
            await client.post("/orders", content=body, headers=KEY)
        shop.fails = True
        other = {"idempotency-key": "other"}
        assert (await client.post("/orders", headers=other)).status_code == 500
        shop.fails = False
        assert (await client.post("/orders", headers=other)).status_code == 201
    counted = {
        sample.labels["outcome"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "postroom_keyed_requests_total"
    }
    told = {"run": 2, "replayed": 1, "conflict": 1, "taken_over": 1}
    assert counted == {**dict.fromkeys(KEYED, 0), **told}


async def test_litestar_tells_of_exceptions_by_a_hook(service: Service) -> None:
    runs = 0

    @litestar_post("/orders", status_code=201)
    async def order() -> dict[str, str]:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise RuntimeError("not today")
        return {"item": "book"}

    def mark(_error: Exception, scope: Any) -> None:
        scope["postroom.idempotency"].failed = True

    app = Litestar([order], after_exception=[mark], logging_config=None)
    async with served(IdempotencyMiddleware(app, database=service.url)) as client:
        answers = [await client.post("/orders", headers=KEY) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [500, 201, 201]
    assert answers[2].json() == {"item": "book"}
    assert runs == 2


async def test_litestars_routes_are_known_with_and_without_a_slash_at_the_end(service: Service) -> None:
    runs = 0

    @litestar_post("/orders/{number:int}/pay", status_code=201)
    async def pay() -> dict[str, str]:
        nonlocal runs
        runs += 1
        return {"status": "paid"}

    @litestar_post("/payments", status_code=201)
    async def payments() -> dict[str, int]:
        nonlocal runs
        runs += 1
        return {"payment": runs}

    app = IdempotencyMiddleware(
        Litestar([pay, payments]), database=service.url, required=["POST /payments"], scope=lambda _: ""
    )
    async with served(app) as client:
        for path in ("/payments", "/payments/"):
            assert told(await client.post(path)) == (400, "key-missing")
        assert (await client.post("/orders/1/pay", headers=KEY)).json() == {"status": "paid"}
        assert told(await client.post("/orders/2/pay", headers=KEY)) == (422, "key-reused")
        assert (await client.post("/orders/x/pay", headers=KEY)).status_code == 404
        assert (await client.post("/payments", headers=KEY)).status_code == 201
        assert told(await client.post("/payments/", headers=KEY)) == (422, "key-reused")
    assert runs == 2
    scopes = {scope for [scope] in service.rows(f"SELECT scope FROM {service.table('idempotency')}")}
    assert {"/POST %2Forders%2F{number}%2Fpay", "/POST %2Fpayments"} < scopes


async def test_what_is_not_http_is_none_of_its_business(service: Service) -> None:
    seen: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        seen.append(scope)

    scope = {"type": "websocket", "path": "/", "headers": [(b"idempotency-key", b"k"), (b"authorization", b"a")]}
    await IdempotencyMiddleware(app, database=service.url)(scope, None, None)  # type: ignore[arg-type]  # not called
    assert seen == [scope]


async def test_a_route_that_the_framework_has_chosen_is_taken_as_it_is(service: Service) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["postroom.idempotency"].entry.scope.encode()})

    async def within(scope: Any, receive: Any, send: Any) -> None:  # as Litestar calls its middleware
        await middleware({**scope, "path_template": "/orders/{id:int}"}, receive, send)

    middleware = IdempotencyMiddleware(app, database=service.url, scope=lambda _: "")
    async with served(within) as client:
        assert (await client.post("/orders/7", headers=KEY)).text == "/POST %2Forders%2F{id:int}"
    await middleware.close()


@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
async def test_an_endless_stream_ends_when_its_client_goes_and_counts_as_done(
    service: Service, spec_version: str
) -> None:
    shop = KeyedShop(service.url)

    async def within(scope: Any, receive: Any, send: Any) -> None:
        async def until_gone(event: Any) -> None:
            if scope.get("gone"):
                raise OSError("as servers of 2.4 do")
            await send(event)

        async def receive_until_gone() -> Any:
            event = await receive()
            scope["gone"] = event["type"] == "http.disconnect"
            return event

        if scope["type"] == "http":
            scope["asgi"] = {"version": "3.0", "spec_version": spec_version}
            if spec_version == "2.4":
                listening = asyncio.ensure_future(asyncio.sleep(0.2, "gone"))
                listening.add_done_callback(lambda _: scope.update(gone=True))
        await shop.middleware(scope, receive_until_gone, until_gone)

    async with served(within) as client:
        async with client.stream("POST", "/endless", headers=KEY) as answer:
            assert await anext(answer.aiter_bytes()) == b"data: 1\n\n"
        await wait_for(lambda: not shop.middleware._runs)
        assert told(await client.post("/endless", headers=KEY)) == (409, "response-not-kept")
    assert len(shop.effects) == 1
    await shop.middleware.close()
