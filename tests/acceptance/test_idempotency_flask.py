"""The idempotency middleware in WSGI applications and Flask."""

from __future__ import annotations

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest
from flask import Flask, Response, abort, jsonify, request, send_file
from sqlalchemy import text

from postroom.errors import InvalidEntry
from postroom.web.flask import Idempotency
from postroom.web.wsgi import IdempotencyMiddleware
from tests.acceptance.keyed_shop import KEY, WHO
from tests.acceptance.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from werkzeug.test import TestResponse

    from tests.conftest import FreshDatabase

BOTH = pytest.mark.parametrize("kind", ["sqlite", "postgresql"])


@pytest.fixture
def kind() -> str:
    return "sqlite"


@pytest.fixture
def service(kind: str, ready_database: FreshDatabase) -> Iterator[Service]:
    with closing(Service(ready_database(kind))) as service:
        service.execute("CREATE TABLE bill (item VARCHAR(20))")
        yield service


class FlaskShop:
    """The shop as a Flask application."""

    def __init__(self, service: Service, **options: Any) -> None:
        self.service = service
        self.effects: list[bytes] = []
        self.begun = 0
        self.fails = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.app = Flask("shop")
        self.app.add_url_rule("/orders/<item>", "order", self.order, methods=["POST"])
        self.app.add_url_rule("/stream", "stream", self.stream, methods=["POST"])
        self.app.add_url_rule("/events", "events", self.events, methods=["POST"])
        self.app.add_url_rule("/bills", "bill", self.bill, methods=["POST"])
        self.app.add_url_rule("/abort/<int:status>", "abort", self.abort, methods=["POST"])
        self.keyed = Idempotency(self.app, database=service.url, **{"max_response_bytes": 2000, **options})

    def post(self, path: str, data: Any = b"", headers: Any = KEY) -> TestResponse:
        return self.app.test_client().post(path, data=data, headers={**WHO, **headers})

    def close(self) -> None:
        self.keyed.close()

    def order(self, item: str) -> Any:
        self._do()
        answer = jsonify(order=len(self.effects), item=item)
        answer.set_cookie("theme", "dark")
        return answer, 201

    def stream(self) -> Response:
        self._do()

        def parts() -> Iterator[bytes]:
            for part in range(40):
                if self.fails and part == 39:
                    raise RuntimeError("in the middle")
                yield b"x" * 100

        return Response(parts())

    def events(self) -> Response:
        self._do()
        return Response(repeat(b"data: x\n\n"), mimetype="text/event-stream")

    def bill(self) -> Any:
        answer = self.app.make_response(("thank you", 201))
        with self.service.engine.begin() as connection:
            connection.execute(text("INSERT INTO bill VALUES ('book')"))
            request.environ["postroom.idempotency"].finish(connection, answer)
        return answer

    def abort(self, status: int) -> Any:
        self._do()
        abort(status)

    def _do(self) -> None:
        self.begun += 1
        assert self.may_go_on.wait(30)
        if self.fails and request.path != "/stream":
            raise RuntimeError("not today")
        self.effects.append(request.get_data())


def told(answer: TestResponse) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json
    assert body is not None
    return answer.status_code, body["type"].removeprefix("urn:postroom:idempotency:")


@BOTH
def test_K_2_the_same_request_runs_once_and_is_answered_the_same_again(service: Service) -> None:
    with closing(FlaskShop(service, required=["/stream"])) as shop:
        first, again = (shop.post("/orders/book", b"a", {"Idempotency-Key": key}) for key in ("7f9c", '"7f9c"'))
        assert first.json == again.json == {"order": 1, "item": "book"}
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.headers["Idempotent-Replayed"] == "true"
        assert "Set-Cookie" in first.headers
        assert "Set-Cookie" not in again.headers
        assert told(shop.post("/orders/book", b"b")) == (422, "key-reused")
        assert told(shop.post("/orders/pen", b"a")) == (422, "key-reused")  # the same route
        assert told(shop.post("/stream", headers={})) == (400, "key-missing")
        assert told(shop.post("/orders/pen", headers={"Idempotency-Key": "é"})) == (400, "key-invalid")
        assert shop.post("/orders/pen", b"", {}).status_code == 201
        assert shop.effects == [b"a", b""]


