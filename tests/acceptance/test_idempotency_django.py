"""The idempotency middleware in Django."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from wsgiref.util import setup_testing_defaults

import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections, transaction
from django.http import FileResponse, Http404, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, modify_settings, override_settings
from django.urls import path

from postroom import Outbox
from postroom.idempotency import Response
from tests.acceptance.keyed_shop import KEY, WHO
from tests.acceptance.service import Service
from tests.acceptance.waiting import wait_for
from tests.contract.connection_kinds import django_connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.conftest import FreshDatabase

effects: list[bytes] = []
fails: list[bool] = []
services: list[Service] = []
may_go_on = threading.Event()


def order(request: Any, item: str) -> HttpResponse:
    if fails:
        raise RuntimeError("not today")
    effects.append(request.body)
    assert request.META["postroom.idempotency"].key
    answer = JsonResponse({"order": len(effects), "item": item}, status=201)
    answer.set_cookie("theme", "dark")
    return answer


def lost(_request: Any) -> HttpResponse:
    effects.append(b"lost")
    raise Http404


def stream(_request: Any) -> StreamingHttpResponse:
    effects.append(b"stream")
    return StreamingHttpResponse(iter([b"a", b"b", b"c"]))


def long_stream(_request: Any) -> StreamingHttpResponse:
    effects.append(b"begun")

    def parts() -> Iterator[bytes]:
        yield from (b"a", b"b", b"c")
        effects.append(b"ended")

    return StreamingHttpResponse(parts())


def file(_request: Any) -> FileResponse:
    effects.append(b"file")
    return FileResponse(io.BytesIO(b"x" * 20_000))


async def async_stream(_request: Any) -> StreamingHttpResponse:
    effects.append(b"async")

    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        if fails:
            raise RuntimeError("in the middle")
        yield b"b"

    return StreamingHttpResponse(parts())


async def events(_request: Any) -> StreamingHttpResponse:
    effects.append(b"events")

    async def parts() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.Event().wait()

    return StreamingHttpResponse(parts(), content_type="text/event-stream")


async def patient(_request: Any) -> HttpResponse:
    effects.append(b"begun")
    assert await asyncio.to_thread(may_go_on.wait, 30)
    effects.append(b"ended")
    return HttpResponse(status=204)


def repeated(request: Any) -> HttpResponse:
    headers = (("link", "a"), ("link", "b"), ("etag", "1"), ("etag", "2"))
    with services[0].engine.begin() as connection:
        request.META["postroom.idempotency"].finish(connection, Response(200, headers, b"hi"))
    return HttpResponse(b"hi")


def guarded(_request: Any) -> HttpResponse:
    effects.append(b"guarded")
    return HttpResponse(status=204)


def large(_request: Any) -> HttpResponse:
    effects.append(b"large")
    return HttpResponse(b"x" * 3000)


def form(request: Any) -> HttpResponse:
    effects.append(request.POST["item"].encode())
    return HttpResponse(status=204)


def free(request: Any) -> HttpResponse:
    assert "postroom.idempotency" not in request.META
    effects.append(b"free")
    return HttpResponse(status=204)


def slow(_request: Any) -> HttpResponse:
    effects.append(b"slow")
    assert may_go_on.wait(30)
    return HttpResponse(status=204)


def later(request: Any) -> HttpResponse:
    alias = settings.POSTROOM_IDEMPOTENCY["using"]
    with transaction.atomic(using=alias):
        Outbox().add(connections[alias], "orders", {}, ledger=request.META["postroom.idempotency"].entry)
        effects.append(b"later")
        assert may_go_on.wait(30)
    return HttpResponse(status=202)


class Failing:
    """A middleware that raises."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        if fails:
            raise RuntimeError("not today")
        return self._get_response(request)