def test_K_2_after_an_exception_of_which_flask_makes_a_response_the_request_runs_again(service: Service) -> None:
    with closing(FlaskShop(service)) as shop:
        shop.fails = True
        assert shop.post("/orders/book").status_code == 500
        shop.app.testing = True  # Flask lets exceptions through
        with pytest.raises(RuntimeError):
            shop.post("/orders/book")
        shop.fails = False
        assert shop.post("/orders/book").status_code == 201
        for _ in range(2):
            assert shop.post("/abort/404").status_code == 404
            assert shop.post("/abort/503", headers={"Idempotency-Key": "b"}).status_code == 503
        assert len(shop.effects) == 3  # what was answered on purpose is replayed


@pytest.mark.parametrize("kind_of_error", [RuntimeError, Exception, 500])
def test_an_error_handler_of_the_application_does_not_make_an_exception_a_response(
    service: Service, kind_of_error: Any
) -> None:
    with closing(FlaskShop(service)) as shop:
        shop.app.register_error_handler(kind_of_error, lambda _: ("sorry", 500))
        shop.fails = True
        assert shop.post("/orders/book").text == "sorry"
        shop.fails = False
        assert shop.post("/orders/book").status_code == 201


def test_an_error_handler_that_answers_the_client_is_the_end_of_the_request(service: Service) -> None:
    with closing(FlaskShop(service)) as shop:
        shop.app.register_error_handler(RuntimeError, lambda _: ("no such thing", 404))
        shop.fails = True
        for _ in range(2):
            assert shop.post("/orders/book").status_code == 404
        assert shop.begun == 1


@BOTH
def test_of_eight_twins_one_runs(service: Service) -> None:
    with closing(FlaskShop(service)) as shop, ThreadPoolExecutor(8) as threads:
        shop.may_go_on.clear()
        all_ = [threads.submit(shop.post, "/orders/book") for _ in range(8)]
        deadline = time.monotonic() + 30
        while sum(one.done() for one in all_) < 7:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        shop.may_go_on.set()
        answers = [one.result() for one in all_]
        refused = [answer for answer in answers if answer.status_code != 201]
        assert [told(answer) for answer in refused] == [(409, "in-progress")] * 7
        assert (shop.begun, len(shop.effects)) == (1, 1)


@BOTH
def test_K_3_a_run_that_takes_longer_than_its_lease_keeps_it(service: Service) -> None:
    with closing(FlaskShop(service, lease_seconds=1)) as shop, ThreadPoolExecutor(1) as threads:
        shop.may_go_on.clear()
        first = threads.submit(shop.post, "/orders/book")
        time.sleep(1.8)
        assert told(shop.post("/orders/book")) == (409, "in-progress")
        shop.may_go_on.set()
        assert first.result().status_code == 201
        assert shop.begun == 1


def test_a_stream_is_passed_on_and_told_of_when_asked_for_again(service: Service) -> None:
    with closing(FlaskShop(service)) as shop:
        shop.fails = True
        with pytest.raises(RuntimeError):
            shop.post("/stream").get_data()
        shop.fails = False
        assert len(shop.post("/stream").data) == 4000
        assert told(shop.post("/stream")) == (409, "response-not-kept")
        assert len(shop.effects) == 2


def test_a_stream_whose_client_goes_comes_to_its_end(service: Service) -> None:
    with closing(FlaskShop(service)) as shop:
        answer = shop.app.test_client().post("/stream", headers=KEY, buffered=False)
        next(iter(answer.response))
        answer.close()
        assert told(shop.post("/stream")) == (409, "response-not-kept")


def test_an_endless_stream_ends_when_its_client_goes_and_counts_as_done(service: Service) -> None:
    with closing(FlaskShop(service)) as shop:
        answer = shop.app.test_client().post("/events", headers=KEY, buffered=False)
        assert next(iter(answer.response)) == b"data: x\n\n"
        answer.close()
        assert told(shop.post("/events")) == (409, "response-not-kept")


@BOTH
def test_K_3_a_handler_records_its_response_in_its_own_transaction(service: Service) -> None:
    with closing(FlaskShop(service)) as shop:
        answers = [shop.post("/bills") for _ in range(2)]
        assert [(answer.status_code, answer.text) for answer in answers] == [(201, "thank you")] * 2
        assert len(service.rows("SELECT item FROM bill")) == 1


def test_a_file_is_not_a_response_that_a_handler_can_record(service: Service) -> None:
    with closing(FlaskShop(service)) as shop:

        def download() -> Response:
            answer = send_file(io.BytesIO(b"file"), "text/plain")
            with service.engine.begin() as connection, pytest.raises(InvalidEntry, match="not a stream"):
                request.environ["postroom.idempotency"].finish(connection, answer)
            return answer

        shop.app.add_url_rule("/download", "download", download, methods=["POST"])
        assert [shop.post("/download").data for _ in range(2)] == [b"file"] * 2


def test_a_large_request_is_refused_or_passed_on(service: Service) -> None:
    with closing(FlaskShop(service, max_body_bytes=10)) as shop:
        assert told(shop.post("/orders/book", b"x" * 11)) == (413, "request-too-large")
    with closing(FlaskShop(service, max_body_bytes=10, pass_large_requests=True)) as shop:
        assert shop.post("/orders/book", b"x" * 11).status_code == 201
        assert shop.effects == [b"x" * 11]


def test_a_large_request_of_unknown_length_is_refused_or_passed_on_whole(service: Service) -> None:
    calls: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        calls.append(environ["wsgi.input"].read())
        start_response("200 OK", [])
        return [b"done"]

    def ask(**options: Any) -> list[str]:
        started: list[str] = []
        environ = {
            "REQUEST_METHOD": "POST",
            "wsgi.input_terminated": True,
            "wsgi.input": io.BytesIO(b"x" * 30),
            "HTTP_IDEMPOTENCY_KEY": "k",
            "HTTP_AUTHORIZATION": "a",
        }
        with closing(IdempotencyMiddleware(app, database=service.url, max_body_bytes=10, **options)) as middleware:
            list(middleware(environ, lambda status, _: started.append(status)))
        return started

    assert ask() == ["413 Request Entity Too Large"]
    assert ask(pass_large_requests=True) == ["200 OK"]
    assert calls == [b"x" * 30]


def test_K_2_an_upload_is_the_same_when_its_client_draws_another_boundary(service: Service) -> None:
    def upload(content: bytes = b"x", headers: Any = KEY, **fields: str) -> TestResponse:
        return shop.post("/uploads", {**fields, "file": (io.BytesIO(content), "a.txt")}, headers)

    with closing(FlaskShop(service, required=["POST /uploads"])) as shop:
        shop.app.add_url_rule("/uploads", "upload", lambda: request.files["file"].read()[:9], methods=["POST"])
        assert [upload().headers.get("Idempotent-Replayed") for _ in range(2)] == [None, "true"]
        assert told(upload(b"y")) == (422, "key-reused")
        assert told(upload(headers={})) == (400, "key-missing")
        again = [upload(headers={}, idempotency_key="k") for _ in range(2)]
        assert [answer.headers.get("Idempotent-Replayed") for answer in again] == [None, "true"]
        assert again[1].data == b"x"


def test_a_request_that_could_have_a_key_in_its_body_runs_without_one(service: Service) -> None:
    with closing(FlaskShop(service)) as shop:
        for _ in range(2):
            body = b'{"item": 1}'
            assert shop.post("/orders/book", body, {"Content-Type": "application/json"}).status_code == 201
            assert shop.post("/nowhere").status_code == 404
        assert shop.effects == [b'{"item": 1}'] * 2


def test_any_wsgi_application_will_do(service: Service) -> None:
    calls: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        calls.append(environ["wsgi.input"].read())
        write = start_response("299 As It Were", [("X-A", "1")])
        write(b"old ")
        yield b"and new"

    with closing(IdempotencyMiddleware(app, database=service.url)) as middleware:
        for _ in range(2):
            started: list[Any] = []
            environ = {
                "REQUEST_METHOD": "POST",
                "PATH_INFO": "/\xff",
                "wsgi.input_terminated": True,
                "wsgi.input": (stream := io.BytesIO(b"body")),
                "HTTP_IDEMPOTENCY_KEY": "k",
                "HTTP_AUTHORIZATION": "a",
            }
            body = middleware(environ, lambda *told, kept=started: kept.append(told))
            assert b"".join(body) == b"old and new"
            assert started[0][0].startswith("299")
            assert stream.read() == b""
    assert calls == [b"body"]