class Curious:
    """A middleware that reads forms."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        request.POST.get("_method")
        return self._get_response(request)


class Lost(io.RawIOBase):
    """A connection that breaks."""

    def read(self, _size: int = -1) -> bytes:
        raise ConnectionResetError


urlpatterns = [
    path("free", free),
    path("orders/<str:item>", order),
    path("lost", lost),
    path("stream", stream),
    path("long-stream", long_stream),
    path("file", file),
    path("async-stream", async_stream),
    path("patient", patient),
    path("events", events),
    path("repeated", repeated),
    path("guarded", guarded),
    path("large", large),
    path("form", form),
    path("slow", slow),
    path("later", later),
]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def client(request: pytest.FixtureRequest, ready_database: FreshDatabase) -> Iterator[Client]:
    alias = f"ledger {uuid4()}"  # else threads that stay would go on with the connection of the test before
    may_go_on.clear()
    for each in (effects, fails, services):
        each.clear()
    with (
        closing(Service(ready_database(request.param))) as service,
        django_connection(alias, service.engine.url),
        override_settings(
            ROOT_URLCONF=__name__,
            ALLOWED_HOSTS=["*"],
            MIDDLEWARE=["postroom.web.django.IdempotencyMiddleware"],
            POSTROOM_IDEMPOTENCY={
                "using": alias,
                "required": ["POST /form"],
                "max_body_bytes": 300,
                "max_response_bytes": 2000,
            },
        ),
    ):
        services.append(service)
        yield Client(raise_request_exception=False)


def post(client: Client, url: str, body: bytes = b"", **headers: str) -> Any:
    return client.post(url, body, "application/octet-stream", headers={**KEY, **headers})


def leave(url: str) -> None:
    """Ask as a server does, for a client that goes after the first part of the response."""
    handler = WSGIHandler()
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": url, "HTTP_IDEMPOTENCY_KEY": "7f9c"}
    environ["HTTP_AUTHORIZATION"] = WHO["authorization"]
    setup_testing_defaults(environ)
    answer = handler(environ, lambda *_: None)
    next(iter(answer))
    answer.close()


def told(answer: Any) -> tuple[int, str]:
    assert answer["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["type"].removeprefix("urn:postroom:idempotency:")


def test_K_2_the_same_request_runs_once_and_is_answered_the_same_again(client: Client) -> None:
    first, again = post(client, "/orders/book", b"a"), post(client, "/orders/book", b"a")
    assert first.json() == again.json() == {"order": 1, "item": "book"}
    assert again.status_code == 201
    assert again["idempotent-replayed"] == "true"
    assert "theme" in first.cookies
    assert "set-cookie" not in again
    assert told(post(client, "/orders/book", b"b")) == (422, "key-reused")
    assert told(post(client, "/orders/pen", b"a")) == (422, "key-reused")  # the same route
    assert post(client, "/orders/book", b"a", authorization="Bearer b").json()["order"] == 2
    assert told(post(client, "/orders/book", b"x" * 301)) == (413, "request-too-large")
    assert told(client.post("/form")) == (400, "key-missing")
    assert client.post("/form", {"item": "book"}, headers=KEY).status_code == 204
    form = "application/x-www-form-urlencoded"
    assert client.post("/form", "item=pen&idempotency_key=k", form, headers=WHO).status_code == 204
    assert effects == [b"a", b"a", b"book", b"pen"]


def test_K_2_after_an_exception_the_request_runs_again(client: Client) -> None:
    fails.append(True)
    assert post(client, "/orders/book").status_code == 500
    fails.clear()
    assert post(client, "/orders/book").status_code == 201
    for _ in range(2):
        assert post(client, "/lost").status_code == 404
        assert post(client, "/nowhere").status_code == 404
    assert effects == [b"", b"lost"]


def test_K_2_after_an_exception_of_a_middleware_behind_it_the_request_runs_again(client: Client) -> None:
    with modify_settings(MIDDLEWARE={"append": f"{__name__}.Failing"}):
        fails.append(True)
        assert post(client, "/orders/book").status_code == 500
        fails.clear()
        assert post(client, "/orders/book").status_code == 201
    assert effects == [b""]


def test_a_form_that_was_read_by_a_middleware_before_it_is_not_begun_and_the_log_says_what_to_do(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    with modify_settings(MIDDLEWARE={"prepend": f"{__name__}.Curious"}):
        form = {"item": "book"}
        assert client.post("/form", form, headers=KEY).status_code == 500
        assert "IdempotencyMiddleware has to come before it" in caplog.text
        assert client.post("/form", {**form, "idempotency_key": "k"}, headers=WHO).status_code == 500
        assert told(client.post("/form", form)) == (400, "key-missing")
        assert client.post("/free", form).status_code == 204
    assert effects == [b"free"]


def test_what_cannot_be_kept_is_told_of_when_asked_for_again(client: Client) -> None:
    assert b"".join(post(client, "/stream").streaming_content) == b"abc"
    assert len(post(client, "/large").content) == 3000
    for url in ("/stream", "/large"):
        assert told(post(client, url)) == (409, "response-not-kept")
    assert effects == [b"stream", b"large"]


@pytest.mark.parametrize(
    ("url", "done"), [("/stream", [b"stream"]), ("/long-stream", [b"begun", b"ended"]), ("/file", [b"file"])]
)
def test_a_stream_whose_client_goes_comes_to_its_end(client: Client, url: str, done: list[bytes]) -> None:
    leave(url)
    assert effects == done
    assert told(post(client, url)) == (409, "response-not-kept")
    assert effects == done


def test_K_2_an_async_stream_that_fails_runs_again_and_is_done_at_its_end(client: Client) -> None:
    async def ask() -> bytes:
        answer = await AsyncClient().post("/async-stream", headers=KEY)
        return b"".join([part async for part in answer.streaming_content])

    fails.append(True)
    with pytest.raises(RuntimeError, match="in the middle"):
        asyncio.run(ask())
    fails.clear()
    assert asyncio.run(ask()) == b"ab"
    assert told(client.post("/async-stream", headers=KEY)) == (409, "response-not-kept")
    assert effects == [b"async"] * 2


async def ask_and_leave(url: str, may_leave: Callable[[], bool], sent: list[bytes]) -> None:
    """Ask over ASGI, and disconnect as soon as one may."""
    received = False

    async def receive() -> dict[str, Any]:
        nonlocal received
        if received:
            await wait_for(may_leave)
        first, received = not received, True
        return {"type": "http.request", "body": b""} if first else {"type": "http.disconnect"}

    async def send(event: dict[str, Any]) -> None:
        if event["type"] == "http.response.body":
            sent.append(event["body"])

    headers = [(b"idempotency-key", b"7f9c"), (b"authorization", b"Bearer a")]
    scope = {"type": "http", "method": "POST", "path": url, "query_string": b"", "headers": headers}
    async with asyncio.timeout(30):
        await ASGIHandler()(scope, receive, send)


def test_K_2_an_async_view_whose_client_goes_comes_to_its_end(client: Client) -> None:
    async def ask() -> None:
        sent: list[bytes] = []
        await ask_and_leave("/patient", lambda: effects == [b"begun"], sent)
        assert sent == []
        assert told(await AsyncClient().post("/patient", b"", "text/plain", headers=KEY)) == (409, "in-progress")
        may_go_on.set()
        await wait_for(lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(ask())
    for _ in range(2):
        assert post(client, "/patient").status_code == 204
    assert effects == [b"begun", b"ended"]


def test_an_async_stream_of_events_gives_each_at_once_and_is_done_when_its_client_goes(client: Client) -> None:
    sent: list[bytes] = []
    asyncio.run(ask_and_leave("/events", lambda: bool(sent), sent))
    assert sent == [b"data: 1\n\n"]
    assert told(post(client, "/events")) == (409, "response-not-kept")
    assert effects == [b"events"]


def test_headers_that_were_sent_twice_are_joined(client: Client) -> None:
    post(client, "/repeated")
    again = post(client, "/repeated")
    assert (again["link"], again["etag"], again["idempotent-replayed"]) == ("a, b", "2", "true")


def test_what_a_middleware_before_it_refuses_when_the_view_is_called_is_not_recorded(client: Client) -> None:
    csrf = "django.middleware.csrf.CsrfViewMiddleware"
    with modify_settings(MIDDLEWARE={"prepend": csrf}):
        strict = Client(enforce_csrf_checks=True)
        assert post(strict, "/guarded").status_code == 403
        strict.cookies["csrftoken"] = token = "x" * 32
        for _ in range(2):
            assert post(strict, "/guarded", x_csrftoken=token).status_code == 204
        assert post(client, "/guarded")["idempotent-replayed"] == "true"
    assert effects == [b"guarded"]


def test_a_request_without_a_key_is_none_of_its_business(client: Client) -> None:
    for _ in range(2):
        assert client.post("/free", {"a": "b"}, "application/json").status_code == 204
        assert client.put("/free").status_code == 204
    assert effects == [b"free"] * 4


def test_K_2_a_request_that_is_cut_off_is_not_begun_so_that_the_whole_one_can_run(client: Client) -> None:
    for sent in ({"wsgi.input": io.BytesIO(b"abc")}, {"wsgi.input": Lost()}, {"CONTENT_LENGTH": "x"}):
        cut_off = client.post("/orders/book", b"abcd", "application/octet-stream", headers=KEY, **sent)
        assert told(cut_off) == (400, "request-incomplete")
    assert post(client, "/orders/book", b"abcd").status_code == 201
    assert effects == [b"abcd"]


def test_K_3_a_view_keeps_its_key_for_as_long_as_it_runs(client: Client) -> None:
    def ask() -> None:
        answers.append(post(client, "/slow").status_code)
        connections.close_all()  # this thread's

    answers: list[int] = []
    with override_settings(POSTROOM_IDEMPOTENCY={**settings.POSTROOM_IDEMPOTENCY, "lease_seconds": 3}):
        client = Client()
        asking = threading.Thread(target=ask)
        asking.start()
        deadline = time.monotonic() + 4.0  # longer than the lease
        while time.monotonic() < deadline:
            assert not effects or told(post(Client(), "/slow")) == (409, "in-progress")
            time.sleep(0.2)  # for the thread that renews, on a busy machine
        may_go_on.set()
        asking.join()
        assert post(Client(), "/slow")["idempotent-replayed"] == "true"
    assert (effects, answers) == ([b"slow"], [204])


@pytest.mark.parametrize("client", ["postgresql", "mariadb"], indirect=True)
def test_K_3_a_view_keeps_its_key_while_the_transaction_of_another_lasts(client: Client) -> None:
    def ask(url: str, key: str) -> None:
        answers.append(post(client, url, b"", **{"idempotency-key": key}).status_code)
        connections.close_all()  # this thread's

    answers: list[int] = []
    with override_settings(POSTROOM_IDEMPOTENCY={**settings.POSTROOM_IDEMPOTENCY, "lease_seconds": 3}):
        client = Client()
        asking = [threading.Thread(target=ask, args=one) for one in (("/later", "1"), ("/slow", "2"))]
        for number, one in enumerate(asking, 1):
            one.start()
            while len(effects) < number:
                time.sleep(0.01)
        deadline = time.monotonic() + 4.0  # longer than the lease
        while time.monotonic() < deadline:
            time.sleep(0.2)  # for the thread that renews, on a busy machine
            for url, key in (("/later", "1"), ("/slow", "2")):
                assert told(post(Client(), url, b"", **{"idempotency-key": key})) == (409, "in-progress")
        may_go_on.set()
        for one in asking:
            one.join()
    assert (effects, sorted(answers)) == ([b"later", b"slow"], [202, 204])
